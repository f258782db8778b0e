"""Runs claimed jobs in this process: decodes a job, finds its function, calls it, and settles it.

A coroutine function runs as a task on the event loop, a plain function in a thread. An error ends
only the job in which it occurs: a body that cannot be decoded, a task that is not served, an
invalid argument or result, any exception, a time-out. `invoke` makes the call, and
`outcome` decides the outcome.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, Generic, Protocol, TypeVar
from weakref import ref

from bide.errors import BideError
from bide.logs import Log
from bide.model.ids import short_id
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Ended
from bide.tasks.task import TaskRegistry
from bide.worker import outcome as outcomes
from bide.worker.executors.base import Executor, Threads
from bide.worker.heartbeat import GRACE
from bide.worker.invoke import (
    Invocation,
    call_hooks,
    call_hooks_async,
    from_thread,
    hooks_due,
    identify_if_possible,
    prepare,
    read,
)
from bide.worker.lifespan import Lifespan
from bide.worker.outcome import RunOutcome
from bide.worker.processes.linux import rss
from bide.worker.queue_state import STALE
from bide.worker.running_job import CANCELLED, RunningJob


class Timed(Protocol):
    """Something that must end by `deadline`, a time of the loop's clock."""

    deadline: float
    ended: bool


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Calls back for each entry that has not ended by its deadline.

    It does not keep the entries: the deadline of a job that has ended may be far, and its arguments
    large.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._context = copy_context()
        """A context of no job: all jobs share the timer."""
        self._heap: list[tuple[float, int, ref[T]]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0  # uvloop's timer handle has no `when` once its time has passed
        self._compact_at = 1024

    def add(self, entry: T) -> None:
        """Watch an entry until its `ended` is true; the caller keeps it until then."""
        self._count += 1
        heapq.heappush(self._heap, (entry.deadline, self._count, ref(entry)))
        if len(self._heap) > self._compact_at:
            self._compact()
        if self._timer is None or entry.deadline < self._armed_for:
            self._arm()

    def close(self) -> None:
        """Stop watching all entries."""
        self._heap.clear()
        self._arm()

    def _compact(self) -> None:
        """Drop ended entries. The bound is twice the rest, so the cost is O(1) an entry."""
        self._heap = [item for item in self._heap if not _has_ended(item[2])]
        heapq.heapify(self._heap)
        self._compact_at = max(1024, 2 * len(self._heap))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._armed_for = self._heap[0][0]
            self._timer = self._loop.call_at(self._armed_for, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._heap and (self._heap[0][0] <= now or _has_ended(self._heap[0][2])):
                entry = heapq.heappop(self._heap)[2]()
                if entry is not None and not entry.ended:
                    self._expire(entry)
        finally:  # the other entries stay watched, even if one callback raised
            self._arm()


def _has_ended(watched: ref[T]) -> bool:
    entry = watched()
    return entry is None or entry.ended


log = Log("bide.worker")

ENOUGH: Final = 256
"""Jobs among which the cost of a round trip is small for each. A worker with fewer slots prefetches
quick jobs."""

FEW: Final = 128
"""The same limit for a worker with few slots, where a slow job delays the jobs behind it more."""

_MARGIN: Final = 0.1
"""Seconds in which hooks that were cancelled at the end of their grace may end."""

_SNOOZED: Final = Ended("snooze", due="+1000000")
"""Ends a job that could not be started because the system lacks something."""


class LocalExecutor(Executor):
    """Runs the jobs of a worker on its event loop and in threads."""

    def __init__(
        self,
        worker: str,
        served: TaskRegistry,
        concurrency: int,
        max_jobs: int | None,
        pickled: Container[str],
        changed: Callable[[], None],
    ) -> None:
        super().__init__(changed, max_jobs)
        self._served = served
        self._lifespan = Lifespan()
        self._concurrency = concurrency
        self._pickled = pickled
        self._context = copy_context()
        """The initial context of each job, so that a job sees no context variables of another."""
        self._wait = from_thread(self._loop)
        self._threads = Threads(f"bide-{worker}")
        self._deadlines: Deadlines[RunningJob] = Deadlines(self._loop, self._expire)
        self._starting = False
        self._checking = False
        self._stuck = 0
        self._from_threads: deque[RunningJob] = deque()
        self._collecting = False

    def __len__(self) -> int:
        """Return the slots in use: held jobs, and threads that run past their time-out."""
        return len(self._held) + self._stuck

    @property
    def capacity(self) -> int:
        """How many jobs may be held now: one per slot, and more if slots are few and jobs quick.

        With a single slot nothing is prefetched: each job is chosen when it can start.
        """
        capacity = self._concurrency
        if 1 < capacity < ENOUGH:
            enough = max(FEW, min(ENOUGH, 3 * capacity))
            capacity += min(enough - capacity, capacity * self._prefetch.ahead(enough))
        if self._max_jobs is None:
            return capacity
        return min(capacity, self._max_jobs - self.executed + self._stuck)

    @property
    def free_slots(self) -> int:
        """How many more jobs could start at once now; a job that waits for its time has a slot."""
        return max(0, min(self._concurrency, self.capacity) - len(self))

    def snapshot(self) -> list[RunningTask]:
        """Return the running jobs."""
        return [run.snapshot() for run in self._held.values() if run.begun_at]

    def rss(self) -> int:
        """Return the memory in bytes of the processes that run jobs."""
        return rss(os.getpid())

    def _start_waiting(self, *, at_once: bool = False) -> None:
        """Start waiting jobs in the next turn of the event loop, or at once.

        In the next turn, the next round trip has been sent, so the server works while they run.
        """
        if at_once:
            self._fill_slots()
        elif self._waiting and not self._starting:
            self._starting = True
            self._loop.call_soon(self._fill_slots)

    def _fill_slots(self) -> None:
        """Start the jobs that have waited longest in the free slots."""
        self._starting = False
        free = self._concurrency - (len(self) - len(self._waiting) - len(self._ahead))
        while self._waiting and free > 0:
            run = self._waiting.popleft()
            run.begun_at = self._moved_at = time.monotonic()
            try:
                self._context.copy().run(self._start, run)
            except Exception:
                # Not an error of the job: for instance, the system cannot start a thread.
                with run.named():
                    log.exception(
                        "job %s could not be started; it will be tried again soon",
                        short_id(run.claimed.id),
                    )
                self._end(run, _SNOOZED)
            free -= not run.ended
        if self._waiting and not self._checking:
            self._checking = True
            self._loop.call_later(STALE, self._release_stale)

    def _release_stale(self) -> None:
        """Release the waiting jobs if the running jobs are slower than the earlier ones."""
        self._checking = False
        now = time.monotonic()
        began = [run.begun_at for run in self._held.values() if run.begun_at]
        self._prefetch.note_running(now - min(began, default=now))
        if self._is_stalled:
            self._release_waiting()
        self._fill_slots()

    def _start(self, run: RunningJob) -> None:
        """Start a job; the current context becomes the job's context."""
        if run.cancel_requested:
            self._end(run, CANCELLED)
            return
        try:
            allow_pickle = run.queue_state.queue in self._pickled
            target = read(run, self._served, allow_pickle=allow_pickle)
            call = prepare(run, target, self._lifespan)
        except BideError as error:
            self._end_unrun(run, error)
            return
        run.deadline = run.begun_at + run.policy.timeout
        self._deadlines.add(run)
        if target.is_async:
            run.task = self._loop.create_task(self._run_async(run, call))
        else:
            context = copy_context()  # a copy: this thread may still be in its own context
            self._threads.submit(lambda: context.run(self._run_in_thread, run, call))

    def _cancel(self, run: RunningJob) -> None:
        """Cancel a coroutine; a plain function must check for the request."""
        if run.task is not None and run.decided is None:
            run.task.cancel()
            # A task cancelled before its first step (as uvloop does) never runs `_run_async`.
            run.task.add_done_callback(lambda _: self._end(run, CANCELLED))

    def _stop_running(self) -> None:
        for run in self._held.values():
            if run.task is not None:
                run.task.cancel()

    async def open(self) -> None:
        """Open the resources; an error of one stops the worker."""
        await self._lifespan.open()

    async def close(self) -> None:
        """Let idle threads end, and close the resources."""
        self._alarm.close()
        self._deadlines.close()
        self._threads.close()
        await self._lifespan.close()

    async def _run_async(self, run: RunningJob, call: Invocation) -> None:
        run.note_start(time.monotonic())
        try:
            outcome = outcomes.completed(run, await call.run_async())
        except BaseException as error:
            outcome = outcomes.raised(run, error, self._served, in_run=True)
        if run.decide(outcome.ended) and hooks_due(outcome):
            with suppress(asyncio.CancelledError):  # the time-out expired; the outcome stays
                await self._call_back(run, outcome)
        self._end(run)

    def _run_in_thread(self, run: RunningJob, call: Invocation) -> Callable[[], None]:
        run.note_start(time.monotonic())
        try:
            outcome = outcomes.completed(run, call.run(self._wait))
        except BaseException as error:
            outcome = outcomes.raised(run, error, self._served, in_run=True)
        if run.decide(outcome.ended) and hooks_due(outcome):
            call_hooks(run, outcome, self._served, self._wait)
        return partial(self._ended_in_thread, run)

    def _ended_in_thread(self, run: RunningJob) -> None:
        self._from_threads.append(run)
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the event loop has closed
                self._loop.call_soon_threadsafe(self._collect_ended)

    async def _call_back(self, run: RunningJob, outcome: RunOutcome) -> None:
        """Call hooks and callback, within the rest of the job's time-out and a grace."""
        left = max(0.0, run.deadline - time.monotonic()) + GRACE
        await call_hooks_async(run, outcome, self._served, self._threads.run, left)

    def _collect_ended(self) -> None:
        self._collecting = False  # first, so that later jobs schedule this again
        while self._from_threads:
            run = self._from_threads.popleft()
            if run.ended and run.timed_out:
                self._free_stuck_slot()
            self._end(run)

    def _expire(self, run: RunningJob) -> None:
        self._collect_ended()  # a blocked event loop may not know yet that the job ended in time
        if run.ended:
            return
        if run.decided is not None:  # it ended in time, and hooks or a callback run
            self._loop.call_later(GRACE + _MARGIN, self._give_up, run)
            return
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()
            # A task cancelled before its first step (as uvloop does) never runs `_run_async`.
            run.task.add_done_callback(lambda _: self._end_unrun(run, outcomes.overrun(run)))
            self._loop.call_later(GRACE, self._give_up, run)
        else:
            self._end_stuck(run)  # a thread cannot be stopped: its slot is free when it returns

    def _give_up(self, run: RunningJob) -> None:
        """End a job whose coroutine ignores its cancellation, or whose hooks do not end.

        Its slot stays in use.
        """
        self._collect_ended()
        if run.task is None:
            if not run.ended:
                run.timed_out = True
                self._end_stuck(run)
        elif not run.task.done():
            run.task.add_done_callback(lambda _: self._free_stuck_slot())
            self._end_stuck(run)

    def _end_stuck(self, run: RunningJob) -> None:
        """End a job past its time-out whose function still runs, and so holds a slot."""
        self._stuck += 1
        log.warning("slots held by jobs past their time-out: %d", self._stuck)
        self._end_unrun(run, outcomes.overrun(run))

    def _free_stuck_slot(self) -> None:
        self._stuck -= 1
        self._start_waiting()
        self._changed()

    def _end_unrun(self, run: RunningJob, error: BaseException) -> None:
        """End a job whose function has not returned, or was never called."""
        if run.decided is None:
            with run.named():
                outcome = outcomes.raised(run, error, self._served)
                if run.decide(outcome.ended) and hooks_due(outcome):
                    self._call_back_soon(run, outcome)
        self._end(run)  # also if only a callback takes too long

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Call the hooks and the callback after an attempt that was lost by another worker."""
        self._context.copy().run(self._report, run, how, has_failed)

    def _report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        identify_if_possible(run, self._served)
        outcome = outcomes.lost(run, how, has_failed)
        if hooks_due(outcome):
            self._call_back_soon(run, outcome)

    def _call_back_soon(self, run: RunningJob, outcome: RunOutcome) -> None:
        task = self._loop.create_task(self._call_back(run, outcome))
        self._callbacks.add(task)
        task.add_done_callback(self._called_back)

    def _called_back(self, task: asyncio.Task[None]) -> None:
        self._callbacks.discard(task)
        self._changed()

    def _end(self, run: RunningJob, ended: Ended | None = None) -> None:
        """End a job, and give its slot to the next one."""
        if run.ended:
            return
        super()._end(run, ended)
        if run.ended and run.begun_at:
            self._note_run(run, time.monotonic() - run.begun_at)
            self._start_waiting()
