"""Converts durations, moments and sizes between the forms of users and the integers of scripts.

A delay is sent as a duration, and the server adds it to its own clock. So a wrong clock of a client
has no effect on delays. Only `at=` depends on the caller's clock.
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
"""Spreads the waits of many processes, even if the application seeds the global `random`."""

LONGEST_US: Final = 100 * 366 * 86_400 * SECOND_US
"""A hundred years. A longer delay is refused, because it is probably a wrong unit."""

UNIT_US: Final = {
    "w": 7 * 86_400 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "m": 60 * SECOND_US,
    "s": SECOND_US,
    "ms": 1_000,
    "us": 1,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?) *(ms|us|[wdhms])")
_TEXT: Final = re.compile(r"-? *(?:(?:\d+(?:\.\d+)? *(?:ms|us|[wdhms]) *)+|\d+(?:\.\d+)?)")


def to_us(duration: Duration, name: str = "delay") -> int:
    """Convert a duration to microseconds, up to a hundred years; `name` is for errors."""
    us = _signed_us(duration, name)
    if us < 0:
        raise UsageError(f"{name} must not be negative, but is {duration!r}; give 0 or more.")
    return round(us)


def delay_to_us(delay: Duration) -> int:
    """Convert a delay to microseconds from now; a negative delay means now."""
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
        is_moment = isinstance(duration, datetime) and name == "delay"
        hint = "; a moment is given as at=" if is_moment else ""
        raise UsageError(
            f"{name} must be seconds, a timedelta or text such as '30m', "
            f"not {type(duration).__name__}{hint}."
        )
    if us > LONGEST_US:
        raise UsageError(f"{name} is over a hundred years; is the unit seconds?")
    return us


def at_to_us(at: datetime, name: str = "at") -> int:
    """Convert an aware `datetime` to microseconds since 1970; `name` is for errors."""
    if not isinstance(at, datetime):
        raise UsageError(
            f"{name} must be an aware datetime, not {type(at).__name__}; write for example "
            "datetime.now(timezone.utc) + timedelta(hours=1)."
        )
    try:
        us = _whole_us(at - _EPOCH)
    except TypeError:
        raise UsageError(
            f"{name}={at.isoformat()} has no time zone, so the moment is ambiguous; give it a "
            f"time zone, for example {name}.replace(tzinfo=timezone.utc) or {name}.astimezone()."
        ) from None
    if not 0 <= us < _YEAR_2200_US:
        raise UsageError(f"{name}={at.isoformat()} lies outside the years 1970 to 2199.")
    return us


def from_us(us: int) -> datetime:
    """Convert microseconds since 1970 to an aware `datetime` in UTC.

    A moment before 1970 or after 9998, which no script writes, becomes the nearest valid moment, so
    that it can be shown without an error.
    """
    return _EPOCH + timedelta(microseconds=min(max(us, 0), _YEAR_9999_US))


def describe(seconds: float) -> str:
    """Format a duration for people: `250us`, `4.1ms`, `12.5s`, `1h30m`."""
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
    """Format a duration in days and smaller units, without rounding."""
    parts = []
    for unit, size in UNIT_US.items():
        count, us = divmod(us, size) if unit != "w" else (0, us)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def _whole_us(delta: timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * SECOND_US + delta.microseconds


def _parse(text: str, name: str) -> float:
    text = text.strip()
    if not _TEXT.fullmatch(text):
        if _TEXT.fullmatch(text.lower()):  # `6M` may mean months
            raise UsageError(
                f"{name}={text!r} has a unit in capitals; the units are w, d, h, m (minutes), s, "
                "ms and us, so write months as days, for example '180d'."
            )
        raise UsageError(
            f"{name}={text!r} is not a duration; write seconds or, for example, "
            "'250ms', '30s', '1h30m', '2d'."
        )
    parts = _PART.findall(text)
    if not parts:
        return float(text.replace(" ", "")) * SECOND_US
    us = sum(float(number) * UNIT_US[unit] for number, unit in parts)
    return -us if text.startswith("-") else us


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_YEAR_9999_US: Final = 253_370_764_800 * SECOND_US
_YEAR_2200_US: Final = 7_258_118_400 * SECOND_US


def is_whole(number: Any, least: int, most: float = math.inf) -> bool:
    """Whether a value is an integer in a range; True and False are not."""
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def to_bytes(size: Any, what: str) -> int:
    """Convert a size of memory to bytes: a number, or text such as `"500MB"`, `"2GB"`."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        number = int(float(found[1]) * _UNITS[found[2].upper()])
    else:
        number = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if 0 < number <= MOST_BYTES:
        return number
    raise UsageError(f"{what} must be a size such as 500MB or 2GB, not {size!r}.")


MOST_BYTES: Final = 10**15
"""A petabyte. A larger size is refused as a mistake."""

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE: Final = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,3})?) ?((?:[kmg]?b)?)", re.IGNORECASE)
