"""Reads from the system which processes there are; a process may end while it is read."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest


def children(pid: int) -> list[int]:
    """The processes that a process has started, and not reaped."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if name.isdigit() and int(_stat(int(name))[1]) == pid:
                found.append(int(name))
    return sorted(found)


def descendants(pid: int) -> set[int]:
    """The children of a process, their children, and so on."""
    found: set[int] = set()
    front = [pid]
    while front := [child for parent in front for child in children(parent)]:
        found.update(front)
    return found


def state(pid: int) -> str:
    """How a process is: `S`, `T`, `Z`; nothing where it is gone."""
    with suppress(OSError):
        return _stat(pid)[0]
    return ""


def _stat(pid: int) -> list[str]:
    return Path("/proc", str(pid), "stat").read_text("utf-8").rpartition(")")[2].split()
