"""A timer that fires on time.

`loop.call_at` sleeps in `epoll_wait`, which counts in milliseconds and rounds up. A `timerfd`
makes the same wait end within microseconds of the moment, in any event loop that watches file
descriptors (timerfd_create(2)); where there is none, the loop's own timer serves.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK_CLOEXEC: Final = 0o2004000
_TFD_TIMER_ABSTIME: Final = 1


class Alarm(Protocol):
    """Calls back at a moment of `time.monotonic()`."""

    def set(self, at: float) -> None:
        """Fire at `at`, and no more at the moment set before."""

    def close(self) -> None:
        """Fire no more."""


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _TimerFd:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = loop
        self._ring = ring
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
        except BlockingIOError:  # set anew between the loop's wake-up and this read
            return
        self._at = 0.0
        self._ring()


class _LoopTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        self._handle = self._loop.call_at(at, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The most punctual alarm of this machine; `ring` is called in the loop's thread."""
    try:
        return _TimerFd(loop, ring)
    except (AttributeError, OSError, NotImplementedError):
        return _LoopTimer(loop, ring)
