"""From a claimed job to its outcome: decode, find the function, run it, settle how it ended.

A coroutine function runs as a task on the event loop, a plain function in a thread. Whatever goes
wrong inside ends this job and no other: a body that cannot be decoded, a task that is not served,
an argument or a result that does not fit, any exception, a time-out. `calling` makes the call,
`judging` says what its end means.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from bide.errors import BideError
from bide.logs import Log
from bide.model.context import CurrentJob
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Settle
from bide.tasks.middleware import used
from bide.tasks.task import TaskRegistry
from bide.worker import failure_hooks
from bide.worker.deadlines import Deadlines
from bide.worker.heartbeat import GRACE
from bide.worker.lifespan import Lifespan
from bide.worker.processes.linux import rss
from bide.worker.queue_state import STALE, Prefetch, QueueState
from bide.worker.run import outcome as judging
from bide.worker.run.invoke import Invocation, from_thread, identify_if_possible, prepare, read
from bide.worker.run.outcome import RunOutcome
from bide.worker.run.running_job import BEGUN, UNBEGUN, UNCOUNTED, Ended, RunningJob, log_end
from bide.worker.threads import Threads
from bide.worker.unknown_tasks import UnknownTasks

log = Log("bide.worker")

SAY_AFTER: Final = 0.3
"""Seconds after which what jobs say is sent, if no other round trip takes it along."""

ENOUGH: Final = 256
"""Jobs at which a round trip costs little for each: a worker of fewer slots takes quick ones
ahead."""

FEW: Final = 128
"""The same for a worker of few slots, where what waits behind a slow job has few ways past it."""

_A_LITTLE: Final = "+1000000"


class LocalExecutor:
    """All jobs that a worker runs."""

    def __init__(
        self,
        worker: str,
        served: TaskRegistry,
        concurrency: int,
        max_jobs: int | None,
        pickled: Container[str],
        changed: Callable[[], None],
    ) -> None:
        """Set up, in the event loop that will run the jobs.

        Args:
            worker: the worker's name.
            served: the tasks it runs.
            concurrency: how many jobs may run at once.
            max_jobs: how many are enough.
            pickled: the queues whose arguments are read though they were pickled.
            changed: called in the loop's thread when there is something to send.
        """
        self._served = served
        self._lifespan = Lifespan()
        self._concurrency = concurrency
        self._max_jobs = max_jobs
        self._pickled = pickled
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """What each job's context begins as: what one job sets, the next must not see."""
        self._wait = from_thread(self._loop)
        self._threads = Threads(f"bide-{worker}")
        self._deadlines: Deadlines[RunningJob] = Deadlines(self._loop, self._expire)
        self._held: dict[int, RunningJob] = {}
        self._line: deque[RunningJob] = deque()
        """What waits for a slot."""
        self._starting = False
        self._looking = False
        self._pace = Prefetch()
        self._moved_at = 0.0
        self._unconfirmed: dict[Settle, RunningJob] = {}
        self._stuck = 0
        self._from_threads: deque[RunningJob] = deque()
        self._collecting = False
        self._callbacks: set[asyncio.Task[None]] = set()
        self.executed = 0
        self.unserved: Final = UnknownTasks()

    def __len__(self) -> int:
        """How many slots are taken: held jobs, and threads that outlast their time-out."""
        return len(self._held) + self._stuck

    @property
    def capacity(self) -> int:
        """How many jobs may be held now: one a slot, more where slots are few and jobs quick.

        A single slot is for who wants one after another, each chosen when it can begin.
        """
        capacity = self._concurrency
        if 1 < capacity < ENOUGH:
            enough = max(FEW, min(ENOUGH, 3 * capacity))
            capacity += min(enough - capacity, capacity * self._pace.ahead(enough))
        if self._max_jobs is None:
            return capacity
        return min(capacity, self._max_jobs - self.executed + self._stuck)

    @property
    def is_spent(self) -> bool:
        """Whether it has run as many jobs as it was to."""
        return self._max_jobs is not None and self.executed >= self._max_jobs

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    def snapshot(self) -> list[RunningTask]:
        """What runs."""
        return [run.snapshot() for run in self._held.values() if run.begun_at]

    def rss(self) -> int:
        """Bytes of memory of the processes that run jobs."""
        return rss(os.getpid())

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks run of jobs that have ended."""
        return bool(self._callbacks)

    def held_jobs(self) -> list[RunningJob]:
        """What must not lose its lease; safe to call in any thread.

        That is all that is held, and what has ended for as long as the server has not confirmed it.
        """
        return [*self._held.values(), *self._unconfirmed.values()]

    def mark_recorded(self, settles: Sequence[Settle]) -> list[RunningJob | None]:
        """The server has taken note of these outcomes; return their runs."""
        return [self._unconfirmed.pop(settle, None) for settle in settles]

    def submit(self, station: QueueState, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Take jobs over; they start in the next turn of the loop.

        By then the next round trip has been sent, so the server works while they run.
        """
        for claimed in jobs:
            run = RunningJob(station, claimed, claimed_at, self._send_notes_soon)
            self._held[id(run)] = run
            self._line.append(run)
        self._fill_slots_soon()

    def _fill_slots_soon(self) -> None:
        if self._line and not self._starting:
            self._starting = True
            self._loop.call_soon(self._fill_slots)

    def _fill_slots(self) -> None:
        """Start what has waited longest in each slot that is free."""
        self._starting = False
        free = self._concurrency - (len(self) - len(self._line))
        while self._line and free > 0:
            run = self._line.popleft()
            run.begun_at = self._moved_at = time.monotonic()
            try:
                self._context.copy().run(self._start, run)
            except Exception:
                # Not the job's fault: no thread is to be had, for one.
                with run.named():
                    log.exception(
                        "job %s could not be started, and waits a little", short_id(run.claimed.id)
                    )
                self._end(run, ("snooze", _A_LITTLE, b""))
            free -= not run.ended
        if self._line and not self._looking:
            self._looking = True
            self._loop.call_later(STALE, self._release_stale)

    def _release_stale(self) -> None:
        """Give back what waits behind jobs that are slower than those before them."""
        self._looking = False
        now = time.monotonic()
        began = [run.begun_at for run in self._held.values() if run.begun_at]
        self._pace.note_running(now - min(began, default=now))
        if now - self._moved_at > STALE:
            for run in self._line:
                self._end(run, ("cancel", "", b"") if run.asked else UNBEGUN)
            self._line.clear()
        self._fill_slots()

    def _start(self, run: RunningJob) -> None:
        """Start a job; the context in which this is called becomes its own."""
        if run.asked:
            self._end(run, ("cancel", "", b""))
            return
        try:
            allow_pickle = run.station.queue in self._pickled
            target, body = read(run, self._served, allow_pickle=allow_pickle)
            call = prepare(body, target, self._lifespan, used())
        except BideError as error:
            self._end_unrun(run, error)
            return
        assert run.job is not None
        run.deadline = run.begun_at + run.policy.timeout
        self._deadlines.add(run)
        if target.is_async:
            run.task = self._loop.create_task(self._run_async(run, call, run.job))
        else:
            context = copy_context()  # which another thread may enter before this one has left it
            job = run.job
            self._threads.submit(lambda: context.run(self._run_in_thread, run, call, job))

    def request_cancel(self, channel: str, id: str) -> None:
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

    def release_all(self) -> None:
        """Give all jobs back without using an attempt; cancel those that can be.

        A job that has come to its end, and only its callback has not, has ended.
        """
        self._collect()
        self._line.clear()
        for run in list(self._held.values()):
            run.decide(BEGUN if run.begun_at else UNBEGUN)
            self._end(run, run.decided)
            if run.task is not None:
                run.task.cancel()

    async def open(self) -> None:
        """Open the resources; whatever one raises stops the worker."""
        await self._lifespan.open()

    async def close(self) -> None:
        """Let idle threads end, and close the resources."""
        self._deadlines.close()
        self._threads.close()
        await self._lifespan.close()

    async def _run_async(self, run: RunningJob, call: Invocation, job: CurrentJob) -> None:
        try:
            judged = judging.completed(run, await call.run_async(job))
        except BaseException as error:
            judged = judging.raised(run, error, self._served, in_run=True)
        if run.decide(judged.ended) and failure_hooks.is_due(judged):
            with suppress(asyncio.CancelledError):  # its time is over; the outcome stands
                await self._call_back(run, judged)
        self._end(run, run.decided)

    def _run_in_thread(
        self, run: RunningJob, call: Invocation, job: CurrentJob
    ) -> Callable[[], None]:
        try:
            judged = judging.completed(run, call.run(job, self._wait))
        except BaseException as error:
            judged = judging.raised(run, error, self._served, in_run=True)
        if run.decide(judged.ended) and failure_hooks.is_due(judged):
            failure_hooks.call(run, judged, self._served, self._wait)
        return partial(self._ended_in_thread, run)

    def _ended_in_thread(self, run: RunningJob) -> None:
        self._from_threads.append(run)
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the loop has closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._collect)

    async def _call_back(self, run: RunningJob, judged: RunOutcome) -> None:
        """Call hooks and callback, within what is left of the job's time and a grace."""
        left = max(0.0, run.deadline - time.monotonic()) + GRACE
        await failure_hooks.call_async(run, judged, self._served, self._threads.run, left)

    def _send_notes_soon(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, SAY_AFTER, self._changed)

    def _collect(self) -> None:
        self._collecting = False  # before looking, so that what comes later is collected again
        while self._from_threads:
            run = self._from_threads.popleft()
            if run.ended and run.timed_out:
                self._stuck -= 1
                self._fill_slots_soon()
                self._changed()
            self._end(run, run.decided)

    def _expire(self, run: RunningJob) -> None:
        self._collect()  # it may have ended in time: an event loop that was held up learns it late
        if run.ended:
            return
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()
            # A task that is cancelled before its first step (uvloop does so) runs none of ours.
            run.task.add_done_callback(lambda _: self._end_unrun(run, judging.overrun(run)))
            self._loop.call_later(GRACE, self._give_up, run, run.task)
        else:
            # A thread cannot be stopped: its job ends here, its slot only when it returns.
            self._stuck += 1
            log.warning("%d slots are held by jobs past their time-out", self._stuck)
            self._end_unrun(run, judging.overrun(run))

    def _give_up(self, run: RunningJob, task: asyncio.Task[None]) -> None:
        """A coroutine that goes on though it was cancelled: its job ends, its slot is held."""
        if task.done():
            return
        self._stuck += 1
        task.add_done_callback(self._unstuck)
        log.warning("%d slots are held by jobs past their time-out", self._stuck)
        self._end_unrun(run, judging.overrun(run))

    def _unstuck(self, task: asyncio.Task[None]) -> None:
        self._stuck -= 1
        self._fill_slots_soon()
        self._changed()

    def _end_unrun(self, run: RunningJob, error: BaseException) -> None:
        """End a job whose function has not come to an end, or was never called."""
        if run.decided is None:
            with run.named():
                judged = judging.raised(run, error, self._served)
                if run.decide(judged.ended) and failure_hooks.is_due(judged):
                    self._call_back_soon(run, judged)
        self._end(run, run.decided)  # also where only a callback takes too long

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Call what is to be called after an attempt that ended with another worker."""
        self._context.copy().run(self._report, run, how, has_failed)

    def _report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        identify_if_possible(run, self._served)
        judged = judging.lost(run, how, has_failed)
        if failure_hooks.is_due(judged):
            self._call_back_soon(run, judged)

    def _call_back_soon(self, run: RunningJob, judged: RunOutcome) -> None:
        task = self._loop.create_task(self._call_back(run, judged))
        self._callbacks.add(task)
        task.add_done_callback(self._called_back)

    def _called_back(self, task: asyncio.Task[None]) -> None:
        self._callbacks.discard(task)
        self._changed()

    def _end_cancelled(self, run: RunningJob, task: asyncio.Task[None]) -> None:
        run.decide(("cancel", "", b""))
        self._end(run, run.decided)

    def _end(self, run: RunningJob, ended: Ended | None) -> None:
        if run.ended or ended is None:
            return
        run.ended = True
        del self._held[id(run)]
        if run.begun_at:
            self._moved_at = time.monotonic()
            self._pace.note_run(self._moved_at - run.begun_at)
            if run.station.figures is not None:
                run.station.figures.note_run(self._moved_at - run.begun_at)
            self._fill_slots_soon()
        outcome, when, data = ended
        if run.missing:
            run.station.note_task(served=False)
            self.unserved.note(run)
            if outcome == "snooze":
                when = self.unserved.next_look(run, -(-self.capacity // 2))
        elif run.claimed.missing_us and outcome not in UNCOUNTED:
            run.station.note_task(served=True)
        if outcome not in UNCOUNTED:
            self.executed += 1
            log_end(run, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.station.settles.append(settle)
        self._changed()
