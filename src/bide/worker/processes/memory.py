"""The memory of a process that forks often: in few large pages instead of many small ones.

A fork copies the table of all pages that a process has written, and the child's end takes that
copy apart: for an application of some size this costs more than most jobs. A large page counts as
one of them, until somebody writes to it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_LARGE: Final = 2 << 20
_MADV_COLLAPSE: Final = 25
_AREA: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 .*\n(?:\w+:.*\n)*?Anonymous: +(\d+) kB", re.MULTILINE
)


def use_large_pages() -> None:
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
