"""Processes and what became of them, as Linux tells it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_DYING: Final = 2.0
"""Seconds for processes to go that were killed."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


_libc: Final = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError):  # a C library without it: leases end by themselves
        _libc.prctl(option, value, 0, 0, 0)


def hear_of_parents_death(number: signal.Signals) -> None:
    """Have the system send this process a signal when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of whatever is left behind by children, however deep."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def rss(pid: int) -> int:
    """The memory of a process, in bytes; 0 where that cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def is_idle(pid: int) -> bool:
    """Whether a process does nothing: it is stopped (SIGSTOP, a debugger), or dead."""
    stat = _stat(pid)
    return stat is not None and stat[0] in ("T", "t", "Z", "X")


def bury(seen: set[int]) -> set[int]:
    """Reap which of this process's dead children were `seen` before; those that are left.

    What was adopted has nobody else to do it. What was started here may have: whoever did it, and
    wants to know how it ended, has had the time since it was seen.
    """
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return set()
    except ChildProcessError:
        return set()
    dead = {pid for pid in children() if is_idle(pid)}
    for pid in dead & seen:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return dead - seen


def children() -> list[int]:
    """The processes whose parent this one is now, those it has adopted too."""
    me = os.getpid()
    return [pid for pid in _all() if (stat := _stat(pid)) is not None and stat[1] == me]


def kill_children() -> None:
    """Kill all children of this process, those they leave behind too, and reap them.

    One that may not be killed (it runs as another user), or cannot be just now, is left.
    """
    until = time.monotonic() + _DYING
    while (left := children()) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def kill_session(pid: int) -> None:
    """Kill a child that leads a session, and the processes it started there."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


MARK: Final = "BIDE_NURSERY"
"""The variable in the environment that all descendants of a nursery have."""


def kill_marked(mark: str) -> None:
    """Kill all that is left of a nursery which could not do so itself, and see it gone.

    One that is dying may yet take a message from a line, which nobody would hear of.
    """
    wanted = f"{MARK}={mark}".encode()
    until = time.monotonic() + _DYING
    while sum(_kill_if_marked(pid, wanted) for pid in _all()) and time.monotonic() < until:
        time.sleep(0.001)


def _kill_if_marked(pid: int, wanted: bytes) -> bool:
    """Whether it was there to be killed; what is dead has no environment any more."""
    with suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            marked = wanted in file.read().split(b"\0")
        if marked:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _all() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> tuple[str, int] | None:
    """The state of a process, and its parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state.decode(), int(parent)
