"""When a job that raised is due again.

Delays grow exponentially and are drawn with full jitter, which spreads a crowd of jobs that failed
together better than any fixed or partly jittered delay (M. Brooker, "Exponential Backoff and
Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from bide.clock import to_us
from bide.errors import UsageError

_jitter = random.SystemRandom()


class Retry(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """How often, and how soon, a job that raised is run again.

    Args:
        max: retries after the first attempt; 0 means the first error is final.
        backoff: `"exponential"` doubles the ceiling each time and draws from 0 to it;
            `"fixed"` waits `base` each time.
        base: seconds; the first ceiling, or the fixed delay.
        cap: seconds; no ceiling grows past it.
    """

    max: int = 3
    backoff: Literal["exponential", "fixed"] = "exponential"
    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 0:
            raise UsageError(f"Retry(max={self.max!r}): give a number of retries, 0 or more.")
        if self.backoff not in ("exponential", "fixed"):
            raise UsageError(f"Retry(backoff={self.backoff!r}): give 'exponential' or 'fixed'.")
        for name, seconds in (("base", self.base), ("cap", self.cap)):
            if not isinstance(seconds, int | float):
                raise UsageError(f"Retry({name}={seconds!r}): give a number of seconds.")
            to_us(seconds, f"Retry {name}")

    def delay(self, attempt: int) -> float | None:
        """Seconds until the attempt after `attempt` (the first is 1), or None when spent."""
        if attempt > self.max:
            return None
        if self.backoff == "fixed":
            return self.base
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 64))
        return _jitter.uniform(0, ceiling)


NO_RETRY = Retry(0)
"""The default: an error is final until someone has said how often a task may be repeated."""


def as_retry(retry: Retry | int | None) -> Retry:
    """Accept `retry=5` for `retry=Retry(5)`."""
    if retry is None:
        return NO_RETRY
    return retry if isinstance(retry, Retry) else Retry(retry)
