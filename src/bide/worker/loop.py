"""The worker's loop: what to send next, or how long to wait.

One round trip is under way at a time. It carries, for one queue, the outcomes gathered so far and,
when there are free slots and something may be due, the next claim. While it is under way jobs go
on and outcomes gather, so a busy worker costs one round trip per batch.

With nothing to send the loop waits for whichever comes first: its own alarm at the time that the
claim named, a wake hint, a job that ends, a request to stop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from bide import aio
from bide.errors import BideError, ScriptBug, ServerRefused
from bide.ops.consume import Claim, Settle, Verdict
from bide.worker.alarm import make_alarm
from bide.worker.ear import Ear
from bide.worker.processes.crew import Crew
from bide.worker.running import Running
from bide.worker.station import Station

log = logging.getLogger("bide.worker")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_SAY_EVERY: Final = 30
_LAST_ROUND_TRIP: Final = 1.0
_DRAIN: Final = 10.0
"""Seconds for which a busy worker stops claiming, to become idle for a suspect."""

_LAST_TRIES: Final = 3
"""How often a worker that stops and holds nothing asks after a claim without an answer."""

_SILENCE: Final = 0.02
_WARM_UP: Final = 0.0012
"""Seconds of silence after which, and before a deadline, a round trip warms the path up."""


class Loop:
    """Claims, hands jobs to `Running`, settles, and sleeps."""

    def __init__(
        self,
        client: aio.Client,
        stations: Sequence[Station],
        burst: bool,
    ) -> None:
        self._client = client
        self._stations = stations
        self._by_wake_key = {station.keys["wake"]: station for station in stations}
        self._burst = burst
        self._alone = False
        self._drain_until = 0.0
        self._cold = False
        self._bell = asyncio.Event()
        self._limit = asyncio.timeout(None)
        self.stopping = False
        self.aborted = False
        self.cut_off = False
        """The server could not be told how all jobs ended before the worker had to end."""

    def ring(self) -> None:
        """Something changed: look again."""
        self._bell.set()

    def stop(self) -> None:
        """Claim no more; end when all that runs has ended."""
        self.stopping = True
        self._bell.set()

    def abort(self) -> None:
        """End now: nothing runs any more, and the round trip under way gets a second."""
        self.aborted = True
        with suppress(RuntimeError):  # none is under way
            self._limit.reschedule(asyncio.get_running_loop().time() + _LAST_ROUND_TRIP)
        self.stop()

    async def run(self, running: Running | Crew) -> None:
        """Work until stopped, or in a burst until nothing is due and nothing runs."""
        self._running = running
        self._alarm = make_alarm(asyncio.get_running_loop(), self.ring)
        self._ear = Ear(self._client.url, list(self._by_wake_key), self._heard)
        try:
            while not self._finished():
                self._bell.clear()
                if not await self._exchange_all():
                    await self._wait()
        finally:
            self._alarm.close()
            await self._ear.close()

    def _free(self) -> int:
        """Slots that may be filled now."""
        if self.stopping or self._alone:
            return 0
        if self._running.busy and time.monotonic() < self._drain_until:
            return 0
        return max(0, self._running.capacity - len(self._running))

    def _batch(self) -> int:
        """Half the slots a claim: one half runs while the round trip of the other is under way."""
        return -(-self._running.capacity // 2)

    def _finished(self) -> bool:
        if self._running.has_had_enough:
            self.stopping = True
        if any(s.settles or s.unanswered or s.said.waiting for s in self._stations):
            return self.cut_off
        if self._running.busy or self._running.calls_back:
            return self.aborted
        return self.stopping or (self._burst and not any(s.check for s in self._stations))

    async def _exchange_all(self) -> bool:
        """Send what there is to send, queue by queue; False if there was nothing."""
        sent = False
        if not self._running.busy:
            self._alone = False
            self._drain_until = 0.0
        self._ear.listen(self._free() > 0 and not self._burst)
        for station in self._stations:
            if station.resting:
                continue
            free = self._free()
            # In a burst an outcome may be what makes the next job due: a retry without delay.
            due = station.is_due(time.monotonic()) or (self._burst and bool(station.settles))
            claims = due and free > 0
            # A claim without an answer is repeated when stopping too: what it took goes back.
            passes_on = free == 0 and (station.hinted or (self.stopping and station.unanswered))
            if station.settles or claims or passes_on or station.said.waiting:
                await self._exchange(
                    station, min(free, self._batch()) if claims else 0, claims or passes_on
                )
                sent = True
        return sent

    async def _exchange(self, station: Station, count: int, claims: bool) -> None:
        """One round trip: what jobs said, the gathered outcomes, a claim of up to `count` jobs."""
        notes = station.take_said()
        settles = station.take_settles()
        commands: list[Any] = [*notes]  # first, so that who hears of a job's end finds all of them
        if settles:
            commands.append(station.settle(settles))
        if claims:
            commands.append(station.claim(count, self._running.busy))
        sent = time.monotonic()
        self._limit = asyncio.timeout(_LAST_ROUND_TRIP if self.aborted else None)
        try:
            async with self._limit:
                replies = await self._client.attempt_many(commands)
        except (BideError, TimeoutError) as error:
            station.settles = settles + station.settles
            self._back_off(station, error)
            return
        said, replies = replies[: len(notes)], replies[len(notes) :]
        refused = next((reply for reply in said if isinstance(reply, BideError)), None)
        if refused is not None:
            log.info("queue %s: what jobs said was refused: %s", station.queue, refused)
        failed = next((reply for reply in replies if isinstance(reply, BideError)), None)
        if failed is not None:
            # What was refused is sent again with the same ids; what was applied answers as before.
            station.settles = settles + station.settles
        else:
            station.failures = 0
            if settles:
                self._note_verdicts(settles, replies[0])
        if claims and not isinstance(replies[-1], BideError):
            self._take(station, replies[-1], sent)
            if replies[-1].stale:
                failed = ServerRefused("The server has seen a later claim of this worker.")
        if failed is not None:
            self._back_off(station, failed)

    def _take(self, station: Station, reply: Claim, sent: float) -> None:
        station.claimed(reply, sent)
        self._alone = self._alone or reply.alone
        if reply.drain:
            self._drain_until = time.monotonic() + _DRAIN
            asyncio.get_running_loop().call_later(_DRAIN, self.ring)
        if self.stopping or time.monotonic() - sent > station.lease * 2 / 3:
            # Also when this process was held up for so long that the leases may have passed on.
            station.settles += [Settle(job.id, job.token, "release") for job in reply.jobs]
        else:
            self._running.accept(station, reply.jobs, sent)

    def _note_verdicts(self, settles: Sequence[Settle], verdicts: Sequence[Verdict]) -> None:
        self._running.confirmed(settles)
        if verdicts.count("ok") == len(settles):
            return
        for settle, verdict in zip(settles, verdicts, strict=True):
            if verdict == "lost":
                log.warning(
                    "job %s: the outcome (%s) came after its lease had passed to another "
                    "worker, and was refused",
                    settle.id,
                    settle.outcome,
                )

    def _back_off(self, station: Station, error: BideError | TimeoutError) -> None:
        """Leave a queue alone for a little while, jittered; then the same is sent again."""
        if isinstance(error, ScriptBug):
            raise error
        if station.failures % _SAY_EVERY == 0:
            reason = str(error) or "No reply in time."
            log.warning("queue %s: %s Trying again until it works.", station.queue, reason)
        station.failures += 1
        held = self._running.busy or any(station.settles for station in self._stations)
        if self.aborted or (self.stopping and not held and station.failures >= _LAST_TRIES):
            self.cut_off = True  # what is held comes back when its lease ends
            return
        pause = min(_FIRST_PAUSE * 2.0 ** min(station.failures - 1, 16), _LONGEST_PAUSE)
        pause *= random.uniform(0.5, 1.0)
        station.resting = True
        asyncio.get_running_loop().call_later(pause, self._resume, station)

    def _resume(self, station: Station) -> None:
        station.resting = False
        self.ring()

    async def _wait(self) -> None:
        """Sleep until the alarm, a hint, the end of a job, or a request to stop."""
        if self._finished():
            return
        sound = [station for station in self._stations if not station.resting]
        if sound and self._free() > 0:
            await self._set_alarm(min(sound, key=lambda station: station.until))
        await self._bell.wait()

    async def _set_alarm(self, first: Station) -> None:
        """Have the alarm ring when the first station is due.

        A machine that has slept runs its first steps several times slower. So, after a silence, a
        round trip that means nothing goes ahead of a deadline, to wake caches, socket and server.
        """
        ahead = first.until - time.monotonic()
        if first.exact and ahead > _SILENCE:
            self._cold = True
            self._alarm.set(first.until - _WARM_UP)
            return
        if self._cold and ahead > 0:
            await self._client.ping()
        self._cold = False
        self._alarm.set(first.until)

    def _heard(self, wake_key: str, caller: str) -> None:
        self._by_wake_key[wake_key].hint(caller)
        self._bell.set()
