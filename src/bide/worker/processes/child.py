"""A child process: runs jobs in its main thread, one after another.

It receives a job only when it is free, so no job waits behind another one. Before the job's code
runs, the child writes the job and its deadline to its row of the job table. If a job exceeds its
time-out or is cancelled, a signal handler raises an exception in it. If that does not help, the
worker kills the child.

The row is cleared only after the outcome has been sent. So if a child dies, its job either has an
outcome or is in the row.

A signal handler runs between any two bytecodes. While the job's own code runs, it raises once.
While a message is being sent to the worker, the exception is deferred until the message is
complete, because it would truncate the message. At other times there is no job to end.
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
from bide.model.context import enter
from bide.model.ids import short_id
from bide.model.payload.signing import Seal
from bide.protocol.commands.worker import JobNote
from bide.protocol.keys import keys_of
from bide.tasks.registry import resources
from bide.tasks.task import TaskRegistry
from bide.worker import lifespan
from bide.worker import outcome as outcomes
from bide.worker.heartbeat import GRACE
from bide.worker.invoke import (
    Invocation,
    call_hooks,
    hooks_due,
    identify,
    identify_if_possible,
    prepare,
    read,
)
from bide.worker.lifespan import Lifespan
from bide.worker.metrics import set_title
from bide.worker.outcome import RunOutcome
from bide.worker.processes import linux
from bide.worker.processes.ipc import (
    Assign,
    ChildPipes,
    ChildRow,
    Decided,
    InitFailed,
    JobDone,
    Leaving,
    NoteAdded,
    Ready,
    Reply,
    Setting,
    decode_assign,
    encode,
)
from bide.worker.running_job import UNBEGUN, RunningJob

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_SIGNAL: Final = signal.SIGUSR1
"""Makes a child check whether its job must be cancelled."""

_CLOSED, _OPEN, _HELD = range(3)
_LONGEST_ALARM: Final = 1e8


class Interrupts:
    """Ends the job that runs in this process's main thread, at its time-out or by a request."""

    def __init__(self) -> None:
        self._run: RunningJob | None = None
        self._row: ChildRow | None = None
        self._number = 0
        self._state = _CLOSED
        self._deferred: Callable[[], BaseException] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_cancelled = False

    def listen(self) -> None:
        """Install the signal handlers, because a job may have blocked or replaced them."""
        signal.signal(signal.SIGALRM, lambda *_: self._raise_or_defer(self._overrun))
        signal.signal(CANCEL_SIGNAL, self._check_cancel)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def begin(self, run: RunningJob, row: ChildRow, number: int) -> None:
        """Set the job that signals apply to."""
        self._run, self._row, self._number = run, row, number
        self._deferred, self._has_cancelled = None, False

    def end(self) -> None:
        """Unset the job."""
        self._run = None

    def call(
        self, run: RunningJob, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a plain function; JobTimeout or JobCancelled end it."""
        try:
            signal.setitimer(signal.ITIMER_REAL, min(run.policy.timeout, _LONGEST_ALARM))
            self._state = _OPEN
            if self._row is not None and self._row.cancel_requested == self._number:
                self._check_cancel(CANCEL_SIGNAL, None)
            return function(*args, **kwargs)
        finally:
            self._state = _CLOSED
            signal.setitimer(signal.ITIMER_REAL, 0)

    async def wait(self, run: RunningJob, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine function with the job's time-out; a request to cancel cancels it."""
        self._task = asyncio.current_task()
        limit = asyncio.timeout(run.policy.timeout)
        try:
            async with limit:
                self._check_cancel(CANCEL_SIGNAL, None)
                return await function()
        except BaseException:  # a job may convert the cancellation to any error
            run.timed_out = limit.expired()
            raise
        finally:
            self._task = None

    def hold(self) -> bool:
        """Defer exceptions until `release`; return False if none can be raised here."""
        if self._state != _OPEN or threading.current_thread() is not threading.main_thread():
            return False
        self._state = _HELD
        return True

    def release(self) -> None:
        """End `hold`, and raise the deferred exception if there is one."""
        self._state = _OPEN
        if self._deferred is not None:
            self._raise_or_defer(self._deferred)

    def _raise_or_defer(self, why: Callable[[], BaseException]) -> None:
        if self._state == _HELD:
            self._deferred = why
        elif self._state == _OPEN:
            self._state = _CLOSED
            raise why()

    def _overrun(self) -> BaseException:
        assert self._run is not None
        self._run.timed_out = True
        return outcomes.overrun(self._run)

    def _check_cancel(self, number: int, frame: FrameType | None) -> None:
        """Cancel the job if its row requests that; the worker signals again until the job ends."""
        run, row = self._run, self._row
        if run is None or row is None or row.cancel_requested != self._number:
            return
        run.cancel_requested = True
        if self._task is None:
            self._raise_or_defer(lambda: JobCancelled("The job was cancelled while it ran."))
        elif not self._has_cancelled:
            self._has_cancelled = True
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)


log = Log("bide.worker")

ENDED: Final = 0
"""Exit code of a child whose worker has no more jobs."""

RETIRED: Final = 75
"""Exit code of a child that has run its last job and must be replaced."""

IDLE: Final = "bide child: idle"
"""The process title while the child waits for a job."""

_REAP_EVERY: Final = 64


class NoteSink:
    """Stands for `QueueState` in a child: it sends the notes of a job to the worker immediately."""

    def __init__(self, seal: Seal, worker: str, child: Child, number: int) -> None:
        self.queue = seal.keys.queue
        self.worker = worker
        self.seal = seal
        self.notes = self
        self._child = child
        self._number = number

    def add(self, note: JobNote) -> bool:
        """Send a note."""
        self._child._reply_to_parent(NoteAdded(self._number, note.kind, note.text))
        return False


class Child:
    """One process that runs jobs."""

    def __init__(
        self,
        assigns: socket.socket,
        replies: socket.socket,
        hand_over: int,
        served: TaskRegistry,
        setting: Setting,
    ) -> None:
        """Set up in the fork server, from which all children are forked."""
        self._pipes = ChildPipes(assigns, replies, hand_over)
        self._interrupts = Interrupts()
        self._served = served
        self._setting = setting
        self._keyring = config.signing_keys()
        self._lifespan = Lifespan()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_unfit = False
        """Whether no event loop can run here: for instance, a job has used up all descriptors."""
        self._ran = 0
        self._dead: set[int] = set()
        self._pid = 0

    def live(self, slot: int, row: ChildRow) -> int:
        """Run jobs until there are no more for this child; return its exit code."""
        self._slot, self._row, self._pid = slot, row, os.getpid()
        if resources():
            try:
                self._wait(self._lifespan.open())
            except BaseException as error:
                log.exception("a child cannot start")
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
            self._pipes.hand_over()
        return how

    def _serve_all(self) -> int:
        while not self._has_had_enough():
            message = self._pipes.receive()
            if message is None:
                return ENDED
            # In a context of its own, so that a job sees no context variables of another.
            copy_context().run(self.serve, decode_assign(message))
        return RETIRED

    def _reply_to_parent(self, reply: Reply) -> bool:
        """Send a message to the worker; return whether the system had the memory for it."""
        held = self._interrupts.hold()
        try:
            return self._pipes.send(encode(reply))
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

    def serve(self, assign: Assign) -> None:
        """Run a job, and report its outcome."""
        now = time.monotonic()
        self._row.begin(assign.number, now, now if assign.died else 0.0)
        if self._ran:
            self._interrupts.listen()
        seal = Seal(self._keyring, keys_of(assign.queue, self._setting.root))
        sink: Any = NoteSink(seal, self._setting.worker, self, assign.number)
        run = RunningJob(sink, assign.claimed, assign.claimed_at, lambda: None)
        if assign.died:
            run.deadline = now
        self._interrupts.begin(run, self._row, assign.number)
        outcome = self._run_job(assign, run)
        self._check_self(run)
        run.decide(outcome.ended)
        if hooks_due(outcome):
            outcome = self._report_end(Decided(assign.number, outcome.ended), outcome, run)
            self._call_back(outcome, run)
        self._ran += 1
        flush()
        if not self._has_had_enough():
            set_title(IDLE)
        self._interrupts.end()
        took = time.monotonic() - now
        done = JobDone(assign.number, outcome.ended, took, run.started_at, run.missing)
        if (reported := self._report_end(done, outcome, run)) is not outcome:
            self._call_back(reported, run)
        self._row.end()
        if self._ran % _REAP_EVERY == 0:
            self._dead = linux.reap(self._dead)

    def _call_back(self, outcome: RunOutcome, run: RunningJob) -> None:
        self._row.limit(max(run.deadline, time.monotonic()))
        call_hooks(run, outcome, self._served, self._wait)
        self._check_self(run)

    def _report_end(
        self, end: Decided | JobDone, outcome: RunOutcome, run: RunningJob
    ) -> RunOutcome:
        """Report an outcome, and return it; the job fails if its result cannot be sent."""
        if self._pipes.send(encode(end)):  # no signal can interrupt this
            return outcome
        error = PayloadError(
            f"The result of {run.task_name} could not be handed to the worker, because the system "
            "had no memory or descriptor for it; its child's log has the reason."
        )
        outcome = outcomes.failed(run, error)
        self._reply_to_parent(replace(end, ended=outcome.ended))
        return outcome

    def _run_job(self, assign: Assign, run: RunningJob) -> RunOutcome:
        if assign.died and not assign.overran:
            return self._outcome_of_dead(assign, run)
        allow_pickle = assign.queue in self._setting.pickled
        in_run = False
        try:
            if assign.overran:
                identify(run, self._served)
                run.timed_out = True
                raise JobTimeout(f"{outcomes.overrun(run)} {assign.died}")
            target = read(run, self._served, allow_pickle=allow_pickle)
            call = prepare(run, target, self._lifespan)
            set_title(f"bide child: {run.task_name} (job {short_id(run.claimed.id)})")
            run.deadline = time.monotonic() + run.policy.timeout
            self._row.limit(run.deadline)
            in_run = True
            run.started_at = time.monotonic()
            if target.is_async:
                return self._run_coroutine(call, run)
            return outcomes.completed(run, self._interrupts.call(run, call.run, self._wait))
        except BaseException as error:
            enter(run.job or run.as_job())
            return outcomes.raised(run, error, self._served, in_run=in_run)

    def _run_coroutine(self, call: Invocation, run: RunningJob) -> RunOutcome:
        try:
            result = self._wait(self._interrupts.wait(run, call.run_async))
            return outcomes.completed(run, result)
        except (OSError, RuntimeError) as error:
            if not self._is_unfit:
                raise
            # The job did not cause this, and it has not started.
            log.warning("a child runs no coroutines any more (%r), and is replaced", error)
            return RunOutcome(UNBEGUN, None, None)

    def _outcome_of_dead(self, assign: Assign, run: RunningJob) -> RunOutcome:
        """Return the outcome of a job whose child, or whose worker, has died."""
        identify_if_possible(run, self._served)
        if assign.lost:
            return outcomes.lost(run, assign.died, assign.has_failed)
        return outcomes.died(run, assign.died)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; the first call creates the event loop, and later calls use it again.

        `asyncio.Runner` does the same, but takes as long as a small job. The loop is not set as the
        thread's event loop, because plain functions may set and close one of their own.
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
            if task and not task.done():  # a signal ended it: it must not continue later
                task.cancel()
                with contextlib.suppress(BaseException):
                    task.get_loop().run_until_complete(asyncio.wait([task], timeout=GRACE))

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        with self._pipes.keep():
            loop = lifespan.new_event_loop()
            loop.run_until_complete(asyncio.sleep(0))  # its first run opens descriptors
        return loop

    def prepare(self) -> None:
        """Prepare in the fork server, so that children handle signals from their start."""
        self._pipes.reserve_descriptor()
        self._interrupts.listen()

    def _check_self(self, run: RunningJob) -> None:
        """End this process if it can no longer report its job's outcome."""
        if os.getpid() != self._pid:  # the job forked, and the copy has returned from it too
            os._exit(0)
        if not self._pipes.are_whole:
            with contextlib.suppress(Exception):
                log.error(
                    "job %s closed descriptors that are not its own", short_id(run.claimed.id)
                )
            os._exit(1)


def set_up(parent: int) -> None:
    """Become the leader of a session, which the worker can kill with all its processes.

    Processes that leave the session are adopted here. Otherwise the fork server would adopt them,
    and kill them as processes that a dead child left behind.
    """
    os.setsid()
    linux.become_subreaper()
    linux.set_pdeathsig(signal.SIGKILL)
    if os.getppid() != parent:  # the parent has died already
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs would inherit SIG_IGN
    set_title(IDLE)


def flush() -> None:
    """Flush stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def run_child(child: Child, slot: int, row: ChildRow) -> NoReturn:
    """Run as a child, and exit without the exit handlers of the parent."""
    code = 1
    try:
        code = child.live(slot, row)
    except BaseException:
        log.exception("a child broke")
    finally:
        flush()
        os._exit(code)
