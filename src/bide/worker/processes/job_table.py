"""The job table: shared memory in which the worker sees which child runs which job.

A child writes its own row without a system call. The worker reads it at any time, and in particular
after the child's death. A row consists of aligned words. Each word is written atomically, and by
one side only.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Set
from typing import Final

_ROW: Final = 64
_WORD: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<d")
_JOB, _BEGUN, _DEADLINE, _CANCEL = 0, 8, 16, 24


class JobTable:
    """The rows of all slots."""

    def __init__(self, fd: int) -> None:
        """Map a table that `create` returned."""
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    @staticmethod
    def create(rows: int) -> int:
        """Create an empty table; return the descriptor that maps it, here and in children."""
        fd = os.memfd_create("bide-table")
        os.ftruncate(fd, rows * _ROW)
        return fd

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._map) // _ROW

    def row(self, slot: int) -> Row:
        """Return the row of a slot."""
        return Row(self._map, slot * _ROW)

    def close(self) -> None:
        """Unmap the table."""
        self._map.close()


class Row:
    """The row of one child."""

    __slots__ = ("_at", "_map")

    def __init__(self, map: mmap.mmap, at: int) -> None:
        self._map = map
        self._at = at

    def begin(self, number: int, now: float, deadline: float = 0.0) -> None:
        """Record the child's job; `now` is `time.monotonic()`, a clock that all processes share."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)
        _TIME.pack_into(self._map, self._at + _BEGUN, now)
        _WORD.pack_into(self._map, self._at + _JOB, number)

    def limit(self, deadline: float) -> None:
        """Set the time by which the job must have ended."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)

    def end(self) -> None:
        """Record that the child runs no job."""
        _WORD.pack_into(self._map, self._at + _JOB, 0)

    def request_cancel(self, number: int) -> None:
        """Request the child to cancel this job."""
        _WORD.pack_into(self._map, self._at + _CANCEL, number)

    @property
    def job(self) -> int:
        """The number of the running job; 0 for none."""
        return self._read(_WORD, _JOB)  # type: ignore[return-value]

    @property
    def begun(self) -> float:
        """When the child received the job."""
        return self._read(_TIME, _BEGUN)

    @property
    def deadline(self) -> float:
        """When the job must have ended; 0 while that is not known."""
        return self._read(_TIME, _DEADLINE)

    @property
    def cancel_requested(self) -> int:
        """The number of the job that was last requested to cancel; 0 for none."""
        return self._read(_WORD, _CANCEL)  # type: ignore[return-value]

    def _read(self, kind: struct.Struct, at: int) -> float:
        value: float = kind.unpack_from(self._map, self._at + at)[0]
        return value


LOST_AFTER: Final = 1.0
"""Seconds after which a received job that is in no row is lost, once a child died or stopped."""


class LostJobs:
    """Finds jobs that are not waiting, not in a row and not answered for too long."""

    def __init__(self) -> None:
        self._up_to = 0
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether jobs that may be lost are still unaccounted for."""
        return bool(self._up_to)

    def suspect(self, handed_out: Set[int]) -> None:
        """Watch these jobs: a child that may have received one of them cannot report any more."""
        self._up_to = max(handed_out, default=0)

    def find(self, unseen: Set[int], waiting: Set[int], now: float) -> list[int]:
        """Return the lost jobs: missing for longer than `LOST_AFTER`.

        Args:
            unseen: all jobs that were sent to children and are in no row.
            waiting: the jobs among them that may still wait for a child.
            now: `time.monotonic()`.
        """
        if not any(number <= self._up_to for number in unseen):
            self._up_to = 0
        self._since = {number: self._since.get(number, now) for number in unseen - waiting}
        return [number for number, since in self._since.items() if now - since > LOST_AFTER]
