"""How many jobs a worker takes beyond its slots, so that quick ones do not wait for round trips.

What waits in the worker waits behind its own jobs, while others may be free. So it is no more than
a few milliseconds of work, as jobs have been lately; and what waits though nothing moves goes back.
"""

from __future__ import annotations

from typing import Final

AHEAD: Final = 0.005
"""Seconds of work that may wait for a slot."""

STALE: Final = 0.05
"""Seconds without a free slot, or a job's end, after which what waits is given back: other workers
may have a slot that is free."""

_WEIGHT: Final = 0.1


class Pace:
    """How long jobs have been taking."""

    def __init__(self) -> None:
        self._mean = 0.0

    def took(self, seconds: float) -> None:
        """A job has ended, so long after it began."""
        self._mean += (_WEIGHT if self._mean else 1.0) * (seconds - self._mean)

    def takes(self, seconds: float) -> None:
        """A job has been running for so long, and has not ended.

        That says nothing where nothing is known: it may have begun just now.
        """
        if self._mean:
            self._mean = max(self._mean, seconds)

    def ahead(self, most: int) -> int:
        """How many jobs may wait for one slot; none while nothing is known of them."""
        return min(most, int(AHEAD / self._mean)) if self._mean else 0
