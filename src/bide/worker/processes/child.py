"""A child: runs jobs in its main thread, one after another, until it is told or due to end.

It takes a job when it is free to, so nothing waits behind another. Before anything of the job's own
happens, its row of the table says which it is and when its time is over. A signal ends a job that
takes too long, or that was asked to end, by an exception in it; where that does not help, the
worker kills the child.

The row is cleared only when the worker has been told how the job ended: whenever a child dies, its
job has been answered for, or stands in its row.

A signal's handler runs between any two steps of Python code. In the job's own code it raises, once.
While something that the job says goes to the worker it waits until that is through: an exception
there would cut the message. At other times there is nothing to be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from types import FrameType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from msgspec.structs import replace

from bide import logs
from bide.client import config
from bide.errors import JobCancelled, JobTimeout, PayloadError
from bide.logs import Log
from bide.model.context import CurrentJob, enter
from bide.model.ids import short_id
from bide.model.payload.signing import Seal
from bide.protocol.commands.worker import JobNote as Note
from bide.protocol.keys import keys_of
from bide.tasks.middleware import used
from bide.tasks.resources import resources
from bide.tasks.task import TaskRegistry
from bide.worker import failure_hooks, lifespan
from bide.worker.heartbeat import GRACE
from bide.worker.lifespan import Lifespan
from bide.worker.metrics import set_title
from bide.worker.processes import linux
from bide.worker.processes.ipc import (
    Assign,
    ChildPipes,
    Decided,
    Done,
    InitFailed,
    Leaving,
    NoteAdded,
    Ready,
    Reply,
    Setting,
    decode_assign,
    encode,
)
from bide.worker.processes.job_table import Row
from bide.worker.run import outcome
from bide.worker.run.invoke import Invocation, identify, identify_if_possible, prepare, read
from bide.worker.run.outcome import RunOutcome
from bide.worker.run.running_job import UNBEGUN, RunningJob

P = ParamSpec("P")
T = TypeVar("T")

ASKED: Final = signal.SIGUSR1
"""Tells a child to look whether its job was asked to end."""

_CLOSED, _OPEN, _HELD = range(3)
_LONGEST_ALARM: Final = 1e8


class Interrupts:
    """What can end the job that runs in this process's main thread."""

    def __init__(self) -> None:
        self._run: RunningJob | None = None
        self._row: Row | None = None
        self._number = 0
        self._state = _CLOSED
        self._waiting: Callable[[], BaseException] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_heeded = False

    def listen(self) -> None:
        """Hear signals; jobs may have blocked them, or listened themselves."""
        signal.signal(signal.SIGALRM, self._time_is_over)
        signal.signal(ASKED, self._asked)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def begin(self, run: RunningJob, row: Row, number: int) -> None:
        """This job is the one that is meant from now on."""
        self._run, self._row, self._number = run, row, number
        self._waiting, self._has_heeded = None, False

    def end(self) -> None:
        """None is."""
        self._run = None

    def call(
        self, run: RunningJob, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a plain function, within the job's time.

        Raises:
            JobTimeout: its time is over.
            JobCancelled: it was asked to end.
            BaseException: whatever the function raises.
        """
        try:
            signal.setitimer(signal.ITIMER_REAL, min(run.policy.timeout, _LONGEST_ALARM))
            self._state = _OPEN
            if self._row is not None and self._row.asked == self._number:
                self._asked(ASKED, None)
            return function(*args, **kwargs)
        finally:
            self._state = _CLOSED
            signal.setitimer(signal.ITIMER_REAL, 0)

    async def wait(self, run: RunningJob, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, within the job's time; being asked to end cancels it."""
        self._task = asyncio.current_task()
        limit = asyncio.timeout(run.policy.timeout)
        try:
            async with limit:
                self._asked(ASKED, None)
                return await coroutine
        except BaseException:  # whatever it makes of being ended
            run.timed_out = limit.expired()
            raise
        finally:
            self._task = None

    def hold(self) -> bool:
        """Let nothing be raised here before `let_go`; False where nothing would be."""
        if self._state != _OPEN or threading.current_thread() is not threading.main_thread():
            return False
        self._state = _HELD
        return True

    def release(self) -> None:
        """Go on after `hold` was true; what came meanwhile is raised now."""
        self._state = _OPEN
        if self._waiting is not None:
            self._interrupt(self._waiting)

    def _interrupt(self, why: Callable[[], BaseException]) -> None:
        if self._state == _HELD:
            self._waiting = why
        elif self._state == _OPEN:
            self._state = _CLOSED
            raise why()

    def _time_is_over(self, number: int, frame: FrameType | None) -> None:
        self._interrupt(self._overrun)

    def _overrun(self) -> BaseException:
        assert self._run is not None
        self._run.timed_out = True
        return outcome.overrun(self._run)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        """Look whether the job was asked to end; the worker says so again until it has."""
        run, row = self._run, self._row
        if run is None or row is None or row.asked != self._number:
            return
        run.asked = True
        if self._task is None:
            self._interrupt(_cancelled)
        elif not self._has_heeded:
            self._has_heeded = True
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)


def _cancelled() -> BaseException:
    return JobCancelled("The job was cancelled while it ran.")


log = Log("bide.worker")

ENDED: Final = 0
"""How a child ends whose worker has no more jobs."""

RETIRED: Final = 75
"""How a child ends that has had enough of them, and is to be replaced."""

IDLE: Final = "bide child: idle"
"""Its title while it waits."""

_BURY_EVERY: Final = 64


class NoteSink:
    """The station of a child's jobs: what they say goes to the worker at once."""

    def __init__(self, seal: Seal, worker: str, child: Child, number: int) -> None:
        self.queue = seal.keys.queue
        self.worker = worker
        self.seal = seal
        self.said = self
        self._child = child
        self._number = number

    def add(self, note: Note) -> bool:
        """Pass a note on."""
        self._child._reply_to_parent(NoteAdded(self._number, note.kind, note.text))
        return False


class Child:
    """One process that runs jobs."""

    def __init__(
        self,
        orders: socket.socket,
        replies: socket.socket,
        hand_over: int,
        served: TaskRegistry,
        setting: Setting,
    ) -> None:
        """Set up, in the nursery: all children are made of this one."""
        self._lines = ChildPipes(orders, replies, hand_over)
        self._interrupts = Interrupts()
        self._served = served
        self._setting = setting
        self._keyring = config.signing_keys()
        self._lifespan = Lifespan()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_unfit = False
        """No event loop runs here any more; a job has left no descriptors for one, say."""
        self._ran = 0
        self._dead: set[int] = set()
        self._pid = 0

    def live(self, slot: int, row: Row) -> int:
        """Take jobs until there are none for this child any more; how it ends."""
        self._slot, self._row, self._pid = slot, row, os.getpid()
        if resources():
            try:
                self._wait(self._lifespan.open())
            except BaseException as error:
                log.exception("a child cannot begin")
                self._reply_to_parent(InitFailed(self._slot, f"{type(error).__name__}: {error}"))
                os._exit(1)
            logs.hold()
        self._reply_to_parent(Ready(self._slot, self._pid))
        try:
            how = self._serve_all()
        finally:
            if self._loop is not None and not self._is_unfit:
                self._reply_to_parent(Leaving(self._slot, self._pid))
                self._wait(self._lifespan.close())
                with contextlib.suppress(Exception):
                    lifespan.end(self._loop)
        if how == RETIRED:
            self._lines.hand_over()
        return how

    def _serve_all(self) -> int:
        while not self._has_had_enough():
            message = self._lines.receive()
            if message is None:
                return ENDED
            # In a context of its own: what one job sets, the next must not see.
            copy_context().run(self.serve, decode_assign(message))
        return RETIRED

    def _reply_to_parent(self, reply: Reply) -> bool:
        """Say something to the worker; whether the system had the means."""
        held = self._interrupts.hold()
        try:
            return self._lines.send(encode(reply))
        finally:
            if held:
                self._interrupts.release()

    def _has_had_enough(self) -> bool:
        setting = self._setting
        if setting.executor == "fork" or self._is_unfit:
            return self._ran > 0
        if setting.max_jobs is not None and self._ran >= setting.max_jobs:
            return True
        if setting.max_rss is None or self._ran == 0:
            return False
        return linux.rss(os.getpid()) > setting.max_rss

    def serve(self, order: Assign) -> None:
        """Run a job, and say how it ended."""
        now = time.monotonic()
        self._row.begin(order.number, now, now if order.died else 0.0)
        if self._ran:
            self._interrupts.listen()
        seal = Seal(self._keyring, keys_of(order.queue, self._setting.root))
        mouth: Any = NoteSink(seal, self._setting.worker, self, order.number)
        run = RunningJob(mouth, order.claimed, order.claimed_at, lambda: None)
        if order.died:
            run.deadline = now
        self._interrupts.begin(run, self._row, order.number)
        judged = self._judge(order, run)
        self._check_self(run)
        run.decide(judged.ended)
        if failure_hooks.is_due(judged):
            judged = self._tell_end(Decided(order.number, judged.ended), judged, run)
            self._call_back(judged, run)
        self._ran += 1
        flush()
        if not self._has_had_enough():
            set_title(IDLE)
        self._interrupts.end()
        took = time.monotonic() - now
        done = Done(order.number, judged.ended, took, run.missing)
        if (told := self._tell_end(done, judged, run)) is not judged:
            self._call_back(told, run)
        self._row.end()
        if self._ran % _BURY_EVERY == 0:
            self._dead = linux.reap(self._dead)

    def _call_back(self, judged: RunOutcome, run: RunningJob) -> None:
        self._row.limit(max(run.deadline, time.monotonic()))
        failure_hooks.call(run, judged, self._served, self._wait)
        self._check_self(run)

    def _tell_end(self, end: Decided | Done, judged: RunOutcome, run: RunningJob) -> RunOutcome:
        """Say how a job ended, and return that: it failed if its result cannot be handed over."""
        if self._lines.send(encode(end)):  # nothing can interrupt that now
            return judged
        error = PayloadError(
            f"The result of {run.task_name} could not be handed to the worker, because the system "
            "had no memory or descriptor for it; its child's log has the reason."
        )
        judged = outcome.failed(run, error)
        self._reply_to_parent(replace(end, ended=judged.ended))
        return judged

    def _judge(self, order: Assign, run: RunningJob) -> RunOutcome:
        """Run a job to its end, and find out what that means."""
        if order.died and not order.overran:
            return self._judge_dead(order, run)
        allow_pickle = order.queue in self._setting.pickled
        in_run = False
        try:
            if order.overran:
                identify(run, self._served)
                run.timed_out = True
                raise JobTimeout(f"{outcome.overrun(run)} {order.died}")
            target, body = read(run, self._served, allow_pickle=allow_pickle)
            job = run.job
            assert job is not None
            call = prepare(body, target, self._lifespan, used())
            set_title(f"bide child: {run.task_name} (job {short_id(run.claimed.id)})")
            run.deadline = time.monotonic() + run.policy.timeout
            self._row.limit(run.deadline)
            in_run = True
            if target.is_async:
                return self._judge_coroutine(call, run, job)
            return outcome.completed(run, self._interrupts.call(run, call.run, job, self._wait))
        except BaseException as error:
            enter(run.job or run.as_job())
            return outcome.raised(run, error, self._served, in_run=in_run)

    def _judge_coroutine(self, call: Invocation, run: RunningJob, job: CurrentJob) -> RunOutcome:
        try:
            return outcome.completed(run, self._wait(self._await(call, run, job)))
        except (OSError, RuntimeError) as error:
            if not self._is_unfit:
                raise
            # Which is no fault of this job, and it has not begun.
            log.warning("a child runs no coroutines any more (%r), and is replaced", error)
            return RunOutcome(UNBEGUN, None, None)

    def _judge_dead(self, order: Assign, run: RunningJob) -> RunOutcome:
        """Find out what becomes of a job that has killed another child."""
        identify_if_possible(run, self._served)
        if order.lost:
            return outcome.lost(run, order.died, order.has_failed)
        return outcome.died(run, order.died)

    async def _await(self, call: Invocation, run: RunningJob, job: CurrentJob) -> Any:
        return await self._interrupts.wait(run, call.run_async(job))

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; the event loop is made for the first, and stays.

        `asyncio.Runner` does the same, and takes as long as a small job for it. It is not set as
        the thread's: plain functions may make one of their own there, and close it.
        """
        task: asyncio.Task[Any] | None = None
        try:
            loop = self._loop = self._loop or self._make_loop()
            task = loop.create_task(coroutine)
            return loop.run_until_complete(task)
        except (OSError, RuntimeError):
            self._is_unfit = inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            if task is None:
                coroutine.close()
            raise
        finally:
            if task and not task.done():  # a signal ended it: not to be gone on with later
                task.cancel()
                with contextlib.suppress(BaseException):
                    task.get_loop().run_until_complete(asyncio.wait([task], timeout=GRACE))

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        with self._lines.keep():
            loop = lifespan.new_event_loop()
            loop.run_until_complete(asyncio.sleep(0))  # it opens some descriptors only to run
        return loop

    def prepare(self) -> None:
        """Get ready, in the nursery: what a child hears, it hears from its first moment."""
        self._lines.hold_back()
        self._interrupts.listen()

    def _check_self(self, run: RunningJob) -> None:
        """End here if this process can no longer answer for its job."""
        if os.getpid() != self._pid:  # the job forked, and its copy has come back from it too
            os._exit(0)
        if not self._lines.are_whole:
            with contextlib.suppress(Exception):
                log.error(
                    "job %s closed descriptors that are not its own", short_id(run.claimed.id)
                )
            os._exit(1)


def set_up(parent: int) -> None:
    """Become a process of its own: a session to be killed with all that was started in it.

    What leaves the session is adopted here, so that nobody takes it for what a dead child has left.
    """
    os.setsid()
    linux.become_subreaper()
    linux.set_pdeathsig(signal.SIGKILL)
    if os.getppid() != parent:  # it had died before
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, it would be in what it runs
    set_title(IDLE)


def flush() -> None:
    """Write out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def run_child(child: Child, slot: int, row: Row) -> NoReturn:
    """Live as a child, and end without what the parent would do at its end."""
    code = 1
    try:
        code = child.live(slot, row)
    except BaseException:
        log.exception("a child broke")
    finally:
        flush()
        os._exit(code)
