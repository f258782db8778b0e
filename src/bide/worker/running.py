"""From a claimed job to its outcome: decode, find the function, run it, settle how it ended.

A coroutine function runs as a task on the event loop, a plain function in a thread. Whatever goes
wrong inside ends this job and no other: a body that cannot be decoded, a task that is not served,
an argument or a result that does not fit, any exception, a time-out. `calling` makes the call,
`judging` says what its end means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from bide.current import CurrentJob, enter
from bide.errors import BideError
from bide.job import Claimed
from bide.middleware import used
from bide.ops.consume import Said, Settle
from bide.payload.codec import DEFAULT_TIMEOUT, decode_envelope, open_envelope
from bide.payload.serializers import Codec
from bide.task import Function, Policy, Served
from bide.worker import judging
from bide.worker.calling import (
    Call,
    call_back,
    call_back_async,
    from_thread,
    policy_for,
    prepare,
)
from bide.worker.deadlines import Deadlines
from bide.worker.judging import Ended
from bide.worker.leases import GRACE
from bide.worker.lifespan import Lifespan
from bide.worker.station import Station
from bide.worker.threads import Threads

log = logging.getLogger("bide.worker")

SAY_AFTER: Final = 0.3
"""Seconds after which what jobs say is sent, if no other round trip takes it along."""

_A_LITTLE: Final = "+1000000"
_DEFAULT: Final = Policy()


class Run:
    """One job while this worker holds it."""

    __slots__ = (
        "asked",
        "claimed",
        "claimed_at",
        "codec",
        "deadline",
        "decided",
        "ended",
        "job",
        "lost",
        "policy",
        "say_soon",
        "station",
        "task",
        "task_name",
        "timed_out",
    )

    def __init__(
        self, station: Station, claimed: Claimed, claimed_at: float, say_soon: Callable[[], None]
    ) -> None:
        self.station = station
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.say_soon = say_soon
        self.deadline = claimed_at + DEFAULT_TIMEOUT
        self.policy = _DEFAULT
        self.codec: Codec = "json"
        self.task_name = "?"
        self.task: asyncio.Task[None] | None = None
        self.job: CurrentJob | None = None
        self.decided: Ended | None = None
        """How it ended, while its callback runs: whatever becomes of that, this stands."""
        self.ended = False
        self.lost = False
        self.asked = False
        """Someone has asked for its end."""
        self.timed_out = False

    def say(self, kind: str, text: bytes) -> None:
        """Gather a note for the next round trip; any thread may call."""
        station = self.station
        station.said.append(Said(self.claimed.id, self.claimed.token, kind, text))
        if not station.has_said:
            station.has_said = True
            self.say_soon()

    def elapsed(self) -> float:
        """Seconds since the job was first due."""
        claimed = self.claimed
        return (claimed.token - claimed.first_us) / 1e6 + time.monotonic() - self.claimed_at


class Running:
    """All jobs that a worker runs."""

    def __init__(
        self,
        worker: str,
        served: Served,
        lifespan: Lifespan,
        allow_pickle: bool,
        changed: Callable[[], None],
    ) -> None:
        """Set up, in the event loop that will run the jobs.

        Args:
            worker: the worker's name.
            served: the tasks it runs.
            lifespan: the resources that are open.
            allow_pickle: whether bodies that were pickled are read.
            changed: called in the loop's thread when there is something to send.
        """
        self._worker = worker
        self._served = served
        self._lifespan = lifespan
        self._allow_pickle = allow_pickle
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._wait = from_thread(self._loop)
        self._threads = Threads(f"bide-{worker}")
        self._deadlines: Deadlines[Run] = Deadlines(self._loop, self._expire)
        self._held: dict[int, Run] = {}
        self._accepted: list[Run] = []
        self._unconfirmed: dict[Settle, Run] = {}
        self._stuck = 0
        self._from_threads: deque[tuple[Run, Ended]] = deque()
        self._collecting = False
        self._callbacks: set[asyncio.Task[None]] = set()
        self.executed = 0

    def __len__(self) -> int:
        """How many slots are taken: held jobs, and threads that outlast their time-out."""
        return len(self._held) + self._stuck

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    @property
    def calls_back(self) -> bool:
        """Whether callbacks run of jobs that have ended."""
        return bool(self._callbacks)

    def leased(self) -> list[Run]:
        """What must not lose its lease; safe to call in any thread.

        That is all that is held, and what has ended for as long as the server has not confirmed it.
        """
        return [*self._held.values(), *self._unconfirmed.values()]

    def confirmed(self, settles: Sequence[Settle]) -> None:
        """The server has taken note of these outcomes."""
        for settle in settles:
            self._unconfirmed.pop(settle, None)

    def accept(self, station: Station, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Take jobs over; they start in the next turn of the loop.

        By then the next round trip has been sent, so the server works while they run.
        """
        for claimed in jobs:
            run = Run(station, claimed, claimed_at, self._say_soon)
            self._held[id(run)] = run
            self._accepted.append(run)
        if jobs:
            self._loop.call_soon(self._start_accepted)

    def _start_accepted(self) -> None:
        accepted, self._accepted = self._accepted, []
        for run in accepted:
            if run.ended:  # given back in the meantime
                continue
            try:
                self._start(run)
            except Exception:
                # Not the job's fault: no thread is to be had, for one.
                log.exception("job %s could not be started, and waits a little", run.claimed.id)
                self._end(run, ("snooze", _A_LITTLE, b""))

    def _start(self, run: Run) -> None:
        if run.asked:
            self._end(run, ("cancel", "", b""))
            return
        try:
            envelope = decode_envelope(run.claimed.body)
            head = envelope.body
            run.task_name = head.task if head.task.isprintable() else repr(head.task)
            run.codec = head.codec
            run.policy = policy_for(head, _DEFAULT)
            run.job = self._current(run, head.meta)
            target = self._served.find(head.task)
            run.policy = policy_for(head, target.policy)
            if run.claimed.reclaims and run.policy.on_crash == "fail":
                raise judging.crashed()
            body = open_envelope(envelope, allow_pickle=self._allow_pickle)
            call = prepare(body, target, self._lifespan, used())
        except BideError as error:
            self._end_unrun(run, error)
            return
        run.deadline = time.monotonic() + run.policy.timeout
        self._deadlines.add(run)
        if target.is_async:
            run.task = self._loop.create_task(self._run_async(run, call, run.job))
        else:
            # A context of its own, as each task has: what one job sets, the next must not see.
            context = copy_context()
            job = run.job
            self._threads.submit(lambda: context.run(self._run_in_thread, run, call, job))

    def _current(self, run: Run, meta: Mapping[str, Any] | None) -> CurrentJob:
        return CurrentJob(run.station.queue, self._worker, run.task_name, run.claimed, run, meta)

    def ask(self, channel: str, id: str) -> None:
        """Someone wants a job to end: a coroutine is cancelled, a plain function can see it.

        Args:
            channel: that of the job's queue, because another queue may have a job of the same id.
            id: the job.
        """
        for run in list(self._held.values()):
            if run.claimed.id != id or run.station.keys["asked"] != channel or run.asked:
                continue
            run.asked = True
            if run.task is not None and run.decided is None:
                run.task.cancel()
                # A task cancelled before its first step (uvloop does so) runs none of ours.
                run.task.add_done_callback(partial(self._end_cancelled, run))

    def abandon(self) -> None:
        """Give all jobs back without using an attempt; cancel those that can be."""
        for run in list(self._held.values()):
            self._end(run, ("release", "", b""))
            if run.task is not None:
                run.task.cancel()

    def close(self) -> None:
        """Let idle threads end."""
        self._deadlines.close()
        self._threads.close()

    async def _run_async(self, run: Run, call: Call, job: CurrentJob) -> None:
        enter(job)
        try:
            result = await call.run_async(job)
        except BaseException as raised:
            error = judging.meant(run, raised)
            ended = judging.raised(run, error, self._served)
            value: object = error
        else:
            ended = judging.completed(run, result)
            value = result
        callback = self._callback(run, ended)
        if callback is not None:
            run.decided = ended
            with suppress(asyncio.CancelledError):  # its time is over; the outcome stands
                await self._call_back(run, callback, job, value)
        self._end(run, ended)

    def _run_in_thread(self, run: Run, call: Call, job: CurrentJob) -> None:
        enter(job)
        try:
            result = call.run(job, self._wait)
        except BaseException as raised:
            error = judging.meant(run, raised)
            ended = judging.raised(run, error, self._served)
            value: object = error
        else:
            ended = judging.completed(run, result)
            value = result
        callback = self._callback(run, ended)
        if callback is not None:
            run.decided = ended
            call_back(callback, self._served, job, value, self._wait)
        self._from_threads.append((run, ended))
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the loop has closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._collect)

    async def _call_back(
        self, run: Run, callback: Function | str, job: CurrentJob, value: object
    ) -> None:
        """Run a callback within the job's time, and a grace for one that is told of its end."""
        enter(job)
        with suppress(TimeoutError):
            async with asyncio.timeout(run.deadline + GRACE - time.monotonic()):
                await call_back_async(callback, self._served, job, value)

    def _callback(self, run: Run, ended: Ended) -> Function | str | None:
        """What is to be called now that a run has ended so."""
        if run.ended:
            return None
        if ended[0] == "complete":
            return run.policy.on_success
        return run.policy.on_failure if ended[0] == "fail" else None

    def _say_soon(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, SAY_AFTER, self._changed)

    def _collect(self) -> None:
        self._collecting = False  # before looking, so that what comes later is collected again
        while self._from_threads:
            run, ended = self._from_threads.popleft()
            if run.ended and run.timed_out:
                self._stuck -= 1
                self._changed()
            self._end(run, ended)

    def _expire(self, run: Run) -> None:
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()
            # A task that is cancelled before its first step (uvloop does so) runs none of ours.
            run.task.add_done_callback(lambda _: self._end_overrun(run))
        else:
            # A thread cannot be stopped: its job ends here, its slot only when it returns.
            self._stuck += 1
            log.warning("%d slots are held by threads past their time-out", self._stuck)
            self._end_overrun(run)

    def _end_overrun(self, run: Run) -> None:
        if not run.ended and run.decided is not None:  # only its callback took too long
            self._end(run, run.decided)
        elif not run.ended:
            self._end_unrun(run, judging.overrun(run))

    def _end_unrun(self, run: Run, error: BaseException) -> None:
        """End a job whose function has not come to an end, or was never called."""
        ended = judging.raised(run, error, self._served)
        callback = self._callback(run, ended)
        self._end(run, ended)
        if callback is not None:
            job = run.job or self._current(run, None)
            task = self._loop.create_task(self._call_back(run, callback, job, error))
            self._callbacks.add(task)
            task.add_done_callback(self._called_back)

    def _called_back(self, task: asyncio.Task[None]) -> None:
        self._callbacks.discard(task)
        self._changed()

    def _end_cancelled(self, run: Run, task: asyncio.Task[None]) -> None:
        if not run.ended:
            self._end(run, run.decided or ("cancel", "", b""))

    def _end(self, run: Run, ended: Ended) -> None:
        if run.ended:
            return
        run.ended = True
        del self._held[id(run)]
        outcome, when, data = ended
        if outcome not in ("release", "snooze"):
            self.executed += 1
            log.debug("%s (job %s): %s", run.task_name, run.claimed.id, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.station.settles.append(settle)
        self._changed()
