"""Waiting for what signals its change to nobody: another process's file, state or end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which what has not happened counts as never."""


def eventually(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """The first true value of `condition`, which is asked again and again."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s; at last: {value!r}")
        time.sleep(0.003)
    return value
