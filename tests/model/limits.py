"""The limits of the model's queue: what may begin, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

FOREVER = 10**18


@dataclass
class Bucket:
    """A rate: a job takes a token, and one comes each `period / count` until there are `burst`."""

    count: int
    period: int
    burst: int
    at: int
    """When it was last full, or is as if it had been."""
    taken: int
    """How many were taken since."""
    last: int
    """When the latest was."""
    rewound: bool = False
    """The clock was set back since it was stored."""

    @property
    def each(self) -> Fraction:
        return Fraction(self.period, self.count)

    @property
    def full_at(self) -> Fraction:
        return self.at + self.taken * self.each

    @classmethod
    def read(cls, rate: str, spent: str, now: int) -> Bucket | None:
        if not rate:
            return None
        at, taken, last = map(int, spent.split()) if spent else (now, 0, 0)
        count, period, burst = map(int, rate.split())
        bucket = cls(count, period, burst, at, taken, last)
        if bucket.full_at <= now:
            bucket.at, bucket.taken = now, 0
        elif bucket.full_at > now + bucket.burst * bucket.each:
            bucket.at, bucket.taken, bucket.rewound = now, bucket.burst, True
        return bucket

    def tokens(self, now: int) -> int:
        return max(0, min(self.burst, math.floor((now - self.full_at) / self.each) + self.burst))

    def refilled(self) -> int:
        return math.ceil(self.full_at - (self.burst - 1) * self.each)

    def stored(self) -> str:
        whole, taken = divmod(self.taken, self.count)
        return f"{self.at + whole * self.period} {taken} {self.last}"


@dataclass
class Limits:
    """How the limits stand for one claim."""

    bucket: Bucket | None
    slots: int
    held_until: int
    now: int

    @property
    def room(self) -> int:
        if self.held_until > self.now:
            return 0
        tokens = self.bucket.tokens(self.now) if self.bucket else FOREVER
        return min(self.slots, tokens)

    def opens(self) -> int:
        """When the next may begin, where it is not the end of a job that is waited for."""
        refilled = self.bucket.refilled() if self.bucket else 0
        return max(self.now + 1, self.held_until, refilled)
