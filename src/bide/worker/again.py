"""Trying again while the server does not answer: how long to wait, and how often to log it."""

from __future__ import annotations

import random
from typing import Final

_FIRST: Final = 0.05
_LONGEST: Final = 2.0

SAY_EVERY: Final = 30
"""Failures for each line of the log: a line a minute, about."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: growing, bounded and jittered."""
    pause = min(_FIRST * 2.0 ** min(failures - 1, 16), _LONGEST)
    return pause * random.uniform(0.5, 1.0)
