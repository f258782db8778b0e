"""Durations, points in time, sizes: what users write, and the whole numbers that scripts take.

A relative delay travels to the server as a delta and is added to the server's own clock there, so
that a client whose clock is wrong delays nothing wrongly. Only an absolute `at=` depends on the
caller's clock, as it must.
"""

from __future__ import annotations

import math
import random
import re
from datetime import datetime, timedelta
from typing import Any, Final

from bide.errors import UsageError

Duration = int | float | timedelta | str
"""Seconds, a `timedelta`, or text such as `"30m"`, `"1h30m"`, `"250ms"`."""

SECOND_US: Final = 1_000_000
JITTER: Final = random.SystemRandom()
"""Spreads the waits of many processes. An application may seed the global `random` alike in all."""

LONGEST_US: Final = 100 * 366 * 86_400 * SECOND_US
"""A hundred years: a longer delay is a mistake in units, and is refused."""

UNIT_US: Final = {
    "w": 7 * 86_400 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "m": 60 * SECOND_US,
    "s": SECOND_US,
    "ms": 1_000,
    "us": 1,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|[wdhms])")
_TEXT: Final = re.compile(r"-?(?:(?:\d+(?:\.\d+)?(?:ms|us|[wdhms]))+|\d+(?:\.\d+)?)")


def to_us(duration: Duration, name: str = "delay") -> int:
    """Turn a duration into whole microseconds, up to a hundred years; `name` is for errors."""
    us = _signed_us(duration, name)
    if us < 0:
        raise UsageError(f"{name} must not be negative, but is {duration!r}; give 0 or more.")
    return round(us)


def delay_to_us(delay: Duration) -> int:
    """Turn a delay into whole microseconds from now; a negative delay has passed and means now."""
    us = _signed_us(delay, "delay")
    return round(us) if us > 0 else 0


def _signed_us(duration: Duration, name: str) -> int | float:
    us: int | float
    if type(duration) is int:
        us = duration * SECOND_US
    elif isinstance(duration, str):
        us = _parse(duration, name)
    elif isinstance(duration, timedelta):
        us = _whole_us(duration)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        if duration != duration or duration in (float("inf"), float("-inf")):
            raise UsageError(f"{name} must be a finite number of seconds, not {duration!r}.")
        us = duration * SECOND_US
    else:
        hint = "; a moment is given as at=" if isinstance(duration, datetime) else ""
        raise UsageError(
            f"{name} must be seconds, a timedelta or text such as '30m', "
            f"not {type(duration).__name__}{hint}."
        )
    if us > LONGEST_US:
        raise UsageError(f"{name} is over a hundred years; is the unit seconds?")
    return us


def at_to_us(at: datetime, name: str = "at") -> int:
    """Turn an aware `datetime` into microseconds since the epoch; `name` is for errors."""
    if not isinstance(at, datetime):
        raise UsageError(
            f"{name} must be an aware datetime, not {type(at).__name__}; write for example "
            "datetime.now(timezone.utc) + timedelta(hours=1)."
        )
    try:
        us = _whole_us(at - _EPOCH)
    except TypeError:
        raise UsageError(
            f"{name}={at.isoformat()} has no time zone, so it names no one moment; "
            "give it one, for example at.replace(tzinfo=timezone.utc) or at.astimezone()."
        ) from None
    if not 0 <= us < _YEAR_2200_US:
        raise UsageError(f"at={at.isoformat()} lies outside the years 1970 to 2199.")
    return us


def from_us(us: int) -> datetime:
    """Turn microseconds since the epoch into an aware `datetime` in UTC.

    A moment before 1970 or after 9998, which no script writes, becomes the nearest valid moment, so
    that showing it is not an error.
    """
    return _EPOCH + timedelta(microseconds=min(max(us, 0), _YEAR_9999_US))


def describe(seconds: float) -> str:
    """Write a duration for people: `250us`, `4.1ms`, `12.5s`, `1h30m`."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 0.001:
        return f"{sign}{seconds * 1e6:.0f}us"
    if seconds < 0.9995:  # from there on three digits round up to a second
        return f"{sign}{seconds * 1e3:.3g}ms"
    if seconds < 120:
        return f"{sign}{seconds:.3g}s"
    whole = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts[:2])


def describe_exactly(us: int) -> str:
    """Write a duration in days and smaller units; read again, it is the same."""
    parts = []
    for unit, size in UNIT_US.items():
        count, us = divmod(us, size) if unit != "w" else (0, us)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def _whole_us(delta: timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * SECOND_US + delta.microseconds


def _parse(text: str, name: str) -> float:
    compact = text.strip().replace(" ", "").lower()
    if not _TEXT.fullmatch(compact):
        raise UsageError(
            f"{name}={text!r} is not a duration; write seconds or, for example, "
            "'250ms', '30s', '1h30m', '2d'."
        )
    parts = _PART.findall(compact)
    if not parts:
        return float(compact) * SECOND_US
    us = sum(float(number) * UNIT_US[unit] for number, unit in parts)
    return -us if compact.startswith("-") else us


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_YEAR_9999_US: Final = 253_370_764_800 * SECOND_US
_YEAR_2200_US: Final = 7_258_118_400 * SECOND_US


def is_whole(number: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is a whole number in a range; True and False are no numbers."""
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def to_bytes(size: Any, what: str) -> int:
    """A size of memory in bytes: a number of them, or text such as `"500MB"`, `"2GB"`."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        number = int(float(found[1]) * _UNITS[found[2].upper()])
    else:
        number = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if 0 < number <= MOST_BYTES:
        return number
    raise UsageError(f"{what} must be a size such as 500MB or 2GB, not {size!r}.")


MOST_BYTES: Final = 10**15
"""A petabyte: a larger size is a mistake, and is refused."""

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?((?:[kmg]?b)?)", re.IGNORECASE)
