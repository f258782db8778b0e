"""Cron expressions: which moments one names, in which time zone, as Debian's cron has it.

`cronsim` reads an expression and walks along the wall clock. Which moments these times of the wall
clock are, is found out here, for a clock that is put forward or back skips some and shows others
twice:

- An expression whose minute and hour both do not begin with `*` names times of day: one that is
  skipped fires as soon as the clock goes on, one that is shown twice fires the first time.
- Any other goes along with the clock: what is skipped does not fire, what is shown twice fires
  twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from bide.clock import from_us
from bide.errors import UsageError

LONGEST: Final = 200
"""Characters of an expression."""

_LONGEST_ZONE: Final = 64
_MINUTE: Final = timedelta(minutes=1)
_OVERLAP: Final = timedelta(hours=3)
"""Longer than any clock is put back by."""

_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_BACK: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 366))


class Cron:
    """An expression, in a time zone."""

    def __init__(self, text: str, zone: str = "UTC") -> None:
        """Read both.

        Raises:
            UsageError: one cannot be read, or the expression never fires.
        """
        self.text: Final = _checked(text)
        self.zone: Final = zone
        self._tz = zone_of(zone)
        self._fields = _WORDS.get(self.text.lower(), self.text)
        try:
            fields = self._fields.split()
            if len(fields) != 5:  # with six, the first would be seconds
                raise ValueError(f"it has {len(fields)} fields")
            self._is_time_of_day = not (fields[0].startswith("*") or fields[1].startswith("*"))
            first = next(self._walls(datetime(2024, 1, 1)), None)
        except Exception as error:  # what a text makes of a parser's insides is not for callers
            raise UsageError(
                f"{self.text!r} is no cron expression ({str(error) or type(error).__name__}); "
                "write five fields, minute, hour, day of month, month and day of week, such as "
                "'0 9 * * 1-5'."
            ) from None
        if first is None:
            raise UsageError(f"{self.text!r} never fires; is there such a day?")

    def after(self, us: int) -> Iterator[int]:
        """The moments after this one, in order, in microseconds; for 50 years from each at least.

        Raises:
            UsageError: the moment lies too far ahead.
        """
        last = us
        for moment in self._moments(from_us(us)):
            at_us = round(moment.timestamp()) * 1_000_000
            if at_us > last:
                yield at_us
                last = at_us

    def latest(self, after_us: int, until_us: int) -> int | None:
        """The last moment after the one and not after the other; None where there is none.

        It is looked for from behind: in a year, a minute comes half a million times.
        """
        starts = [until_us - round(back.total_seconds() * 1e6) for back in _BACK]
        for start_us in (*(max(start, after_us) for start in starts), after_us):
            found = None
            for at_us in self.after(start_us):
                if at_us > until_us:
                    break
                found = at_us
            if found is not None or start_us == after_us:
                return found
        return None

    def _walls(self, start: datetime) -> Iterator[datetime]:
        """What the wall clock shows after `start`, both without a zone."""
        return CronSim(self._fields, start)

    def _moments(self, after: datetime) -> Iterator[datetime]:
        wall = after.astimezone(self._tz).replace(tzinfo=None, fold=0)
        walls = self._walls(wall - _OVERLAP)
        if self._is_time_of_day:
            return (self._first(wall) for wall in walls)
        return self._each(walls)

    def _first(self, wall: datetime) -> datetime:
        """The first moment at which the clock shows this, or has skipped it."""
        while not self._is_shown(wall):
            wall += _MINUTE
        return wall.replace(tzinfo=self._tz).astimezone(UTC)

    def _each(self, walls: Iterator[datetime]) -> Iterator[datetime]:
        """All moments at which the clock shows one of these, in order."""
        second: list[datetime] = []
        for wall in walls:
            first = wall.replace(tzinfo=self._tz).astimezone(UTC)
            while second and second[0] < first:
                yield heappop(second)
            if self._is_shown(wall):
                yield first
                again = wall.replace(tzinfo=self._tz, fold=1).astimezone(UTC)
                if again != first:
                    heappush(second, again)
        yield from sorted(second)

    def _is_shown(self, wall: datetime) -> bool:
        moment = wall.replace(tzinfo=self._tz).astimezone(UTC)
        return moment.astimezone(self._tz).replace(tzinfo=None, fold=0) == wall


def cron_of(text: str, zone: str) -> Cron:
    """The expression in this zone; raises as `Cron` does."""
    return _cron(_checked(text), zone_of(zone).key)


_cron: Final = lru_cache(maxsize=256)(Cron)


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its name.

    Raises:
        UsageError: this machine knows none of that name.
    """
    if isinstance(name, str) and len(name) <= _LONGEST_ZONE:
        try:
            return ZoneInfo(name)
        except Exception:  # a name is looked for as a file, so it can be anything
            pass
    raise UsageError(
        f"tz={str(name)[:_LONGEST_ZONE]!r} is no time zone that this machine knows; write one such "
        "as 'Europe/Paris', and where there are none `pip install tzdata`."
    )


def _checked(text: str) -> str:
    if not isinstance(text, str) or len(text) > LONGEST:
        shown = f"{text[:40]!r}…" if isinstance(text, str) else repr(text)
        raise UsageError(
            f"cron={shown} must be text of {LONGEST} characters at most, such as '0 9 * * 1-5'."
        )
    return " ".join(text.split())
