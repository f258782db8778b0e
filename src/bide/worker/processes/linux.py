"""Processes and what became of them, as Linux tells it.

A fork copies the table of all pages that a process has written, and the child's end takes that
copy apart: for an application of some size this costs more than most jobs. A large page counts as
one of them, until somebody writes to it.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Final

from bide.logs import Log
from bide.worker.processes.ipc import Exited

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_DYING: Final = 2.0
"""Seconds for processes to go that were killed."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


_libc: Final = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError):  # a C library without it: leases end by themselves
        _libc.prctl(option, value, 0, 0, 0)


def set_pdeathsig(number: signal.Signals) -> None:
    """Have the system send this process a signal when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
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


def reap(seen: set[int]) -> set[int]:
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


def signal_name(number: int) -> str:
    """What a signal is called; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(died: Exited) -> str:
    """How a process ended, in a sentence."""
    code = os.waitstatus_to_exitcode(died.status)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    memory = f"; it had used up to {died.rss / 1e6:.1f} MB" if died.rss else ""
    return f"Its process {how}{memory}."


_PROGRAM: Final = """
import sys
path = sys.argv[1].split("\\n")
sys.path += path
from {module} import {name}
sys.path[:] = path
{name}()
"""


def python_command(main: str, *args: str) -> list[str]:
    """The command line of a Python that calls a function, given as `module:name`.

    It looks for modules where this one does; but what it needs itself it takes from Python first,
    so that a `queue.py` in the user's directory is not taken for Python's own (for which `-P` is,
    too). Arguments come last.
    """
    module, _, name = main.partition(":")
    switches: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = _PROGRAM.format(module=module, name=name)
    return [sys.executable, *switches, "-P", "-c", program, "\n".join(sys.path), *args]


_LARGE: Final = 2 << 20
_MADV_COLLAPSE: Final = 25
_AREA: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 .*\n(?:\w+:.*\n)*?Anonymous: +(\d+) kB", re.MULTILINE
)


def use_huge_pages() -> None:
    """Have the system make large pages of small ones; one that cannot leaves all as it is."""
    with suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        for first, last in _areas():
            advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _areas() -> Iterator[tuple[int, int]]:
    """Where this process has written most of what it has, in bounds of large pages.

    What is written here and there would take much more memory than it did.
    """
    with open("/proc/self/smaps") as file:
        told = file.read()
    for start, end, written in _AREA.findall(told):
        first, last = int(start, 16), int(end, 16)
        if int(written) * 1024 * 2 > last - first:
            first, last = -(-first // _LARGE) * _LARGE, last // _LARGE * _LARGE
            if first < last:
                yield first, last


log = Log("bide.worker")


def warn(ours: Container[int]) -> None:
    """Say so in the log; `ours` are descriptors that are meant to be there."""
    threads = _threads()
    if threads:
        log.warning(
            "what was imported has started threads, which no child has: %s; start them in a "
            "resource",
            ", ".join(threads),
        )
    peers = _peers(ours)
    if peers:
        log.warning(
            "what was imported has opened connections, which all children share: to %s; open them "
            "in a resource, unless they are made again after a fork, as those of bide and redis-py "
            "are",
            ", ".join(peers),
        )


def _threads() -> list[str]:
    """The names of all threads but this one."""
    me, names = threading.get_native_id(), {t.native_id: t.name for t in threading.enumerate()}
    with suppress(OSError):
        others = sorted(int(name) for name in os.listdir("/proc/self/task"))
        return [
            names.get(other, f"one that is not Python's ({other})")
            for other in others
            if other != me
        ]
    return [name for id, name in names.items() if id != me]


def _peers(ours: Container[int]) -> list[str]:
    """Whom sockets are connected to by streams."""
    found = []
    with suppress(OSError):
        for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
            if fd not in ours:
                with suppress(OSError):
                    found.append(_peer(fd))
    return found


def _peer(fd: int) -> str:
    """Whom a descriptor is connected to.

    Raises:
        OSError: nobody, or not by a stream.
    """
    with socket.socket(fileno=os.dup(fd)) as line:
        if line.type != socket.SOCK_STREAM:
            raise OSError("no stream")
        peer = line.getpeername()
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer) or "a socket pair"
