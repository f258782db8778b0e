"""What runs where: a table in memory that the worker and its children share.

A child writes its own row, without a system call; the worker reads it at any time, above all when
the child is dead. A row is a few aligned words, each written at once, by one side only.
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
_JOB, _BEGUN, _DEADLINE, _ASKED = 0, 8, 16, 24


class JobTable:
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


ASTRAY: Final = 1.0
"""Seconds for which a job may have been taken and stand in no row, once a child died or stopped."""


class LostJobs:
    """Jobs that are neither waiting, nor in a row, nor answered, and since when."""

    def __init__(self) -> None:
        self._up_to = 0
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether one of those that are suspected is still to be accounted for."""
        return bool(self._up_to)

    def suspect(self, handed_out: Set[int]) -> None:
        """Someone who could take one of these will not say so any more."""
        self._up_to = max(handed_out, default=0)

    def find(self, unseen: Set[int], waiting: Set[int], now: float) -> list[int]:
        """Those that have been missing for longer than a child takes from taking to its row.

        Args:
            unseen: all that were handed out, and stand in no row.
            waiting: those of them that may still wait for a child.
            now: `time.monotonic()`.
        """
        if not any(number <= self._up_to for number in unseen):
            self._up_to = 0
        self._since = {number: self._since.get(number, now) for number in unseen - waiting}
        return [number for number, since in self._since.items() if now - since > ASTRAY]
