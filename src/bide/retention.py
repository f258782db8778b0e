"""How long, and how many, finished jobs a queue keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bide.clock import Duration, to_bytes, to_us
from bide.errors import UsageError

MOST: Final = 1_000_000
"""Finished jobs of one state that a queue keeps at most."""


@dataclass(frozen=True)
class Retention:
    """What a queue keeps of finished jobs, set with `queue.configure(retention=...)`.

    What finished in the last 15 seconds is kept whatever is said here, so that a call that is
    repeated after a lost reply still finds what it did.
    """

    completed: Duration = "1d"
    """How long completed jobs, and their results, are kept."""
    failed: Duration = "30d"
    """How long failed jobs are kept."""
    cancelled: Duration = "1d"
    """How long cancelled jobs are kept."""
    count: int = 10_000
    """How many of each are kept at most."""
    results: int | str = 100_000_000
    """Maximum bytes of results that the queue keeps, or text such as `"1GB"`.

    If a new result does not fit, the server drops the oldest results. The jobs stay; reading a
    dropped result raises `ResultDropped`. Results under 2,000 bytes are not counted.
    """

    def stored(self) -> str:
        """As the queue's settings hold it: count and age in µs of each state.

        Raises:
            UsageError: an age is not a duration, or the count is not from 0 to a million.
        """
        count = self.count
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise UsageError(f"Retention count must be from 0 to {MOST:,}, not {count!r}.")
        ages = [to_us(getattr(self, state), f"Retention {state}") for state in _STATES]
        return " ".join(f"{count} {age}" for age in ages)

    def result_bytes(self) -> int:
        """How many bytes of results are kept.

        Raises:
            UsageError: `results` is no size.
        """
        return to_bytes(self.results, "Retention results")

    @classmethod
    def read(cls, text: bytes | None, results: bytes | None = None) -> Retention:
        """From the queue's settings; the default where nothing was set that can be read."""
        found = _STORED.fullmatch(text or b"")
        kept = int(results) if results and results.isdigit() else cls.results
        if not found:
            return cls(results=kept)
        count, completed, _, failed, _, cancelled = map(int, found[0].split())
        return cls(completed / 1e6, failed / 1e6, cancelled / 1e6, count, kept)


_STORED: Final = re.compile(rb"([0-9]{1,16} ){5}[0-9]{1,16}")
_STATES: Final = ("completed", "failed", "cancelled")
