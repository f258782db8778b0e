"""Linux functions on processes: state, memory, signals, reaping, time slices, and huge pages.

A fork copies the table of all pages that a process has written, and the child's exit frees that
copy. In an application of some size this costs more than most jobs. A huge page needs only one
entry of the table, until a process writes to it.
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
from contextlib import contextmanager, suppress
from typing import Final

from bide.logs import Log
from bide.worker.processes.ipc import Exited

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_DYING: Final = 2.0
"""Seconds to wait until killed processes have gone."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


_libc: Final = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError):  # the C library lacks it; leases end without it
        _libc.prctl(option, value, 0, 0, 0)


def set_pdeathsig(number: signal.Signals) -> None:
    """Request a signal to this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Become the parent of all orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class _Scheduling(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2), in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


_GET_AND_SET: Final = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""By machine, the numbers of the system calls: the C library may have no functions for them."""
_RESET_ON_FORK: Final = 1
_SLICE_NS: Final = 300_000


@contextmanager
def short_slices() -> Iterator[None]:
    """Give this thread shorter time slices; the threads and processes it starts have usual slices.

    When it wakes up, it then need not wait for the end of the longer slice of a busy process,
    unless it has just used its share of the processor. This share stays the same. Linux before 6.12
    has no slices of single threads, and a thread with another policy, a negative nice value or
    shorter slices keeps what it has.
    """
    numbers = _GET_AND_SET.get(os.uname().machine)
    found = _Scheduling()
    size = ctypes.sizeof(found)
    if numbers is None or sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        yield
        return
    get, set_ = numbers
    is_known = _libc.syscall(get, 0, ctypes.byref(found), size, 0) == 0
    usual_ns = found.slice_ns  # 0 on an older system
    if not is_known or found.policy != os.SCHED_OTHER or found.nice < 0 or usual_ns <= _SLICE_NS:
        yield
        return
    found.flags, found.slice_ns = _RESET_ON_FORK, _SLICE_NS
    _libc.syscall(set_, 0, ctypes.byref(found), 0)
    try:
        yield
    finally:
        found.slice_ns = usual_ns
        _libc.syscall(set_, 0, ctypes.byref(found), 0)


def rss(pid: int) -> int:
    """Return the memory of a process in bytes; 0 if it cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def is_idle(pid: int) -> bool:
    """Whether a process cannot run: it is stopped (SIGSTOP, a debugger), or dead."""
    stat = _stat(pid)
    return stat is not None and stat[0] in ("T", "t", "Z", "X")


def reap(seen: set[int]) -> set[int]:
    """Reap the dead children that were in `seen`; return the other dead children.

    Only this process can reap an adopted child. A child that a job started may be awaited by that
    job, which has had the time since the child was first seen dead.
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
    """Return the ids of the children of this process, including adopted ones."""
    me = os.getpid()
    return [pid for pid in _all() if (stat := _stat(pid)) is not None and stat[1] == me]


def kill_children() -> None:
    """Kill and reap all children of this process, and the orphans that they leave behind.

    A child that runs as another user, or does not die within 2 s, is left.
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
    """Kill a child that leads a session, and the processes that it started in the session."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


MARK: Final = "BIDE_FORK_SERVER"
"""The environment variable that all descendants of a fork server have."""


def kill_marked(mark: str) -> None:
    """Kill all descendants of a fork server that died without killing them, and wait for their end.

    A dying child could still take a job from the socket, and that job would be lost.
    """
    wanted = f"{MARK}={mark}".encode()
    until = time.monotonic() + _DYING
    while sum(_kill_if_marked(pid, wanted) for pid in _all()) and time.monotonic() < until:
        time.sleep(0.001)


def _kill_if_marked(pid: int, wanted: bytes) -> bool:
    """Kill a process that has the mark; return whether it had it. Dead processes never do."""
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
    """Return the state of a process, and its parent's id."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state.decode(), int(parent)


def signal_name(number: int) -> str:
    """Return the name of a signal; a real-time signal is named by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(died: Exited) -> str:
    """Describe in a sentence how a process ended."""
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
    """Return a command line on which Python calls a function, given as `module:name`.

    The new process has the module path of this one. But it imports its own modules from Python's
    directories first, so that a `queue.py` in the user's directory does not replace Python's own.
    The option `-P` is for this too. The arguments come last.
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
    """Merge small pages into huge pages; if the system cannot do that, nothing changes."""
    with suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        for first, last in _areas():
            advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _areas() -> Iterator[tuple[int, int]]:
    """Yield the memory areas of which this process has written most, aligned to huge pages.

    Huge pages in a sparsely written area would need much more memory than before.
    """
    with open("/proc/self/smaps") as file:
        areas = file.read()
    for start, end, written in _AREA.findall(areas):
        first, last = int(start, 16), int(end, 16)
        if int(written) * 1024 * 2 > last - first:
            first, last = -(-first // _LARGE) * _LARGE, last // _LARGE * _LARGE
            if first < last:
                yield first, last


log = Log("bide.worker")


def warn(ours: Container[int]) -> None:
    """Log threads and connections that imports have opened, but not the descriptors `ours`."""
    threads = _threads()
    if threads:
        log.warning(
            "an imported module has started threads, which do not exist in child processes: %s; "
            "start them in a resource",
            ", ".join(threads),
        )
    peers = _peers(ours)
    if peers:
        log.warning(
            "an imported module has opened connections, which all children share: to %s; open them "
            "in a resource, unless they are opened again after a fork, as those of bide and "
            "redis-py are",
            ", ".join(peers),
        )


def _threads() -> list[str]:
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
    found = []
    with suppress(OSError):
        for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
            if fd not in ours:
                with suppress(OSError):
                    found.append(_peer(fd))
    return found


def _peer(fd: int) -> str:
    """Return the peer of a connected stream socket; raise an OSError for any other descriptor."""
    with socket.socket(fileno=os.dup(fd)) as line:
        if line.type != socket.SOCK_STREAM:
            raise OSError("no stream")
        peer = line.getpeername()
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer) or "a socket pair"
