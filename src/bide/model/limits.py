"""Limits of a queue: rate, concurrency, and the retention of finished jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from bide.errors import UsageError
from bide.model.durations import (
    LONGEST_US,
    SECOND_US,
    UNIT_US,
    Duration,
    from_us,
    is_whole,
    to_bytes,
    to_us,
)

MOST: Final = 1_000_000
"""Maximum jobs of a rate, of a burst, or of a concurrency."""

FINEST_US: Final = 10_000
"""The default burst is the number of jobs in this time, and at least one job."""

NONE: Final = "none"
KEEP: Final = "keep"
"""Script arguments for no limit, and for an unchanged limit."""

DECLARED: Final = "declared"
"""The word that `configure` takes for the value that a worker's program declares."""


class Limits(NamedTuple):
    """The limits of a queue, and whether a limit holds it back now."""

    rate: str | None = None
    """Jobs that may start per time, such as `"100/s"`; None for no limit."""
    burst: int | None = None
    """Jobs that may start at once after a quiet time; None without a rate."""
    concurrency: int | None = None
    """Jobs that may run at once, over all workers; None for no limit."""
    held_until: datetime | None = None
    """Until when one of its jobs holds the queue (`PauseQueue`); None if none."""
    limited_until: datetime | None = None
    """When the next job may start, if the rate is used up; otherwise None."""
    declared: str | None = None
    """The limits that a program declares and that have no effect, because others were configured:
    `"5/s, 3 at once"`; None if there are none."""
    group_rate: str | None = None
    """Jobs of each group without a rate of its own that may start per time; None for no limit."""
    group_burst: int | None = None
    """Jobs of such a group that may start at once after a quiet time; None without that rate."""

    @classmethod
    def read(cls, meta: Mapping[str, bytes], now_us: int) -> Limits:
        """Read the queue's settings; an unreadable limit counts as no limit."""
        held_us, most = _number(meta.get("held_until")), _number(meta.get("concurrency"))
        held_until = from_us(held_us) if held_us > now_us else None
        found = _NUMBERS.fullmatch(meta.get("rate", b""))
        count, period_us, burst = map(int, found.groups()) if found else (0, 0, 0)
        shared, without_effect = written_rate(meta.get("group_rate", b"")), _without_effect(meta)
        if not (count and period_us and burst):
            return cls(None, None, most or None, held_until, None, without_effect, *shared)
        next_us = _refilled_us(count, period_us, burst, meta.get("spent", b""), now_us)
        until = from_us(next_us) if next_us > now_us else None
        rate = f"{count}/{_written(period_us)}"
        return cls(rate, burst, most or None, held_until, until, without_effect, *shared)


def _without_effect(meta: Mapping[str, bytes]) -> str | None:
    """Describe the declared limits that differ from the stored ones."""
    parts = []
    most = meta.get("declared_concurrency")
    for name, what in (("rate", ""), ("group_rate", " in each group")):
        rate = meta.get(f"declared_{name}")
        if rate is not None and rate != meta.get(name, _NO_RATE):
            written = written_rate(b"" if rate == _NO_RATE else rate)
            parts += [f"{one}{what}" for one in describe_limits(*written) or ["no rate"]]
    if most is not None and most != meta.get("concurrency", b"0"):
        parts += describe_limits(None, None, _number(most)) or ["any number at once"]
    return ", ".join(parts) or None


_NO_RATE: Final = b"0 0 0"

TOGETHER: Final = (
    ("rate", "burst"),
    ("concurrency",),
    ("group_rate", "group_burst"),
    ("retention",),
)
"""The settings of a queue; those that are stored as one value stand together."""


def read_declared(meta: Mapping[str, bytes]) -> dict[str, Any]:
    """Read the settings that a worker's program declared last; only those that it declares."""
    found: dict[str, Any] = {}
    for rate, burst in (TOGETHER[0], TOGETHER[2]):
        stored = meta.get(f"declared_{rate}")
        if stored is not None:
            found[rate], found[burst] = written_rate(b"" if stored == _NO_RATE else stored)
    most, kept = meta.get("declared_concurrency"), meta.get("declared_retention", b"")
    if most is not None:
        found["concurrency"] = _number(most) or None
    bounds, _, results = kept.rpartition(b" ")
    if _STORED.fullmatch(bounds):
        found["retention"] = Retention.read(bounds, results)
    return found


def stored_rate(rate: Any, burst: Any = None, name: str = "rate") -> str:
    """Convert a rate to its stored form: number, period in µs, burst; `name` is its option's."""
    if rate is None:
        if burst is not None:
            given = name.replace("rate", "burst")
            raise UsageError(
                f"{given}= says how many of a rate come at once; give it along with {name}=."
            )
        return NONE
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if not found:
        raise UsageError(
            f"{name} must be how many in which time, such as '100/s' or '5/10m', not {rate!r}."
        )
    count = _checked(int(found[1]), "The number of a rate")
    unit = found[2]
    period_us = to_us(unit if unit[0].isdecimal() else f"1{unit}", "The time of a rate")
    if period_us < count:
        raise UsageError(f"{name}={rate!r} is over a million in a second; leave the limit out.")
    if burst is None:
        burst = max(1, count * FINEST_US // period_us)
    burst = _checked(burst, "burst")
    if burst * period_us > LONGEST_US * count:
        raise UsageError(f"A burst of {burst:,} takes over a hundred years at {rate}; give less.")
    return f"{count} {period_us} {burst}"


class Declared(NamedTuple):
    """The settings that a program declares for a queue, in their stored forms; `KEEP` for none."""

    rate: str = KEEP
    concurrency: str = KEEP
    group_rate: str = KEEP
    retention: str = KEEP
    """Bounds and bytes of results."""


def written_rate(stored: bytes) -> tuple[str | None, int | None]:
    """Convert a stored rate to text and burst; None and None if there is no rate."""
    found = _NUMBERS.fullmatch(stored)
    if not found:
        return None, None
    return f"{int(found[1])}/{_written(int(found[2]))}", int(found[3])


def per_second(rate: str) -> float:
    """Return the jobs per second of a rate: 0.5 for `"5/10s"`."""
    number, _, time = rate.partition("/")
    unit = time.lstrip("0123456789")
    return int(number) * SECOND_US / (int(time.removesuffix(unit) or 1) * _UNITS.get(unit, 1))


def describe_limits(
    rate: str | None,
    burst: int | None,
    concurrency: int | None = None,
    group_rate: str | None = None,
    group_burst: int | None = None,
) -> list[str]:
    """Describe limits for people: `100/s in bursts of 10`, `5 at once`, `1/s in each group`."""
    parts = []
    if rate:
        parts.append(f"{rate} in bursts of {burst}" if burst != 1 else rate)
    if concurrency:
        parts.append(f"{concurrency} at once")
    if group_rate:
        parts += [f"{one} in each group" for one in describe_limits(group_rate, group_burst)]
    return parts


def stored_active(concurrency: Any) -> str:
    """Convert a concurrency to its stored form."""
    return NONE if concurrency is None else str(_checked(concurrency, "concurrency"))


def _checked(number: Any, what: str) -> int:
    if not is_whole(number, 1, MOST):
        raise UsageError(f"{what} must be a whole number from 1 to {MOST:,}, not {number!r}.")
    return int(number)


def _refilled_us(count: int, period_us: int, burst: int, spent: bytes, now_us: int) -> int:
    """Return when the next job may start, as `rate_limit.lua` does; the past means now."""
    found = _NUMBERS.fullmatch(spent)
    at_us, taken, _ = map(int, found.groups()) if found else (now_us, 0, 0)
    next_us = at_us + math.ceil((taken + 1 - burst) * period_us / count)
    return min(next_us, now_us + math.ceil(period_us / count))


def _written(period_us: int) -> str:
    for unit, size in _UNITS.items():
        if period_us % size == 0:
            return unit if period_us == size else f"{period_us // size}{unit}"
    return f"{period_us}us"


def _number(stored: bytes | None) -> int:
    return int(stored) if stored and stored.isdigit() and len(stored) <= 16 else 0


_NUMBERS: Final = re.compile(rb"([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,16})")
_RATE: Final = re.compile(r"\s*([0-9]{1,9})\s*/\s*((?:[0-9][^/]*)?(?:ms|us|[wdhms]))\s*")
_UNITS: Final = {unit: UNIT_US[unit] for unit in ("d", "h", "m", "s", "ms")}


MOST_KEPT: Final = 1_000_000
"""Maximum finished jobs of one state that a queue keeps."""


RESULT_BYTES: Final = 100_000_000
"""Default maximum bytes of results that a queue keeps."""


class Retention(msgspec.Struct, frozen=True):
    """The retention of finished jobs of a queue, set with `queue.configure(retention=...)`.

    Jobs that finished in the last 15 s are always kept, so that a call that is retried after a lost
    reply finds its own effect.
    """

    completed: Duration = "1d"
    """How long completed jobs, and their results, are kept."""
    failed: Duration = "30d"
    """How long failed jobs are kept."""
    cancelled: Duration = "1d"
    """How long cancelled jobs are kept."""
    count: int = 10_000
    """Maximum number of jobs that are kept in each state, up to 1,000,000."""
    results: int | str = RESULT_BYTES
    """Maximum bytes of results that the queue keeps, or text such as `"1GB"`.

    If a new result does not fit, the server drops the oldest results. The jobs stay; reading a
    dropped result raises `ResultDropped`. Results under 2,000 bytes are not counted.
    """

    def stored(self) -> str:
        """Convert to the stored form: count and age in µs of each state."""
        count = self.count
        if not is_whole(count, 0, MOST_KEPT):
            raise UsageError(f"Retention count must be from 0 to {MOST_KEPT:,}, not {count!r}.")
        ages = [to_us(getattr(self, state), f"Retention {state}") for state in _STATES]
        return " ".join(f"{count} {age}" for age in ages)

    def result_bytes(self) -> int:
        """Return the maximum bytes of results."""
        return to_bytes(self.results, "Retention results")

    @classmethod
    def read(cls, text: bytes | None, results: bytes | None = None) -> Retention:
        """Read the queue's settings; the default if nothing readable was set."""
        found = _STORED.fullmatch(text or b"")
        kept = int(results) if results and results.isdigit() else RESULT_BYTES
        if not found:
            return cls(results=kept)
        count, completed, _, failed, _, cancelled = map(int, found[0].split())
        return cls(completed / 1e6, failed / 1e6, cancelled / 1e6, count, kept)


_STORED: Final = re.compile(rb"([0-9]{1,16} ){5}[0-9]{1,16}")
_STATES: Final = ("completed", "failed", "cancelled")
