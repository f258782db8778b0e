"""The interface of executors, and the life of a claimed job in them.

- **Submitted.** The worker passes claimed jobs. They wait in order until there is a slot: a place
  on the event loop or in a thread (`local`), or a free child process (`processes`).
- **Ahead.** A job that was claimed before it is due waits for its time first. The worker must not
  start it early. Until then the server may recall it: the worker releases it, so that it can be
  cancelled or changed as if it had not been claimed.
- **Started.** The time-out of a job counts from its start.
- **Cancelled.** A request marks the job. A job that waits ends without a start. In a job that runs,
  an exception is raised: the coroutine is cancelled, or its child receives a signal. A plain
  function in a thread must check for the request.
- **Timed out.** The same exceptions end a job at its deadline. After a grace, a job that does not
  end is given up (`local`), or its child is killed (`processes`).
- **Released.** The job returns to the queue without using an attempt: if it waits for too long, or
  when the worker ends.
- **Ended.** The outcome is decided once, and queued for the server. Until the server has recorded
  it, the job keeps its lease.

If a worker does not serve a job's task, it returns the job to the queue. It does the same if its
version of the task does not take an argument of the job. The log and `bide info` name such tasks.
The worker claims their jobs again, a few at a time. Each job is claimed again after as long as it
has waited so far, and later if many wait. So these claims cost the server little, however many jobs
wait.

Plain functions run in daemon threads, because a thread that hangs must not keep the process alive.
A new thread starts only when none is idle. So a worker with 100 slots has only as many threads as
its jobs needed at the same time.

`loop.call_at` sleeps in `epoll_wait`, which counts in milliseconds and rounds up. A `timerfd`
fires within microseconds of the due time, in any event loop that watches file descriptors
(timerfd_create(2)). Without `timerfd`, the loop's own timer is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import msgspec

from bide.logs import Log
from bide.model.ids import LONGEST_TASK, short_id
from bide.model.job import Claimed
from bide.model.payload.body import decode_error
from bide.protocol.commands.queues import MOST_UNKNOWN_TASKS, RunningTask
from bide.protocol.commands.worker import Claim, Ended, Settle
from bide.worker.queue_state import STALE, Prefetch, QueueState
from bide.worker.running_job import (
    BEGUN,
    CANCELLED,
    UNBEGUN,
    UNCOUNTED,
    RunningJob,
    log_end,
    task_of,
)

T = TypeVar("T")

Work = Callable[[], Callable[[], object]]
"""Runs in a thread, and returns a function that the thread calls once it counts as idle.

So the next job can use the thread as soon as it is notified. Neither function may raise."""


class Threads:
    """Runs work immediately: in an idle thread, or in a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, work: Work) -> None:
        """Run `work`.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        with self._lock:
            start = self._idle == 0
            if start:
                self._count += 1
            else:
                self._idle -= 1
        if start:
            try:
                threading.Thread(
                    target=self._serve,
                    args=([work],),
                    name=f"{self._name}-{self._count}",
                    daemon=True,
                ).start()
            except RuntimeError:
                with self._lock:
                    self._count -= 1
                raise
        else:
            self._queue.put(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread, in this context; return its result, or raise its error.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def notify(settle: Callable[[], object]) -> None:
            with suppress(RuntimeError):  # the loop has closed
                # `done` is done already if the awaiting task was cancelled.
                loop.call_soon_threadsafe(lambda: done.done() or settle())

        def call() -> Callable[[], None]:
            try:
                return partial(notify, partial(done.set_result, context.run(work)))
            except StopIteration as error:  # a future cannot hold it
                return partial(notify, partial(done.set_exception, RuntimeError(repr(error))))
            except BaseException as error:
                return partial(notify, partial(done.set_exception, error))

        self.submit(call)
        return await done

    def close(self) -> None:
        """Let idle threads end; busy ones end after their work."""
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self, first: list[Work]) -> None:
        work: Work | None = first.pop()  # the thread keeps its arguments until it ends
        while work is not None:
            ended = work()
            with self._lock:
                self._idle += 1
            ended()
            del work, ended  # they hold the arguments of a job, and the thread may be idle for long
            work = self._queue.get()


_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK_CLOEXEC: Final = 0o2004000
_TFD_TIMER_ABSTIME: Final = 1


class Alarm:
    """Calls back at a time of `time.monotonic()`, by the event loop's own timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Fire at `at`, instead of at the time set before."""
        self.close()
        self._handle = self._loop.call_at(at, self._wake)

    def close(self) -> None:
        """Do not fire again."""
        if self._handle is not None:
            self._handle.cancel()


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _TimerFd(Alarm):
    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        super().__init__(loop, wake)
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._at = 0.0
        loop.add_reader(self._fd, self._fired)

    def set(self, at: float) -> None:
        if at == self._at:
            return
        self._at = at
        seconds = int(at)
        spec = _Spec(0, 0, seconds, max(1, int((at - seconds) * 1e9)))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set again between the loop's wake-up and this read
            return
        self._at = 0.0
        self._wake()


def make_alarm(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Alarm:
    """Return the most precise alarm of this machine; it calls `wake` in the loop's thread."""
    try:
        return _TimerFd(loop, wake)
    except (AttributeError, OSError, NotImplementedError):
        return Alarm(loop, wake)


log = Log("bide.worker")

NOTES_DELAY: Final = 0.3
"""Seconds after which notes are sent, if no other round trip has taken them."""


class Executor(ABC):
    """Runs the jobs that a worker has claimed; the worker uses nothing else of an executor."""

    def __init__(self, changed: Callable[[], None], max_jobs: int | None = None) -> None:
        """Set up, in the event loop that receives the outcomes.

        `changed` is called in its thread when there is something to send, or a free slot.
        """
        self._changed = changed
        self._max_jobs = max_jobs
        self._callbacks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._held: dict[int, RunningJob] = {}
        self._waiting: deque[RunningJob] = deque()
        """Held jobs that wait for a slot."""
        self._ahead: list[tuple[float, int, RunningJob]] = []
        """Held jobs that are not due yet: a heap, by when each starts (`time.monotonic()`)."""
        self._alarm = make_alarm(self._loop, self._start_due)
        self._unconfirmed: dict[tuple[str, int], RunningJob] = {}
        """Ended jobs whose outcomes the server has not recorded yet, by id and token."""
        self._prefetch = Prefetch()
        self._moved_at = 0.0
        """When a job last got or left a slot (`time.monotonic()`)."""
        self.executed = 0
        self.unknown_tasks: Final = UnknownTasks()

    @abstractmethod
    async def open(self) -> None:
        """Open what jobs need before the first job; an error stops the worker."""

    @abstractmethod
    async def close(self) -> None:
        """Close it after the last job."""

    # -- what the worker asks

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks of ended jobs still run in this process."""
        return bool(self._callbacks)

    @property
    def is_spent(self) -> bool:
        """Whether it has run `max_jobs` jobs, so the worker stops."""
        return self._max_jobs is not None and self.executed >= self._max_jobs

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many jobs may be held now: one per slot, and more if jobs are quick."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how much of the capacity is in use."""

    @property
    @abstractmethod
    def free_slots(self) -> int:
        """How many more jobs could start at once now; a job that waits for its time has a slot."""

    @property
    def ahead(self) -> int:
        """How many of the held jobs are not due yet."""
        return len(self._ahead)

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    def held_jobs(self) -> list[RunningJob]:
        """Return the jobs that must keep their leases; safe to call in any thread.

        These are the held jobs, and the ended jobs whose outcomes the server has not recorded yet.
        """
        return [*self._held.values(), *self._unconfirmed.values()]

    @abstractmethod
    def snapshot(self) -> list[RunningTask]:
        """Return the running jobs."""

    @abstractmethod
    def rss(self) -> int:
        """Return the memory in bytes of the processes that run jobs."""

    # -- the life of a job

    def submit(self, queue_state: QueueState, reply: Claim, sent: float, arrived: float) -> None:
        """Accept claimed jobs; start each as soon as it is due and has a slot.

        The reply has arrived later than the server read its clock. So a job that starts as long
        after the arrival as it was due after that reading starts no earlier than it is due.
        """
        if not self._held:
            self._moved_at = time.monotonic()
        read_us = reply.read_us or reply.now_us
        self._tighten(queue_state, read_us, arrived)
        for claimed in reply.jobs:
            number = next(self._numbers)
            wait = (claimed.due_us - read_us) / 1e6
            since = sent + wait if wait > 0 else sent
            run = RunningJob(queue_state, claimed, since, self._send_notes_soon, number)
            self._held[number] = run
            if wait > 0:
                heapq.heappush(self._ahead, (arrived + wait, number, run))
            else:
                self._waiting.append(run)
        if self._ahead:
            self._alarm.set(self._ahead[0][0] - SPIN)
        self._start_waiting(at_once=not queue_state.check)

    def decline(self, queue_state: QueueState, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Release claimed jobs that must not start here."""
        for claimed in jobs:
            run = RunningJob(queue_state, claimed, claimed_at, self._send_notes_soon)
            run.decide(UNBEGUN)
            run.ended = True
            self._unconfirmed[claimed.id, claimed.token] = run
            queue_state.settles.append(UNBEGUN.settle(claimed))

    def _tighten(self, queue_state: QueueState, read_us: int, arrived: float) -> None:
        """Start jobs of the queue sooner if a newer reply shows that they are due sooner.

        A reply that came late lets its jobs wait for longer than they have to. A job that is due
        later and came with a faster reply would otherwise start before them.
        """
        if self._ahead:
            self._ahead = [
                (min(at, arrived + (run.claimed.due_us - read_us) / 1e6), number, run)
                if run.queue_state is queue_state
                else (at, number, run)
                for at, number, run in self._ahead
            ]
            heapq.heapify(self._ahead)
            self._move_due()

    def _start_due(self) -> None:
        """Start the jobs that were claimed ahead and are due now."""
        self._move_due()
        if self._ahead:
            self._alarm.set(self._ahead[0][0] - SPIN)
        self._start_waiting(at_once=True)
        if self._waiting and len(self) > self.capacity + len(self._ahead):
            self._release_waiting()  # jobs that came meanwhile have taken their slots

    def _move_due(self) -> None:
        """Let the jobs that were claimed ahead and are due now wait for a slot."""
        while self._ahead and self._ahead[0][0] - SPIN <= (now := time.monotonic()):
            while now < self._ahead[0][0]:
                now = time.monotonic()
            _, number, run = heapq.heappop(self._ahead)
            if now - run.claimed_at > run.queue_state.lease * 2 / 3:
                self._end(run, UNBEGUN)  # the process was paused, and the lease may have passed
                continue
            # Jobs are numbered in the order in which they are started.
            del self._held[number]
            run.number = next(self._numbers)
            self._held[run.number] = run
            self._waiting.append(run)

    def recall(self, channel: str, id: str) -> None:
        """Release a job of the queue of this channel, or all of them, unless it is due already."""
        for _, _, run in list(self._ahead):
            if run.queue_state.keys["asked"] == channel and id in ("", run.claimed.id):
                self._end(run, UNBEGUN)
        self._ahead = [entry for entry in self._ahead if not entry[2].ended]
        heapq.heapify(self._ahead)

    def recall_all(self) -> None:
        """Release all jobs that are not due yet."""
        for _, _, run in self._ahead:
            self._end(run, UNBEGUN)
        self._ahead.clear()

    @abstractmethod
    def _start_waiting(self, *, at_once: bool = False) -> None:
        """Start the jobs that have waited longest, in the free slots."""

    def request_cancel(self, channel: str, id: str) -> None:
        """Cancel a job of the queue of this channel, whether it waits or runs."""
        for run in list(self._held.values()):
            is_meant = run.claimed.id == id and run.queue_state.keys["asked"] == channel
            if is_meant and not run.cancel_requested:
                run.cancel_requested = True
                self._cancel(run)

    def request_cancel_from_thread(self, channel: str, id: str) -> None:
        """Do what `request_cancel` does, from any thread."""
        with suppress(RuntimeError):  # the event loop has closed
            self._loop.call_soon_threadsafe(self.request_cancel, channel, id)

    @abstractmethod
    def _cancel(self, run: RunningJob) -> None:
        """End a job whose `cancel_requested` has just been set; without effect while it waits."""

    def release_all(self) -> None:
        """Release all jobs without using an attempt, and end what still runs.

        If a function has ended and only the job's callback still runs, the outcome is kept.
        """
        self._collect_ended()
        self._stop_running()
        waiting = {*self._waiting, *(run for _, _, run in self._ahead)}
        self._waiting.clear()
        self._ahead.clear()
        for run in list(self._held.values()):
            self._end(run, self._released(run, run in waiting))

    @abstractmethod
    def _collect_ended(self) -> None:
        """Process the outcomes that jobs have reported so far."""

    @abstractmethod
    def _stop_running(self) -> None:
        """End the functions that run, as far as that is possible here; do not wait for them."""

    def _released(self, run: RunningJob, is_waiting: bool) -> Ended:
        """Return the outcome with which a job without one is released."""
        return UNBEGUN if is_waiting else BEGUN

    def _release_waiting(self) -> None:
        """Release the jobs that wait, because other workers may have free slots."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for run in waiting:
            if run.death is not None:  # it has run: only its outcome is to be decided
                self._waiting.append(run)
            else:
                self._end(run, CANCELLED if run.cancel_requested else UNBEGUN)

    @property
    def _is_stalled(self) -> bool:
        """Whether no job has got or left a slot for so long that waiting jobs are released."""
        return time.monotonic() - self._moved_at > STALE

    @abstractmethod
    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Call the hooks and the callback after an attempt that was lost by another worker."""

    def _note_run(self, run: RunningJob, seconds: float) -> None:
        self._moved_at = time.monotonic()
        self._prefetch.note_run(seconds)
        run.ran = seconds

    def _end(self, run: RunningJob, ended: Ended | None = None) -> None:
        """End a job with the outcome that is decided, otherwise with `ended`."""
        if ended is not None:
            run.decide(ended)
        if run.ended or run.decided is None:
            return
        run.ended = True
        del self._held[run.number]
        settled = run.decided
        if run.missing:
            task_of(run)
            run.queue_state.note_task(served=False)
            self.unknown_tasks.note(run)
            if settled.outcome == "snooze":
                due = self.unknown_tasks.next_look(run, -(-self.capacity // 2))
                settled = msgspec.structs.replace(settled, due=due)
        elif run.claimed.missing_us and settled.outcome not in UNCOUNTED:
            run.queue_state.note_task(served=True)
        if settled.outcome not in UNCOUNTED:
            self.executed += 1
            log_end(run, settled.outcome)
        self._unconfirmed[run.claimed.id, run.claimed.token] = run
        run.queue_state.settles.append(settled.settle(run.claimed, run.started_us))
        self._changed()

    def mark_recorded(self, settles: Sequence[Settle]) -> list[RunningJob | None]:
        """Forget the outcomes that the server has recorded; return their runs."""
        return [self._unconfirmed.pop((settle.id, settle.token), None) for settle in settles]

    def _send_notes_soon(self) -> None:
        """Have notes sent; any thread may call."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, NOTES_DELAY, self._changed)


SPIN: Final = 60e-6
"""Seconds before a start for which the worker watches its clock instead of sleeping: an alarm wakes
it some 50 µs late."""

LATELY: Final = 120.0
"""Seconds until a task is forgotten that no job needed; a waiting job is retried earlier."""

SELDOM: Final = 60.0
"""Seconds between retries of a job that has waited for longer, if few jobs of its task wait."""

GAP_US: Final = 750_000
"""Microseconds between two times at which jobs of one task are retried."""

CLAIMS: Final = 2
"""How many full claims the jobs of one such time fill."""

_SET_BACK_US: Final = 1_000_000
"""Microseconds by which the server's clock must go back so that the assigned times are dropped."""


_LONGEST: Final = LONGEST_TASK + 20
"""Characters of what a job needs and a worker lacks."""


class _Task:
    """One task that is not served, and when its jobs are retried."""

    def __init__(self) -> None:
        self.needed_at = 0.0
        self.moment = 0
        """The latest retry time that was assigned, in `GAP_US` since 1970 on the server's clock."""
        self.jobs = 0
        """How many jobs are assigned to that time."""


class UnknownTasks:
    """A few task names, and when a job last needed each; each is logged once, not for each job."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._others = _Task()
        """Shared by all tasks after the first `MOST_UNKNOWN_TASKS`."""
        self._asked_us = 0
        """The server's time at the latest `next_look`."""

    def note(self, run: RunningJob) -> None:
        """Record a job that this worker lacks something for; its `task_name` must be known."""
        name, now = run.lacks[:_LONGEST], time.monotonic()
        self._forget(now)
        if name not in self._tasks:
            if len(self._tasks) == MOST_UNKNOWN_TASKS:
                return
            self._tasks[name] = _Task()
            if run.decided is not None and run.decided.outcome == "snooze":
                why = decode_error(run.decided.data)
                with run.named():
                    log.warning(
                        "job %s waits, as other jobs of its task may: %s",
                        short_id(run.claimed.id),
                        why.message if why else "",
                    )
        self._tasks[name].needed_at = now

    def next_look(self, run: RunningJob, batch: int) -> str:
        """Return when to retry a job, as `Ended.due`; one claim takes `batch` jobs.

        The more jobs wait, the later each is retried, so they cost no more calls a second. A worker
        that has their task takes them before these times.
        """
        task = self._tasks.get(run.lacks[:_LONGEST], self._others)
        delay_us = round(min(max(run.waited(), 1.0), SELDOM) * 1e6)
        now_us = run.queue_state.now_us()
        if now_us < self._asked_us - _SET_BACK_US:
            for one in (*self._tasks.values(), self._others):
                one.moment = 0
        self._asked_us = now_us
        moment = max(task.moment, -(-(now_us + delay_us) // GAP_US))
        if moment == task.moment and task.jobs >= CLAIMS * batch:
            moment += max(1, len(self._tasks))  # all tasks share the budget for retries
        if moment != task.moment:
            task.moment, task.jobs = moment, 0
        task.jobs += 1
        return f"={moment * GAP_US}"

    def names(self) -> list[str]:
        """Return the names of the recently needed tasks, sorted."""
        self._forget(time.monotonic())
        return sorted(self._tasks)

    def _forget(self, now: float) -> None:
        for name, task in list(self._tasks.items()):
            if now - task.needed_at > LATELY:
                del self._tasks[name]
