"""The worker's loop: what to send next, or how long to wait.

One round trip is under way at a time. It carries the outcomes gathered so far and, when there are
free slots, the next claims: of those queues in which something may be due, as many as the order of
queues gives each (`order`). While it is under way jobs go on and outcomes gather, so a busy worker
costs one round trip per batch.

A queue that a claim has shown to be empty is not asked again before a hint comes, or the time that
the claim named; the worker listens for hints of such queues also when it is full. What it hears
and has no slot for, it passes on, by a claim for no jobs: someone else may have one.

With nothing to send the loop waits for whichever comes first: its own alarm at the time that the
claim named, a wake hint, a job that ends, a request to stop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from bide.client import aio
from bide.errors import BideError, ScriptBug, ServerRefused
from bide.logs import Log
from bide.model.ids import short_id
from bide.protocol.command import Command
from bide.protocol.commands.worker import MAX_SETTLE_BYTES, Claim, Settle, Verdict
from bide.worker.executors.local import LocalExecutor
from bide.worker.executors.processes import ProcessExecutor
from bide.worker.failure_hooks import Crashes
from bide.worker.heartbeat import ScheduleRefills
from bide.worker.queue_state import PollingOrder, QueueState
from bide.worker.relay import DependencyRelay
from bide.worker.run.running_job import RunningJob
from bide.worker.threads import make_alarm
from bide.worker.wakeups import SharedListener

_FIRST: Final = 0.05
_LONGEST: Final = 2.0

SAY_EVERY: Final = 30
"""Failures for each line of the log: a line a minute, about."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: growing, bounded and jittered."""
    pause = min(_FIRST * 2.0 ** min(failures - 1, 16), _LONGEST)
    return pause * random.uniform(0.5, 1.0)


log = Log("bide.worker")

_WARN_EVERY: Final = 60.0
_LAST_ROUND_TRIP: Final = 1.0
_DRAIN: Final = 10.0
"""Seconds for which a busy worker stops claiming, to become idle for a suspect."""

_LAST_TRIES: Final = 3
"""How often a worker that stops and holds nothing asks after a claim without an answer."""

_SILENCE: Final = 0.02
_WARM_UP: Final = 0.0012
"""Seconds of silence after which, and before a deadline, a round trip warms the path up."""


class _QueueCalls(NamedTuple):
    """What a round trip carries for one queue."""

    place: int
    """Of the queue among the worker's."""
    station: QueueState
    notes: list[Command[None]]
    """First, so that who hears of a job's end finds all that it has said."""
    settles: list[Settle]
    claim_for: int | None
    """For how many jobs the claim is; None without a claim."""


class WorkerLoop:
    """Claims, hands jobs to `Running`, settles, and sleeps."""

    def __init__(
        self,
        client: aio.AsyncClient,
        stations: Sequence[QueueState],
        order: PollingOrder,
        burst: bool,
    ) -> None:
        self._client = client
        self._stations = stations
        self._order = order
        self._postman = DependencyRelay(client, self._relay_outcomes)
        self._refills = ScheduleRefills(client)
        self._crashes = Crashes(client, self._report, self.wake)
        self._no_shares = [0] * len(stations)
        self._burst = burst
        self._alone = False
        self._drain_until = 0.0
        self._cold = False
        self._bell = asyncio.Event()
        self._limit = asyncio.timeout(None)
        self.polled = 0.0
        """When a claim was last answered (`time.monotonic()`); 0 for never."""
        self.stopping = False
        self.aborted = False
        self.cut_off = False
        """The server could not be told how all jobs ended before the worker had to end."""

    @property
    def fails(self) -> bool:
        """Whether a queue could not be asked the last time."""
        return any(station.failures for station in self._stations)

    def wake(self) -> None:
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

    async def run(self, running: LocalExecutor | ProcessExecutor) -> None:
        """Work until stopped, or in a burst until nothing is due and nothing runs."""
        self._running = running
        self._alarm = make_alarm(asyncio.get_running_loop(), self.wake)
        self._ears = [
            SharedListener(self._client.url, station.keys["wake"], partial(self._heard, station))
            for station in self._stations
        ]
        try:
            while not self._finished():
                self._bell.clear()
                if parts := self._plan():
                    await self._exchange(parts)
                else:
                    await self._wait()
        finally:
            self._alarm.close()
            closing = (self._refills.close(), self._postman.close(), self._crashes.close())
            await asyncio.gather(*closing, *(ear.close() for ear in self._ears))

    def _free(self) -> int:
        """Slots that may be filled now.

        An outcome occupies its job's slot until the worker sends it. Otherwise a worker could claim
        without bound jobs that end faster than it settles them, and a kill would run all of them
        again. A queue that does not answer does not keep the others waiting.
        """
        if self.stopping or self._alone:
            return 0
        if self._running.busy and time.monotonic() < self._drain_until:
            return 0
        unsettled = sum(len(s.settles) for s in self._stations if not s.failures)
        return max(0, self._running.capacity - len(self._running) - unsettled)

    def _batch(self) -> int:
        """Half the slots a claim: one half runs while the round trip of the other is under way."""
        return -(-self._running.capacity // 2)

    def _finished(self) -> bool:
        if self._running.is_spent:
            self.stopping = True
        if any(s.settles or s.unanswered or s.said.waiting for s in self._stations):
            return self.cut_off
        if self._running.busy or self._running.has_callbacks or self._crashes.busy:
            return self.aborted
        if self._burst and self._postman.busy:  # what it tells may free jobs of these queues
            return self.stopping
        return self.stopping or (
            self._burst and not any(s.check or s.limited for s in self._stations)
        )

    def _plan(self) -> list[_QueueCalls]:
        """What there is to send; empty if there is nothing."""
        busy = self._running.busy
        if not busy:
            self._alone = False
            self._drain_until = 0.0
        self._listen()
        leaving = self._take_settles()
        now, free = time.monotonic(), self._free()
        shares = self._shares(now, free, leaving)
        parts: list[_QueueCalls] = []
        for place, (station, settles) in enumerate(zip(self._stations, leaving, strict=True)):
            if station.resting:
                continue
            share = shares[place]
            claim_for = share if share or self._asks(station, now, free) else None
            if settles or claim_for is not None or station.said.waiting:
                parts.append(_QueueCalls(place, station, station.take_said(), settles, claim_for))
        return parts

    def _take_settles(self) -> list[list[Settle]]:
        """Take the outcomes that go with the next round trip, ahead of its claims."""
        leaving: list[list[Settle]] = []
        size = 0
        for station in self._stations:
            waits = station.resting or size > MAX_SETTLE_BYTES
            settles = [] if waits else station.take_settles()
            size += sum(len(settle.data) for settle in settles)
            leaving.append(settles)
        return leaving

    def _shares(self, now: float, free: int, leaving: Sequence[Sequence[Settle]]) -> list[int]:
        """How many jobs to claim from each queue, behind the outcomes that are `leaving`."""
        if not free:
            return self._no_shares
        # In a burst an outcome may be what makes the next job due: a retry without delay.
        ready = [
            not station.resting
            and (station.is_due(now, settles) or (self._burst and bool(settles)))
            and self._room(station) > 0
            for station, settles in zip(self._stations, leaving, strict=True)
        ]
        if True not in ready:
            return self._no_shares
        shares = self._order.share(ready, min(free, self._batch()))
        shares = [
            min(share, self._room(station))
            for share, station in zip(shares, self._stations, strict=True)
        ]
        if not self._running.busy and len(shares) > 1:
            # What an idle worker takes may be a suspect, beside which nothing is to be claimed.
            first = next(place for place, share in enumerate(shares) if share)
            shares = [share if place == first else 0 for place, share in enumerate(shares)]
        return shares

    def _room(self, station: QueueState) -> int:
        """Free slots for this queue. Its unsent outcomes count even while the queue fails."""
        return self._running.capacity - len(self._running) - len(station.settles)

    def _asks(self, station: QueueState, now: float, free: int) -> bool:
        """Whether to claim from a queue though it is to have no slot.

        A hint, or a promise to look, is passed on. A claim without an answer is repeated, also
        when stopping: what it took runs here, or goes back.
        """
        if station.unanswered and (free or self.stopping):
            return True
        return station.hinted or station.promised(now)

    def _listen(self) -> None:
        """Listen for hints of those queues that a claim has shown to be empty."""
        for ear, station in zip(self._ears, self._stations, strict=True):
            ear.listen(not self.stopping and not station.check)

    async def _exchange(self, parts: Sequence[_QueueCalls]) -> None:
        """One round trip: what jobs said, the gathered outcomes, claims."""
        commands: list[Any] = []
        for _, station, notes, settles, claim_for in parts:
            commands += notes
            if settles:
                commands.append(station.settle(settles))
            if claim_for is not None:
                commands.append(station.claim(claim_for, self._running.busy, self._burst))
        sent = time.monotonic()
        self._limit = asyncio.timeout(_LAST_ROUND_TRIP if self.aborted else None)
        try:
            async with self._limit:
                replies = await self._client.attempt_many(commands)
        except (BideError, TimeoutError) as error:
            for part in parts:
                part.station.put_back(part.settles)
                self._back_off(part.station, error)
            return
        at = 0
        for part in parts:
            end = at + len(part.notes) + bool(part.settles) + (part.claim_for is not None)
            self._read(part, replies[at:end], sent)
            at = end

    def _read(self, part: _QueueCalls, replies: Sequence[Any], sent: float) -> None:
        """Act upon the replies for one queue."""
        _, station, notes, settles, claim_for = part
        said, replies = replies[: len(notes)], replies[len(notes) :]
        refused = next((reply for reply in said if isinstance(reply, BideError)), None)
        if refused is not None:
            log.info("queue %s: what jobs said was refused: %s", station.queue, refused)
        failed = next((reply for reply in replies if isinstance(reply, BideError)), None)
        if failed is not None:
            # What was refused is sent again with the same ids; what was applied answers as before.
            station.put_back(settles)
        else:
            station.succeeded()
            if settles:
                self._note_verdicts(station, settles, replies[0])
                if claim_for is None and self._burst:  # where no hint is heard of what they freed
                    station.check = True
        if claim_for is not None and not isinstance(replies[-1], BideError):
            self.polled = time.monotonic()
            self._order.note_taken(part.place, len(replies[-1].jobs))
            self._take(station, replies[-1], sent)
            if replies[-1].stale:
                failed = ServerRefused("The server has seen a later claim of this worker.")
        if failed is not None:
            self._back_off(station, failed)

    def _take(self, station: QueueState, reply: Claim, sent: float) -> None:
        station.claimed(reply, sent)
        if reply.post:
            self._postman.submit(station.keys)
        self._refills.send(station.keys, reply.thin)
        if reply.lost:
            self._crashes.found(station, reply.lost)
        self._alone = self._alone or reply.alone
        if reply.drain:
            self._drain_until = time.monotonic() + _DRAIN
            asyncio.get_running_loop().call_later(_DRAIN, self.wake)
        if self.stopping or time.monotonic() - sent > station.lease * 2 / 3:
            # Also when this process was held up for so long that the leases may have passed on.
            station.settles.extend(Settle(job.id, job.token, "release") for job in reply.jobs)
        else:
            self._running.submit(station, reply.jobs, sent)

    def _note_verdicts(
        self, station: QueueState, settles: Sequence[Settle], verdicts: Sequence[Verdict]
    ) -> None:
        if station.figures is not None:
            station.figures.note_settles(settles, verdicts)
        runs = self._running.mark_recorded(settles)
        if verdicts.count("ok") == len(settles):
            return
        if "full" in verdicts:
            self._warn_of_results(station)
        for settle, verdict, run in zip(settles, verdicts, runs, strict=True):
            if verdict == "lost":
                with run.named() if run else nullcontext():  # None: it was never accepted here
                    log.warning(
                        "job %s: the outcome (%s) came after its lease had passed to another "
                        "worker, and was refused",
                        short_id(settle.id),
                        settle.outcome,
                        extra={"job_id": short_id(settle.id), "queue": station.queue},
                    )

    def _warn_of_results(self, station: QueueState) -> None:
        """Warn that results are dropped, at most once a minute: each large one drops another."""
        now = time.monotonic()
        if now < station.quiet_until:
            return
        station.quiet_until = now + _WARN_EVERY
        log.warning(
            "queue %s: the server drops the oldest results, because results of 2,000 bytes or more "
            "exceed their budget; return less, or raise Retention(results=...)",
            station.queue,
        )

    def _back_off(self, station: QueueState, error: BideError | TimeoutError) -> None:
        """Leave a queue alone for a little while, jittered; then the same is sent again."""
        if isinstance(error, ScriptBug):
            raise error
        reason = str(error) or "No reply in time."
        if station.failed(reason):
            log.warning("queue %s: %s Trying again until it works.", station.queue, reason)
        held = self._running.busy or any(station.settles for station in self._stations)
        if self.aborted or (self.stopping and not held and station.failures >= _LAST_TRIES):
            self.cut_off = True  # what is held comes back when its lease ends
            return
        station.resting = True
        pause = pause_after(station.failures)
        asyncio.get_running_loop().call_later(pause, self._resume, station)

    def _resume(self, station: QueueState) -> None:
        station.resting = False
        self.wake()

    async def _wait(self) -> None:
        """Sleep until the alarm, a hint, the end of a job, or a request to stop."""
        if self._finished():
            return
        empty = [s for s in self._stations if not s.resting and not s.check]
        if empty:
            await self._set_alarm(min(empty, key=lambda station: station.until))
        await self._bell.wait()

    async def _set_alarm(self, first: QueueState) -> None:
        """Have the alarm ring when the first station is due.

        A machine that has slept runs its first steps several times slower. So, after a silence, a
        round trip that means nothing goes ahead of a deadline, to wake caches, socket and server.
        """
        ahead = first.until - time.monotonic()
        if not self._free():  # it will be passed on, and be a little late anyway
            self._alarm.set(first.until)
            return
        if first.exact and ahead > _SILENCE:
            self._cold = True
            self._alarm.set(first.until - _WARM_UP)
            return
        if self._cold and ahead > 0:
            await self._client.ping(first.keys["meta"])
        self._cold = False
        self._alarm.set(first.until)

    def _relay_outcomes(self, queues: set[str]) -> None:
        """Something was told to these queues: what waited there may be due."""
        for station in self._stations:
            station.check = station.check or station.queue in queues
        self._bell.set()

    def _report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        self._running.report(run, how, has_failed)

    def _heard(self, station: QueueState, caller: str) -> None:
        station.hint(caller)
        self._bell.set()


_LOOK_EVERY: Final = 1.0


class Busy(Protocol):
    """What shows whether there was anything to do."""

    executed: int

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        ...


async def watch(running: Busy, max_idle: float, stop: Callable[[], None]) -> None:
    """Stop the worker once it has held no job for `max_idle` seconds."""
    last, seen = time.monotonic(), 0
    while True:
        now = time.monotonic()
        if running.busy or running.executed != seen:
            last, seen = now, running.executed
        left = last + max_idle - now
        if left <= 0:
            log.info("had nothing to do for %g s", max_idle)
            stop()
            return
        await asyncio.sleep(min(left, _LOOK_EVERY))
