"""Threads for plain functions.

They are daemon threads, because a thread that hangs must not keep the process alive. A new thread
starts only when none is idle. So a worker with 100 slots has only as many threads as its jobs
needed at the same time.

`loop.call_at` sleeps in `epoll_wait`, which counts in milliseconds and rounds up. A `timerfd`
fires within microseconds of the due time, in any event loop that watches file descriptors
(timerfd_create(2)). Without `timerfd`, the loop's own timer is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

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
                    args=(work,),
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

    def _serve(self, work: Work | None) -> None:
        while work is not None:
            ended = work()
            with self._lock:
                self._idle += 1
            ended()
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
