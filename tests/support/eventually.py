"""Waiting for what signals its change to nobody: another process's file, state or end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 90.0
"""Seconds after which what has not happened counts as never. Nothing but what hangs takes so long,
however busy the machine is; where a promise is about time, `cpu_waits.py` says how much of it the
machine took."""


def eventually(
    condition: Callable[[], T], within: float = PATIENCE, told: Callable[[], str] | None = None
) -> T:
    """The first true value of `condition`, which is asked again and again.

    Args:
        condition: what must come to be.
        within: seconds.
        told: what to say where it does not.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(told() if told else f"not within {within:g} s; at last: {value!r}")
        time.sleep(0.003)
    return value
