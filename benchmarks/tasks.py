"""The tasks that are run, and the log in which some note when they began.

A task that is timed takes the time in its first statement. It notes it in a file that the parent
reads afterwards: one `write` of 24 bytes, which is over long before the next job matters.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from bide.model.context import current_job
from bide.model.durations import at_to_us

LOG = "BIDE_BENCH_LOG"
"""The variable that names the log's file."""

_RECORD = struct.Struct("<qqq")


class Note(NamedTuple):
    """One thing that happened: which, when it should have, and when it did."""

    number: int
    due_ns: int
    at_ns: int

    @property
    def late_ms(self) -> float:
        """Milliseconds from when it should have happened."""
        return (self.at_ns - self.due_ns) / 1e6


class Log:
    """An append-only file of notes, which several processes may share."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, number: int, due_ns: int, at_ns: int) -> None:
        """Append a note."""
        os.write(self._fd, _RECORD.pack(number, due_ns, at_ns))


def read_log(path: Path) -> list[Note]:
    """All notes so far."""
    return [Note(*fields) for fields in _RECORD.iter_unpack(path.read_bytes())]


_log = Log(os.environ[LOG]) if LOG in os.environ else None
cpu_at_start = 0.0
first_claim_us = 0


async def nothing(number: int = 0) -> None:
    """Do nothing, on the event loop."""


def nothing_in_thread(number: int = 0) -> None:
    """Do nothing, in a thread."""


async def begin(number: int = 0) -> None:
    """Be the first job of a drain: note when it was claimed, and the CPU time spent before."""
    global cpu_at_start, first_claim_us
    cpu_at_start = time.process_time()
    first_claim_us = current_job().token  # a first claim's token is the server's time


async def stamp(number: int) -> None:
    """Note when this job began, beside when it was due."""
    at_ns = time.time_ns()
    assert _log is not None
    _log.note(number, at_to_us(current_job().due) * 1000, at_ns)


async def stamp_and_wait(number: int) -> None:
    """Note when this job began, and take 5 ms."""
    await stamp(number)
    await asyncio.sleep(0.005)


def stamp_in_thread(number: int) -> None:
    """Note when this job began, in a thread or in a process."""
    at_ns = time.time_ns()
    assert _log is not None
    _log.note(number, at_to_us(current_job().due) * 1000, at_ns)


async def fail(number: int = 0) -> None:
    """Raise at once, as a call to a service that is down does."""
    raise ConnectionError("the service is down")


async def large(number: int = 0) -> str:
    """Return as much as a result may have, but for a little."""
    return "x" * 999_000
