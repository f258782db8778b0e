"""The worker's loop: decides what to send next, or how long to wait.

One round trip is under way at a time. It carries the buffered outcomes and, if there are free
slots, the next claims. `PollingOrder` divides the slots among the queues that may have due jobs.
During a round trip, jobs continue and outcomes are buffered, so a busy worker needs one round trip
per batch.

After a claim has found a queue empty, the worker claims from it again at the time that the claim
returned, or after a wake-up message. It listens for these messages even when it is full. If it has
no free slot for one, it passes the message on by a claim for no jobs: another worker may be free.

With nothing to send, the loop waits for the first of:

- its alarm, at the time that the claim returned,
- a wake-up message,
- the end of a job,
- a request to stop.

A listener for wake-up messages blocks on a connection while the worker considers a queue empty. A
request to cancel may be lost, because each reply to the renewal of a lease repeats it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from bide.client import aio
from bide.client.execute import Encoded
from bide.client.url import WAKE_WAIT
from bide.errors import BideError, ScriptBug, ServerRefused
from bide.logs import Log
from bide.model.durations import JITTER
from bide.model.ids import short_id
from bide.protocol.commands import Command
from bide.protocol.commands.worker import (
    MAX_SETTLE_BYTES,
    Claim,
    Settle,
    Verdict,
    server_time,
)
from bide.worker.executors.base import Executor, make_alarm
from bide.worker.heartbeat import ScheduleRefills
from bide.worker.invoke import Crashes
from bide.worker.queue_state import PollingOrder, QueueState
from bide.worker.relay import DependencyRelay
from bide.worker.running_job import RunningJob

_MARGIN: Final = 3.0


class SharedListener:
    """Listens on the wake list of one queue."""

    def __init__(self, url: str, wake_key: str, heard: Callable[[str], None]) -> None:
        """Set up; `heard` is called with the name of the sender of a wake-up message."""
        self._client = aio.AsyncClient(url, reply_timeout=_MARGIN)
        self._key = wake_key
        self._heard = heard
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def listen(self, wanted: bool) -> None:
        """Listen; or if not `wanted`, finish the current call and pause."""
        if not wanted:
            self._wanted.clear()
        elif not self._wanted.is_set():
            self._wanted.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Stop immediately. A wake-up message that arrives now is lost, as any of them may be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _listen(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                message = await self._client.pop([self._key], WAKE_WAIT)
            except Exception:
                # Claims meet the same error and report it. Here only wake-up messages are lost; one
                # may have been on its way.
                await asyncio.sleep(JITTER.uniform(0.1, 1.0))
                self._heard("-")
                continue
            if message is not None:
                self._heard(message[1])
                await asyncio.sleep(0)  # the claim is sent before the next call


async def listen(
    client: aio.AsyncClient, channels: Sequence[str], heard: Callable[[str, str], None]
) -> None:
    """Listen on pub/sub channels until cancelled; `heard` is called with channel and text."""
    async with client.listen(*channels) as listener:
        while True:
            message = await listener.next()
            if message is not None:
                heard(*message)


_FIRST: Final = 0.05
_LONGEST: Final = 2.0

LOG_EVERY: Final = 30
"""Failures per line of the log: about one line a minute."""


def pause_after(failures: int) -> float:
    """Return the seconds to wait after consecutive failures: growing, bounded and jittered."""
    pause = min(_FIRST * 2.0 ** min(failures - 1, 16), _LONGEST)
    return pause * JITTER.uniform(0.5, 1.0)


log = Log("bide.worker")

_WARN_EVERY: Final = 60.0
_LAST_ROUND_TRIP: Final = 1.0
_DRAIN: Final = 10.0
"""Seconds for which a busy worker stops claiming, to become idle for a suspect.

A suspect is a job whose worker has died under it: it must run without other jobs beside it.
"""

_LAST_TRIES: Final = 3
"""How often a stopping worker that holds no job repeats a claim without a reply."""

_SILENCE: Final = 0.02
_WARM_UP: Final = 0.0012
"""Seconds: after so much silence, a ping is sent `_WARM_UP` before a deadline."""


class _QueueCalls(NamedTuple):
    """The calls of one round trip for one queue."""

    place: int
    """The index of the queue in the worker's list."""
    queue_state: QueueState
    notes: list[Command[None]]
    """Sent first, so that all notes of a job are stored before its end is announced."""
    settles: list[Settle]
    claim_for: int | None
    """How many jobs to claim; None for no claim."""
    slots: int
    """How many of these jobs may be claimed ahead."""
    reads_clock: bool
    """Whether to read the server's clock after the claim, for the jobs that are claimed ahead."""

    def commands(self, busy: int, burst: bool) -> list[Command[Any]]:
        """Return the calls in their order."""
        commands: list[Command[Any]] = [*self.notes]
        if self.settles:
            commands.append(self.queue_state.settle(self.settles))
        if self.claim_for is not None:
            commands.append(self.queue_state.claim(self.claim_for, busy, self.slots, burst))
            if self.reads_clock:
                commands.append(server_time(self.queue_state.keys))
        return commands

    def read(self, replies: Iterator[Any]) -> _QueueReplies:
        """Take the replies to these calls from the replies of a round trip."""
        return _QueueReplies(
            notes=[next(replies) for _ in self.notes],
            verdicts=next(replies) if self.settles else None,
            claim=next(replies) if self.claim_for is not None else None,
            server_us=next(replies) if self.reads_clock else None,
        )


class _QueueReplies(NamedTuple):
    """The replies to `_QueueCalls`, each of which may be an error; None for a call not made."""

    notes: list[BideError | None]
    verdicts: list[Verdict] | BideError | None
    claim: Claim | BideError | None
    server_us: int | BideError | None
    """The server's time after the claim."""


class _Foreseen(NamedTuple):
    """The round trip of the next claim, which was encoded while the worker waited."""

    parts: list[_QueueCalls]
    commands: Encoded


def _error_of(reply: object) -> BideError | None:
    return reply if isinstance(reply, BideError) else None


class WorkerLoop:
    """Claims jobs, submits them to the executor, settles them, and sleeps."""

    def __init__(
        self,
        client: aio.AsyncClient,
        queue_states: Sequence[QueueState],
        order: PollingOrder,
        burst: bool,
    ) -> None:
        self._client = client
        self._queue_states = queue_states
        self._polling_order = order
        self._relay = DependencyRelay(client, self._relay_outcomes)
        self._refills = ScheduleRefills(client)
        self._crashes = Crashes(client, self._report, self.wake)
        self._no_shares = [0] * len(queue_states)
        self._burst = burst
        self._alone = False
        self._drain_until = 0.0
        self._is_cold = False
        self._wakeup = asyncio.Event()
        self._foreseen: _Foreseen | None = None
        self._limit = asyncio.timeout(None)
        """Ends the loop if a round trip takes too long after `abort`."""
        self._exchanges = False
        """Whether a round trip is under way."""
        self.polled = 0.0
        """When a claim was last answered (`time.monotonic()`); 0 for never."""
        self.stopping = False
        self.paused = False
        """Whether it claims nothing until it is resumed."""
        self.aborted = False
        self.cut_off = False
        """The worker had to end before the server had recorded all outcomes."""

    @property
    def fails(self) -> bool:
        """Whether the latest round trip of a queue has failed."""
        return any(queue_state.failures for queue_state in self._queue_states)

    def wake(self) -> None:
        """Wake the loop, because something changed."""
        self._wakeup.set()

    def stop(self) -> None:
        """Stop claiming, and end when all running jobs have ended."""
        self.stopping = True
        self._wakeup.set()

    def pause(self, paused: bool) -> None:
        """Claim nothing, or claim again; running jobs continue.

        A claim for no jobs hands over what others rely on this worker for: its deadlines, and the
        jobs that are due.
        """
        if paused is self.paused:
            return
        self.paused = paused
        if paused:
            self._executor.recall_all()
            for queue_state in self._queue_states:
                queue_state.on_wakeup("-")
        self._wakeup.set()

    def abort(self) -> None:
        """End now: no job runs any more, and the round trip under way gets one second."""
        if self._exchanges and not self.aborted:
            self._set_limit(_LAST_ROUND_TRIP)
        self.aborted = True
        self.stop()

    def _set_limit(self, seconds: float | None) -> None:
        now = asyncio.get_running_loop().time()
        self._limit.reschedule(None if seconds is None else now + seconds)

    async def run(self, executor: Executor) -> None:
        """Work until stopped, or in a burst until nothing is due and nothing runs."""
        self._executor = executor
        self._alarm = make_alarm(asyncio.get_running_loop(), self.wake)
        self._listeners = [
            SharedListener(
                self._client.url, queue_state.keys["wake"], partial(self._on_wakeup, queue_state)
            )
            for queue_state in self._queue_states
        ]
        self._limit = asyncio.timeout(None)
        try:
            async with self._limit:
                await self._run()
        except TimeoutError:
            if not self._limit.expired():
                raise
            self.cut_off = True
        finally:
            self._alarm.close()
            closing = (self._refills.close(), self._relay.close(), self._crashes.close())
            await asyncio.gather(*closing, *(listener.close() for listener in self._listeners))

    async def _run(self) -> None:
        while not self._finished():
            self._wakeup.clear()
            if foreseen := self._take_foreseen():
                await self._exchange(*foreseen)
            elif parts := self._plan():
                await self._exchange(parts)
            else:
                await self._wait()
                continue
            if not any(queue_state.check for queue_state in self._queue_states):
                # Nothing is to be claimed, so the jobs run first.
                await asyncio.sleep(0)

    def _free(self) -> int:
        """Return how many slots may be filled now.

        An outcome occupies its job's slot until the worker sends it. Otherwise a worker could claim
        an unlimited number of jobs that end faster than it settles them. If it was then killed, all
        of them would run again. The outcomes of a queue that does not answer do not count here.
        """
        if self.stopping or self.paused or self._alone:
            return 0
        if self._executor.busy and time.monotonic() < self._drain_until:
            return 0
        unsettled = sum(len(s.settles) for s in self._queue_states if not s.failures)
        return max(0, self._executor.capacity - self._used - unsettled)

    @property
    def _used(self) -> int:
        """How much of the executor's capacity is in use; jobs that are not due yet do not count.

        Otherwise a job that is due now would wait for them, for instance one of higher priority.
        """
        return len(self._executor) - self._executor.ahead

    def _finished(self) -> bool:
        if self._executor.is_spent:
            self.stopping = True
        if any(s.settles or s.unanswered or s.notes.waiting for s in self._queue_states):
            return self.cut_off
        if self._executor.busy or self._executor.has_callbacks or self._crashes.busy:
            return self.aborted
        if self._burst and self._relay.busy:  # an outcome may release jobs of these queues
            return self.stopping
        return self.stopping or (
            self._burst and not any(s.check or s.limited for s in self._queue_states)
        )

    def _plan(self) -> list[_QueueCalls]:
        """Return the calls to send; empty if there are none."""
        busy = self._executor.busy
        if not busy:
            self._alone = False
            self._drain_until = 0.0
        self._listen()
        leaving = self._take_settles()
        now, free = time.monotonic(), self._free()
        shares = self._shares(now, free, leaving)
        slots = min(free, self._executor.free_slots)
        parts: list[_QueueCalls] = []
        for place, (queue_state, settles) in enumerate(
            zip(self._queue_states, leaving, strict=True)
        ):
            if queue_state.resting:
                continue
            share = shares[place]
            claim_for = share if share or self._asks(queue_state, now, free) else None
            if settles or claim_for is not None or queue_state.notes.waiting:
                notes = queue_state.take_notes()
                # After an error a round trip carries no more than it must, so that it succeeds.
                ahead = 0 if queue_state.failures else min(share, slots)
                slots -= ahead
                # The message that wakes an idle worker is for a job that is due now. The second
                # reading would delay it.
                reads_clock = ahead > 0 and (busy > 0 or not queue_state.is_woken)
                parts.append(
                    _QueueCalls(place, queue_state, notes, settles, claim_for, ahead, reads_clock)
                )
        return parts

    def _take_settles(self) -> list[list[Settle]]:
        """Take the outcomes for the next round trip, in which they come before the claims."""
        leaving: list[list[Settle]] = []
        size = 0
        for queue_state in self._queue_states:
            waits = queue_state.resting or size > MAX_SETTLE_BYTES
            settles = [] if waits else queue_state.take_settles()
            size += sum(len(settle.data) for settle in settles)
            leaving.append(settles)
        return leaving

    def _shares(self, now: float, free: int, leaving: Sequence[Sequence[Settle]]) -> list[int]:
        """Return how many jobs to claim from each queue, after the `leaving` outcomes are sent."""
        if not free:
            return self._no_shares
        has_slot = self._executor.free_slots > 0
        # In a burst an outcome may make the next job due: a retry without delay.
        ready = [
            not queue_state.resting
            and (queue_state.is_due(now, settles, has_slot) or (self._burst and bool(settles)))
            and self._room(queue_state) > 0
            for queue_state, settles in zip(self._queue_states, leaving, strict=True)
        ]
        if True not in ready:
            return self._no_shares
        shares = self._polling_order.share(ready, self._most(free))
        shares = [
            min(share, self._room(queue_state))
            for share, queue_state in zip(shares, self._queue_states, strict=True)
        ]
        if not self._executor.busy and len(shares) > 1:
            # An idle worker may receive a suspect, and must then not claim other jobs.
            first = next(place for place, share in enumerate(shares) if share)
            shares = [share if place == first else 0 for place, share in enumerate(shares)]
        return shares

    def _most(self, free: int) -> int:
        """Return how many jobs a claim may take: one half runs while the other is claimed."""
        return min(free, -(-self._executor.capacity // 2))

    def _room(self, queue_state: QueueState) -> int:
        """Return the free slots for this queue; its unsent outcomes count even while it fails."""
        return self._executor.capacity - self._used - len(queue_state.settles)

    def _asks(self, queue_state: QueueState, now: float, free: int) -> bool:
        """Whether to claim from a queue although it gets no slot.

        Such a claim passes on a wake-up message, or the timekeeper's duty at a due time. A claim
        without a reply is repeated, even while stopping: it may have taken jobs, which then run
        here or are released.
        """
        if queue_state.unanswered and (free or self.stopping):
            return True
        return queue_state.is_woken or queue_state.is_timekeeper_due(now)

    def _listen(self) -> None:
        """Listen for wake-up messages of the queues that a claim has found empty."""
        for listener, queue_state in zip(self._listeners, self._queue_states, strict=True):
            listener.listen(not (self.stopping or self.paused or queue_state.check))

    def _foresee(self) -> _Foreseen | None:
        """Encode the claim for the next wake-up message, if it can be known now.

        After a pause of the process, this takes long, and the job would wait for it.
        """
        first, *others = self._queue_states
        is_soon = 0 < first.claim_at < time.monotonic() + _SILENCE
        if others or is_soon or not self._is_idle(first):
            return None
        count, slots = self._room_ahead()
        if not count:
            return None
        part = _QueueCalls(0, first, [], [], count, slots, reads_clock=False)
        return _Foreseen([part], self._client.encode([first.foresee(count, slots)]))

    def _take_foreseen(self) -> _Foreseen | None:
        """Return the round trip that was foreseen, if nothing but the message has come."""
        foreseen, self._foreseen = self._foreseen, None
        first = self._queue_states[0]
        if foreseen is None or not first.is_woken or not self._is_idle(first):
            return None
        (part,) = foreseen.parts
        if (part.claim_for, part.slots) != self._room_ahead():
            return None
        self._listen()
        first.foreseen_sent()
        return foreseen

    def _is_idle(self, queue_state: QueueState) -> bool:
        """Whether the worker holds no job, and the next round trip can only be for a claim."""
        is_active = self._executor.busy or self.stopping or self.paused or self._burst
        return not is_active and queue_state.is_quiet

    def _room_ahead(self) -> tuple[int, int]:
        """Return how many jobs an idle worker claims from its only queue, and how many ahead."""
        count = self._most(self._free())
        return count, min(count, self._executor.free_slots)

    async def _exchange(
        self, parts: Sequence[_QueueCalls], commands: Sequence[Command[Any]] | None = None
    ) -> None:
        """Make one round trip with notes, outcomes and claims."""
        if commands is None:
            each = (part.commands(self._executor.busy, self._burst) for part in parts)
            commands = [*chain.from_iterable(each)]
        sent = time.monotonic()
        self._exchanges = True
        if self.aborted:
            self._set_limit(_LAST_ROUND_TRIP)
        try:
            replies = await self._client.attempt_many(commands)
        except BideError as error:
            for part in parts:
                part.queue_state.put_back(part.settles)
                self._back_off(part.queue_state, error)
            return
        finally:
            self._exchanges = False
            if self.aborted and not self._limit.expired():
                self._set_limit(None)
        arrived = self._client.answered
        left = iter(replies)
        for part in parts:
            self._read(part, part.read(left), sent, arrived)

    def _read(self, part: _QueueCalls, replies: _QueueReplies, sent: float, arrived: float) -> None:
        queue_state, settles = part.queue_state, part.settles
        refused = next((reply for reply in replies.notes if reply is not None), None)
        if refused is not None:
            log.info("queue %s: notes of jobs were refused: %s", queue_state.queue, refused)
        failed = _error_of(replies.verdicts) or _error_of(replies.claim)
        is_stale = isinstance(replies.claim, Claim) and replies.claim.stale
        if failed is not None:
            # A repeat has the same ids: an outcome that was applied returns the same reply.
            queue_state.put_back(settles)
        else:
            if not is_stale:
                queue_state.succeeded()
            if isinstance(replies.verdicts, list):
                self._note_verdicts(queue_state, settles, replies.verdicts)
                if part.claim_for is None and self._burst:  # no wake-up messages
                    queue_state.check = True
        if isinstance(replies.claim, Claim):
            self.polled = arrived
            self._polling_order.note_taken(part.place, len(replies.claim.jobs))
            claim = replies.claim
            if isinstance(replies.server_us, int):
                claim = claim._replace(read_us=max(claim.now_us, replies.server_us))
            self._take(queue_state, claim, sent, arrived)
            if is_stale:
                failed = ServerRefused("The server has seen a later claim of this worker.")
        if failed is not None:
            self._back_off(queue_state, failed)

    def _take(self, queue_state: QueueState, reply: Claim, sent: float, arrived: float) -> None:
        queue_state.claimed(reply, sent, arrived)
        if reply.post:
            self._relay.submit(queue_state.keys)
        self._refills.send(queue_state.keys, reply.thin)
        if reply.lost:
            self._crashes.found(queue_state, reply.lost)
        self._alone = self._alone or reply.alone
        if reply.drain:
            self._drain_until = time.monotonic() + _DRAIN
            asyncio.get_running_loop().call_later(_DRAIN, self.wake)
        if self.stopping or self.paused or time.monotonic() - sent > queue_state.lease * 2 / 3:
            # The process may have been paused for so long that the leases have passed to others.
            self._executor.decline(queue_state, reply.jobs, sent)
        else:
            self._executor.submit(queue_state, reply, sent, arrived)

    def _note_verdicts(
        self, queue_state: QueueState, settles: Sequence[Settle], verdicts: Sequence[Verdict]
    ) -> None:
        runs = self._executor.mark_recorded(settles)
        if (metrics := queue_state.metrics) is not None:
            metrics.note_settles(settles, verdicts, runs)
        if verdicts.count("ok") == len(settles):
            return
        if "full" in verdicts:
            self._warn_of_results(queue_state)
        for settle, verdict, run in zip(settles, verdicts, runs, strict=True):
            if verdict == "lost":
                with run.named() if run else nullcontext():
                    log.warning(
                        "job %s: the outcome (%s) came after its lease had passed to another "
                        "worker, and was refused",
                        short_id(settle.id),
                        settle.outcome,
                        extra={"job_id": short_id(settle.id), "queue": queue_state.queue},
                    )

    def _warn_of_results(self, queue_state: QueueState) -> None:
        """Warn that results are dropped, at most once a minute."""
        now = time.monotonic()
        if now < queue_state.quiet_until:
            return
        queue_state.quiet_until = now + _WARN_EVERY
        log.warning(
            "queue %s: the server drops the oldest results, because results of 2,000 bytes or more "
            "exceed their budget; return less, or raise Retention(results=...)",
            queue_state.queue,
        )

    def _back_off(self, queue_state: QueueState, error: BideError) -> None:
        """Pause a queue for a short, jittered time; the same calls are then repeated."""
        if isinstance(error, ScriptBug):
            raise error
        reason = str(error)
        if queue_state.failed(reason):
            log.warning("queue %s: %s Trying again until it works.", queue_state.queue, reason)
        held = self._executor.busy or any(queue_state.settles for queue_state in self._queue_states)
        if self.aborted or (self.stopping and not held and queue_state.failures >= _LAST_TRIES):
            self.cut_off = True  # held jobs return to the queue when their leases end
            return
        queue_state.resting = True
        pause = pause_after(queue_state.failures)
        asyncio.get_running_loop().call_later(pause, self._resume, queue_state)

    def _resume(self, queue_state: QueueState) -> None:
        queue_state.resting = False
        self.wake()

    async def _wait(self) -> None:
        """Sleep until the alarm, a wake-up message, the end of a job, or a request to stop."""
        if self._finished():
            return
        empty = [s for s in self._queue_states if not s.resting and not s.check]
        if empty:
            await self._set_alarm(min(empty, key=lambda queue_state: queue_state.claim_at))
            self._foreseen = self._foresee()
        await self._wakeup.wait()

    async def _set_alarm(self, first: QueueState) -> None:
        """Set the alarm for the queue that is due first.

        After a pause, the first steps of a process run several times slower. So after a silence, a
        ping is sent shortly before a deadline, to warm up the caches, the socket and the server. A
        claim ahead of the deadline needs none.
        """
        ahead = first.claim_at - time.monotonic()
        if not self._free() or not self._executor.free_slots:
            self._alarm.set(first.until)  # without a slot, precision has no effect
            return
        if first.exact and not first.lead and ahead > _SILENCE:
            self._is_cold = True
            self._alarm.set(first.claim_at - _WARM_UP)
            return
        if self._is_cold and ahead > 0:
            await self._client.ping(first.keys["meta"])
        self._is_cold = False
        self._alarm.set(first.claim_at)

    def _relay_outcomes(self, queues: set[str]) -> None:
        """Claim from these queues: outcomes were delivered to them, so their jobs may be due."""
        for queue_state in self._queue_states:
            queue_state.check = queue_state.check or queue_state.queue in queues
        self._wakeup.set()

    def _report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        self._executor.report(run, how, has_failed)

    def _on_wakeup(self, queue_state: QueueState, caller: str) -> None:
        queue_state.on_wakeup(caller)
        self._wakeup.set()


_LOOK_EVERY: Final = 1.0


async def stop_when_idle(executor: Executor, max_idle: float, stop: Callable[[], None]) -> None:
    """Stop the worker once it has held no job for `max_idle` seconds."""
    last, seen = time.monotonic(), 0
    while True:
        now = time.monotonic()
        if executor.busy or executor.executed != seen:
            last, seen = now, executor.executed
        left = last + max_idle - now
        if left <= 0:
            log.info("stopping after %g s without a job", max_idle)
            stop()
            return
        await asyncio.sleep(min(left, _LOOK_EVERY))
