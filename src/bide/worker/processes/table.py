"""What runs where: a table in memory that the worker and its children share.

A child writes its own row, without a system call; the worker reads it at any time, above all when
the child is dead. A row is a few aligned words, each written at once, by one side only.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

_ROW: Final = 64
_WORD: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<d")
_JOB, _BEGUN, _DEADLINE, _ASKED = 0, 8, 16, 24


class Table:
    """Rows, one per slot for a child."""

    def __init__(self, fd: int) -> None:
        """Map a table that `create` has made."""
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    @staticmethod
    def create(rows: int) -> int:
        """Make an empty table; the descriptor to map it with, here and in children."""
        fd = os.memfd_create("bide-table")
        os.ftruncate(fd, rows * _ROW)
        return fd

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._map) // _ROW

    def row(self, slot: int) -> Row:
        """The row of a slot."""
        return Row(self._map, slot * _ROW)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


class Row:
    """What one child is at."""

    __slots__ = ("_at", "_map")

    def __init__(self, map: mmap.mmap, at: int) -> None:
        self._map = map
        self._at = at

    def begin(self, number: int, now: float, deadline: float = 0.0) -> None:
        """The child has taken this job; `now` is `time.monotonic()`, alike in all processes."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)
        _TIME.pack_into(self._map, self._at + _BEGUN, now)
        _WORD.pack_into(self._map, self._at + _JOB, number)

    def limit(self, deadline: float) -> None:
        """The job must have ended by then."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)

    def end(self) -> None:
        """The child is at nothing."""
        _WORD.pack_into(self._map, self._at + _JOB, 0)

    def ask(self, number: int) -> None:
        """The worker wants this job to end."""
        _WORD.pack_into(self._map, self._at + _ASKED, number)

    @property
    def job(self) -> int:
        """The number of the job that runs; 0 for none."""
        return self._read(_WORD, _JOB)  # type: ignore[return-value]

    @property
    def begun(self) -> float:
        """When it was taken."""
        return self._read(_TIME, _BEGUN)

    @property
    def deadline(self) -> float:
        """When its time is over; 0 while that is not known."""
        return self._read(_TIME, _DEADLINE)

    @property
    def asked(self) -> int:
        """The number of the job that was last asked to end."""
        return self._read(_WORD, _ASKED)  # type: ignore[return-value]

    def _read(self, kind: struct.Struct, at: int) -> float:
        value: float = kind.unpack_from(self._map, self._at + at)[0]
        return value
