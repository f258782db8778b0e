"""Runs claimed jobs in this process: decodes a job, finds its function, calls it, and settles it.

A coroutine function runs as a task on the event loop, a plain function in a thread. An error ends
only the job in which it occurs: a body that cannot be decoded, a task that is not served, an
invalid argument or result, any exception, a time-out. `run.invoke` makes the call, and
`run.outcome` decides the outcome.
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
from bide.worker.run import outcome as outcomes
from bide.worker.run.invoke import Invocation, from_thread, identify_if_possible, prepare, read
from bide.worker.run.outcome import RunOutcome
from bide.worker.run.running_job import BEGUN, UNBEGUN, UNCOUNTED, Ended, RunningJob, log_end
from bide.worker.threads import Threads
from bide.worker.unknown_tasks import UnknownTasks

log = Log("bide.worker")

NOTES_DELAY: Final = 0.3
"""Seconds after which notes are sent, if no other round trip has taken them."""

ENOUGH: Final = 256
"""Jobs among which the cost of a round trip is small for each. A worker with fewer slots prefetches
quick jobs."""

FEW: Final = 128
"""The same limit for a worker with few slots, where a slow job delays the jobs behind it more."""

_A_LITTLE: Final = "+1000000"


class LocalExecutor:
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
        """Set up, in the event loop that will run the jobs.

        Args:
            worker: the worker's name.
            served: the tasks that it runs.
            concurrency: how many jobs may run at the same time.
            max_jobs: after how many jobs the worker stops.
            pickled: the queues whose pickled arguments are read.
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
        """The initial context of each job, so that a job sees no context variables of another."""
        self._wait = from_thread(self._loop)
        self._threads = Threads(f"bide-{worker}")
        self._deadlines: Deadlines[RunningJob] = Deadlines(self._loop, self._expire)
        self._held: dict[int, RunningJob] = {}
        self._waiting: deque[RunningJob] = deque()
        """Jobs that wait for a slot."""
        self._starting = False
        self._checking = False
        self._prefetch = Prefetch()
        self._moved_at = 0.0
        self._unconfirmed: dict[Settle, RunningJob] = {}
        self._stuck = 0
        self._from_threads: deque[RunningJob] = deque()
        self._collecting = False
        self._callbacks: set[asyncio.Task[None]] = set()
        self.executed = 0
        self.unknown_tasks: Final = UnknownTasks()

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
    def is_spent(self) -> bool:
        """Whether it has run `max_jobs` jobs."""
        return self._max_jobs is not None and self.executed >= self._max_jobs

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    def snapshot(self) -> list[RunningTask]:
        """Return the running jobs."""
        return [run.snapshot() for run in self._held.values() if run.begun_at]

    def rss(self) -> int:
        """Return the memory in bytes of the processes that run jobs."""
        return rss(os.getpid())

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks of ended jobs still run."""
        return bool(self._callbacks)

    def held_jobs(self) -> list[RunningJob]:
        """Return the jobs that must keep their leases; safe to call in any thread.

        These are the held jobs, and the ended jobs whose outcomes the server has not recorded yet.
        """
        return [*self._held.values(), *self._unconfirmed.values()]

    def mark_recorded(self, settles: Sequence[Settle]) -> list[RunningJob | None]:
        """Forget the outcomes that the server has recorded; return their runs."""
        return [self._unconfirmed.pop(settle, None) for settle in settles]

    def submit(self, queue_state: QueueState, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Accept claimed jobs; they start in the next turn of the event loop.

        By then the next round trip has been sent, so the server works while they run.
        """
        for claimed in jobs:
            run = RunningJob(queue_state, claimed, claimed_at, self._send_notes_soon)
            self._held[id(run)] = run
            self._waiting.append(run)
        self._fill_slots_soon()

    def _fill_slots_soon(self) -> None:
        if self._waiting and not self._starting:
            self._starting = True
            self._loop.call_soon(self._fill_slots)

    def _fill_slots(self) -> None:
        """Start the jobs that have waited longest in the free slots."""
        self._starting = False
        free = self._concurrency - (len(self) - len(self._waiting))
        while self._waiting and free > 0:
            run = self._waiting.popleft()
            run.begun_at = self._moved_at = time.monotonic()
            try:
                self._context.copy().run(self._start, run)
            except Exception:
                # Not an error of the job: for instance, the system cannot start a thread.
                with run.named():
                    log.exception(
                        "job %s could not be started, and waits a little", short_id(run.claimed.id)
                    )
                self._end(run, ("snooze", _A_LITTLE, b""))
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
        if now - self._moved_at > STALE:
            for run in self._waiting:
                self._end(run, ("cancel", "", b"") if run.asked else UNBEGUN)
            self._waiting.clear()
        self._fill_slots()

    def _start(self, run: RunningJob) -> None:
        """Start a job; the current context becomes the job's context."""
        if run.asked:
            self._end(run, ("cancel", "", b""))
            return
        try:
            allow_pickle = run.queue_state.queue in self._pickled
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
            context = copy_context()  # a copy: this thread may still be in its own context
            job = run.job
            self._threads.submit(lambda: context.run(self._run_in_thread, run, call, job))

    def request_cancel(self, channel: str, id: str) -> None:
        """Cancel a running job: a coroutine is cancelled, a plain function must check for it.

        Args:
            channel: the channel of the job's queue, because two queues may share an id.
            id: the job's id.
        """
        for run in list(self._held.values()):
            if run.claimed.id != id or run.queue_state.keys["asked"] != channel or run.asked:
                continue
            run.asked = True
            if run.task is not None and run.decided is None:
                run.task.cancel()
                # A task cancelled before its first step (as uvloop does) never runs `_run_async`.
                run.task.add_done_callback(partial(self._end_cancelled, run))

    def release_all(self) -> None:
        """Release all jobs without using an attempt, and cancel the coroutines.

        If a function has ended and only the job's callback still runs, the outcome is kept.
        """
        self._collect()
        self._waiting.clear()
        for run in list(self._held.values()):
            run.decide(BEGUN if run.begun_at else UNBEGUN)
            self._end(run, run.decided)
            if run.task is not None:
                run.task.cancel()

    async def open(self) -> None:
        """Open the resources; an error of one stops the worker."""
        await self._lifespan.open()

    async def close(self) -> None:
        """Let idle threads end, and close the resources."""
        self._deadlines.close()
        self._threads.close()
        await self._lifespan.close()

    async def _run_async(self, run: RunningJob, call: Invocation, job: CurrentJob) -> None:
        try:
            outcome = outcomes.completed(run, await call.run_async(job))
        except BaseException as error:
            outcome = outcomes.raised(run, error, self._served, in_run=True)
        if run.decide(outcome.ended) and failure_hooks.is_due(outcome):
            with suppress(asyncio.CancelledError):  # the time-out expired; the outcome stays
                await self._call_back(run, outcome)
        self._end(run, run.decided)

    def _run_in_thread(
        self, run: RunningJob, call: Invocation, job: CurrentJob
    ) -> Callable[[], None]:
        try:
            outcome = outcomes.completed(run, call.run(job, self._wait))
        except BaseException as error:
            outcome = outcomes.raised(run, error, self._served, in_run=True)
        if run.decide(outcome.ended) and failure_hooks.is_due(outcome):
            failure_hooks.call(run, outcome, self._served, self._wait)
        return partial(self._ended_in_thread, run)

    def _ended_in_thread(self, run: RunningJob) -> None:
        self._from_threads.append(run)
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the event loop has closed
                self._loop.call_soon_threadsafe(self._collect)

    async def _call_back(self, run: RunningJob, outcome: RunOutcome) -> None:
        """Call hooks and callback, within the rest of the job's time-out and a grace."""
        left = max(0.0, run.deadline - time.monotonic()) + GRACE
        await failure_hooks.call_async(run, outcome, self._served, self._threads.run, left)

    def _send_notes_soon(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, NOTES_DELAY, self._changed)

    def _collect(self) -> None:
        self._collecting = False  # before the loop, so that later jobs schedule `_collect` again
        while self._from_threads:
            run = self._from_threads.popleft()
            if run.ended and run.timed_out:
                self._stuck -= 1
                self._fill_slots_soon()
                self._changed()
            self._end(run, run.decided)

    def _expire(self, run: RunningJob) -> None:
        self._collect()  # a blocked event loop may not know yet that the job ended in time
        if run.ended:
            return
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()
            # A task cancelled before its first step (as uvloop does) never runs `_run_async`.
            run.task.add_done_callback(lambda _: self._end_unrun(run, outcomes.overrun(run)))
            self._loop.call_later(GRACE, self._give_up, run, run.task)
        else:
            # A thread cannot be stopped: the job ends here, and its slot is free when it returns.
            self._stuck += 1
            log.warning("%d slots are held by jobs past their time-out", self._stuck)
            self._end_unrun(run, outcomes.overrun(run))

    def _give_up(self, run: RunningJob, task: asyncio.Task[None]) -> None:
        """End the job of a coroutine that ignores its cancellation; its slot stays in use."""
        if task.done():
            return
        self._stuck += 1
        task.add_done_callback(self._unstuck)
        log.warning("%d slots are held by jobs past their time-out", self._stuck)
        self._end_unrun(run, outcomes.overrun(run))

    def _unstuck(self, task: asyncio.Task[None]) -> None:
        self._stuck -= 1
        self._fill_slots_soon()
        self._changed()

    def _end_unrun(self, run: RunningJob, error: BaseException) -> None:
        """End a job whose function has not returned, or was never called."""
        if run.decided is None:
            with run.named():
                outcome = outcomes.raised(run, error, self._served)
                if run.decide(outcome.ended) and failure_hooks.is_due(outcome):
                    self._call_back_soon(run, outcome)
        self._end(run, run.decided)  # also if only a callback takes too long

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Call the hooks and the callback after an attempt that was lost by another worker."""
        self._context.copy().run(self._report, run, how, has_failed)

    def _report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        identify_if_possible(run, self._served)
        outcome = outcomes.lost(run, how, has_failed)
        if failure_hooks.is_due(outcome):
            self._call_back_soon(run, outcome)

    def _call_back_soon(self, run: RunningJob, outcome: RunOutcome) -> None:
        task = self._loop.create_task(self._call_back(run, outcome))
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
            self._prefetch.note_run(self._moved_at - run.begun_at)
            if run.queue_state.metrics is not None:
                run.queue_state.metrics.note_run(self._moved_at - run.begun_at)
            self._fill_slots_soon()
        outcome, when, data = ended
        if run.missing:
            run.queue_state.note_task(served=False)
            self.unknown_tasks.note(run)
            if outcome == "snooze":
                when = self.unknown_tasks.next_look(run, -(-self.capacity // 2))
        elif run.claimed.missing_us and outcome not in UNCOUNTED:
            run.queue_state.note_task(served=True)
        if outcome not in UNCOUNTED:
            self.executed += 1
            log_end(run, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.queue_state.settles.append(settle)
        self._changed()
