"""How a job is ended by a signal: an exception in it, when its time is over or it was asked to end.

A signal's handler runs between any two steps of Python code. In the job's own code it raises, once.
While something that the job says goes to the worker it waits until that is through: an exception
there would cut the message. At other times there is nothing to be ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from bide.errors import JobCancelled
from bide.worker import judging
from bide.worker.processes.table import Row
from bide.worker.run import Run

P = ParamSpec("P")
T = TypeVar("T")

ASKED: Final = signal.SIGUSR1
"""Tells a child to look whether its job was asked to end."""

_CLOSED, _OPEN, _HELD = range(3)
_LONGEST_ALARM: Final = 1e8


class Interrupts:
    """What can end the job that runs in this process's main thread."""

    def __init__(self) -> None:
        self._run: Run | None = None
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

    def begin(self, run: Run, row: Row, number: int) -> None:
        """This job is the one that is meant from now on."""
        self._run, self._row, self._number = run, row, number
        self._waiting, self._has_heeded = None, False

    def end(self) -> None:
        """None is."""
        self._run = None

    def call(self, run: Run, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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

    async def wait(self, run: Run, coroutine: Coroutine[Any, Any, T]) -> T:
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

    def let_go(self) -> None:
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
        return judging.overrun(self._run)

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
