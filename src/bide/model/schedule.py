"""Schedules: the rules of their times, the stored record, and the computation of next times.

A schedule fires at the times of an interval, a cron expression or a list. The times do not depend
on the machine or the moment of their computation, so the server and all clients agree. A script
computes the next time of an interval itself; for an expression, clients send some times in advance.

`cronsim` parses an expression and yields its wall-clock times. This module converts them to
moments, because changes of daylight saving time skip some wall-clock times and repeat others:

- If neither the minute nor the hour of an expression starts with `*`, it names times of day: a
  skipped time fires right after the change, and a repeated time fires only the first time.
- Any other expression follows the clock: a skipped time does not fire, and a repeated time fires
  twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count, islice, takewhile
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

from bide.errors import UsageError
from bide.model.durations import (
    LONGEST_US,
    Duration,
    at_to_us,
    describe,
    from_us,
    is_whole,
    to_us,
)
from bide.model.ids import check_name

LONGEST: Final = 200
"""Maximum characters of an expression."""

_LONGEST_ZONE: Final = 64
_ODD_ZONES: Final = ("localtime", "posixrules", "Factory")
"""Not the zone of a place: the machine decides."""
_MINUTE: Final = timedelta(minutes=1)
_OVERLAP: Final = timedelta(hours=3)
"""More than any clock is set back."""

_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_STEP: Final = re.compile("/([0-9]+)")
_MOST_STEPS: Final = (60, 24, 31, 12, 7)
"""Maximum step of each field: the number of its values."""

_BACK: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 366))


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, text: str, zone: str = "UTC") -> None:
        self.text: Final = _checked(text)
        self.zone: Final = zone
        self._tz = zone_of(zone)
        self._fields = _WORDS.get(self.text.lower(), self.text)
        try:
            fields = self._fields.split()
            if len(fields) != 5:  # with six fields, the first would be seconds
                raise ValueError(f"it has {len(fields)} fields")
            self._is_time_of_day = not (fields[0].startswith("*") or fields[1].startswith("*"))
            first = next(self._walls(datetime(2024, 1, 1)), None)
        except Exception as error:  # callers must not see internal errors of the parser
            raise UsageError(
                f"{self.text!r} is not a cron expression ({str(error) or type(error).__name__}); "
                "write five fields, minute, hour, day of month, month and day of week, such as "
                "'0 9 * * 1-5'."
            ) from None
        if first is None:
            raise UsageError(f"{self.text!r} never fires; is there such a day?")

    def after(self, us: int) -> Iterator[int]:
        """Yield the moments after this one in microseconds; ends after 50 years without one."""
        last = us
        for moment in self._moments(from_us(us)):
            at_us = round(moment.timestamp()) * 1_000_000
            if at_us > last:
                yield at_us
                last = at_us

    def latest(self, after_us: int, until_us: int) -> int | None:
        """Return the last moment after the first and not after the second; None if there is none.

        It searches backwards, because a year has half a million minutes.
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

    def before(self, until_us: int, count: int) -> list[int]:
        """Return up to `count` of the last moments until this one, latest first."""
        found: list[int] = []
        for back in _BACK:
            start_us = until_us - round(back.total_seconds() * 1e6)
            found = [*takewhile(lambda at_us: at_us <= until_us, self.after(start_us))]
            if len(found) >= count:
                break
        return found[::-1][:count]

    def _walls(self, start: datetime) -> Iterator[datetime]:
        """Yield wall-clock times of the expression after `start`, both without a zone."""
        return CronSim(self._fields, start)

    def _moments(self, after: datetime) -> Iterator[datetime]:
        wall = after.astimezone(self._tz).replace(tzinfo=None, fold=0)
        walls = self._walls(wall - _OVERLAP)
        if self._is_time_of_day:
            return (self._first(wall) for wall in walls)
        return self._each(walls)

    def _first(self, wall: datetime) -> datetime:
        """Return the first moment at which the clock shows this time, or has skipped it."""
        while not self._is_shown(wall):
            wall += _MINUTE
        return wall.replace(tzinfo=self._tz).astimezone(UTC)

    def _each(self, walls: Iterator[datetime]) -> Iterator[datetime]:
        """Yield all moments at which the clock shows one of these times, in order."""
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
    """Return the parsed expression in this time zone."""
    return _cron(_checked(text), zone_of(zone).key)


_cron: Final = lru_cache(maxsize=256)(Cron)


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name."""
    if isinstance(name, str) and len(name) <= _LONGEST_ZONE:
        try:
            return ZoneInfo(name)
        except Exception:  # a name is looked up as a file, so any error is possible
            pass
    raise UsageError(
        f"tz={str(name)[:_LONGEST_ZONE]!r} is not a time zone that this machine knows; write "
        "one such as 'Europe/Paris', and if there are none, `pip install tzdata`."
    )


def _checked(text: str) -> str:
    if not isinstance(text, str) or len(text) > LONGEST:
        shown = f"{text[:40]!r}…" if isinstance(text, str) else repr(text)
        raise UsageError(
            f"cron={shown} must be text of {LONGEST} characters at most, such as '0 9 * * 1-5'."
        )
    return " ".join(text.split())


Missed = Literal["skip", "once", "all"]
Kind = Literal["every", "cron", "at"]

AHEAD: Final = 16
"""Number of times that a client sends in advance; more are requested when half have fired."""

MOST_AT: Final = 100
"""Maximum moments of a list."""

LONGEST_NAME: Final = 100
"""Maximum bytes of a schedule's name: with a time after it, it is a job id."""

SHORTEST_US: Final = 10_000
"""The minimum interval."""

MOST_FIRED: Final = 1_000_000_000
"""The maximum limit, which a schedule with the minimum interval reaches in four months."""

SCHEDULE_MARK: Final = "@"
_DIGITS: Final = re.compile(r"[1-9][0-9]{14,15}")
_FAR: Final = 9_000_000_000_000_000
"""In the year 2255; scripts accept no later time."""


_Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=_FAR)]


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The times of a schedule: one of `cron`, `every_us` and `at_us`, and bounds."""

    cron: str = ""
    tz: str = ""
    every_us: _Whole = 0
    at_us: tuple[_Whole, ...] = ()
    start_us: _Whole = 0
    end_us: _Whole = 0
    limit: _Whole = 0

    @property
    def kind(self) -> Kind:
        """Which of the three is set."""
        return "cron" if self.cron else "every" if self.every_us else "at"

    def written(self) -> str:
        """The stored line, which is compared to find changes."""
        return _encoder.encode(self).decode()

    def ahead(self, after_us: int, now_us: int, *, each: bool) -> tuple[list[int], bool]:
        """Return some of the times after a moment, and whether there are no others.

        `each`: whether to include all past times, or only the last of them.
        """
        if not self.cron:
            return [at for at in self.at_us if at > after_us], True
        cron = self._cron()
        until_us = min(now_us, self.end_us or now_us)
        latest = None if each else cron.latest(after_us, until_us)
        if latest is not None:
            after_us = latest - 1
        times = list(islice(self._bounded(cron.after(after_us)), AHEAD))
        return times, len(times) < AHEAD

    def times(self, first_us: int | None, after_us: int) -> Iterator[int]:
        """Yield all times after a moment; `first_us` is the next time of an interval."""
        if self.every_us:
            return iter(()) if first_us is None else self._bounded(count(first_us, self.every_us))
        if not self.cron:
            return (at for at in self.at_us if at > after_us)
        return self._bounded(self._cron().after(after_us))

    def before(self, until_us: int, count: int) -> list[int]:
        """Return some of the last times of the expression until a moment, latest first."""
        return self._cron().before(until_us, count)

    def _cron(self) -> Cron:
        return cron_of(self.cron, self.tz)

    def _bounded(self, times: Iterator[int]) -> Iterator[int]:
        for at_us in times:
            if (self.end_us and at_us > self.end_us) or at_us >= _FAR:
                return
            yield at_us


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Timing)


class Schedule(NamedTuple):
    """A schedule, as it is stored on the server."""

    name: str
    task: str
    """The name of its task."""
    timing: Timing
    priority: int
    jitter_us: int
    missed: Missed
    """The rule for times that passed while no worker was running."""
    paused: bool
    fired: int
    """Number of times that have fired."""
    last_us: int
    """The time that fired last; 0 for none."""
    times: tuple[int, ...]
    """The next times that the server knows."""
    seen_us: int
    """The time up to which no time fires again."""
    version: int
    closed: bool
    """Whether there are no times after those that the server knows."""

    @property
    def cron(self) -> str | None:
        """The cron expression."""
        return self.timing.cron or None

    @property
    def tz(self) -> str | None:
        """The time zone of the expression."""
        return self.timing.tz or None

    @property
    def every(self) -> float | None:
        """The interval in seconds."""
        return self.timing.every_us / 1e6 if self.timing.every_us else None

    @property
    def at(self) -> tuple[datetime, ...]:
        """The moments, if it has a list of moments."""
        return tuple(map(from_us, self.timing.at_us))

    @property
    def start(self) -> datetime | None:
        """The schedule does not fire before this moment."""
        return from_us(self.timing.start_us) if self.timing.start_us else None

    @property
    def end(self) -> datetime | None:
        """The schedule does not fire after this moment."""
        return from_us(self.timing.end_us) if self.timing.end_us else None

    @property
    def limit(self) -> int | None:
        """Maximum number of times that it fires."""
        return self.timing.limit or None

    @property
    def jitter(self) -> float:
        """Maximum number of seconds by which a job is due after its time."""
        return self.jitter_us / 1e6

    @property
    def last(self) -> datetime | None:
        """The time that fired last."""
        return from_us(self.last_us) if self.last_us else None

    @property
    def next(self) -> datetime | None:
        """The time that fires next; None if the schedule is paused or over."""
        return next(iter(self.upcoming(1)), None)

    @property
    def stand(self) -> str:
        """Version, jitter and missed, which a change compares with the stored values."""
        return f"{self.version} {self.jitter_us} {self.missed}"

    @property
    def over(self) -> bool:
        """Whether it has no more times."""
        return self.closed and not self.times

    @property
    def when(self) -> str:
        """A description of its times, for people."""
        timing = self.timing
        if timing.cron:
            return f"{timing.cron} {timing.tz}"
        if timing.every_us:
            return f"every {describe(timing.every_us / 1e6)}"
        return f"at {len(timing.at_us)} moment{'s'[: len(timing.at_us) != 1]}"

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Return up to `count` of the next times; none if the schedule is paused.

        Raises:
            UsageError: `count` is not a number from 1 to 1,000, or this machine cannot read the
                expression or its time zone.
        """
        if not is_whole(count, 1, 1_000):
            raise UsageError(f"count must be a number from 1 to 1,000, not {count!r}.")
        return [from_us(at_us) for at_us in islice(self.firing(), count)]

    def passed(self, count: int) -> list[int]:
        """Return some of its times up to the last one that fired, latest first, in microseconds.

        Some of these times may not have fired, because no worker was running.

        Raises:
            UsageError: this machine cannot read the expression or its time zone.
        """
        timing, last_us = self.timing, self.last_us
        if not last_us:
            return []
        if timing.cron:
            return timing.before(last_us, count)
        if timing.every_us:
            return [*range(last_us, 0, -timing.every_us)[:count]]
        return [at_us for at_us in timing.at_us[::-1] if at_us <= last_us][:count]

    def firing(self, since_us: int = 0) -> Iterator[int]:
        """Yield the next times in microseconds; none if the schedule is paused.

        Times before `since_us` that the server does not know yet are skipped.
        """
        if self.paused or self.over:
            return iter(())
        left = max(0, self.timing.limit - self.fired) if self.timing.limit else None
        return islice(self._times(since_us), left)

    def _times(self, since_us: int) -> Iterator[int]:
        yield from self.times
        if not self.closed:
            last_us = self.times[-1] if self.times else self.seen_us
            first_us = last_us + self.timing.every_us if self.times else None
            yield from self.timing.times(first_us, max(last_us, since_us - 1))

    def foreseen(self, timing: Timing, now_us: int) -> Schedule:
        """Return the schedule as it would be after a change of its times now, and not paused.

        It computes what `lua/schedule_set.lua` does, for a preview.
        """
        if timing == self.timing:
            return self._replace(paused=False)
        seen_us = max(now_us, timing.start_us - 1, self.last_us)
        times: tuple[int, ...] = tuple(at for at in timing.at_us if at > seen_us)
        if timing.every_us:
            first_us = timing.start_us or now_us + timing.every_us
            missed = max(0, -(-(seen_us + 1 - first_us) // timing.every_us))
            first_us += missed * timing.every_us
            times = (first_us,) if first_us <= (timing.end_us or first_us) else ()
        first = next(timing.times(times[0] if times else None, seen_us), None)
        closed = timing.kind == "at" or first is None
        return self._replace(
            timing=timing, paused=False, fired=0, seen_us=seen_us, times=times, closed=closed
        )

    @classmethod
    def read(cls, name: str, record: bytes) -> Schedule | None:
        """Parse a stored record (`lua/include/schedule_record.lua`); None if it is invalid."""
        try:
            line, timing, task, *_ = record.decode().split("\n")
            head, colon, times = line.partition(":")
            version, kind, priority, _, jitter, missed, *more = head.split(" ")
            _, _, paused, fired, seen, last = more
            known = tuple(map(_number, times.removesuffix(".").split()))
            found = cls(
                name=name,
                task=task,
                timing=_decoder.decode(timing),
                priority=_number(priority),
                jitter_us=_number(jitter),
                missed=missed,  # type: ignore[arg-type]
                paused=paused == "1",
                fired=_number(fired),
                last_us=_number(last),
                times=known,
                seen_us=_number(seen),
                version=_number(version),
                closed=times.endswith("."),
            )
        except (ValueError, msgspec.MsgspecError):
            return None
        if not colon or kind != found.timing.kind or missed not in get_args(Missed):
            return None
        return found


def _number(text: str) -> int:
    if len(text) > 16 or not text.isascii() or not text.isdigit() or int(text) >= _FAR:
        raise ValueError(text)
    return int(text)


def time_of(id: str, schedule: str | None) -> datetime | None:
    """Return the schedule's time of a job, from its id; None if the id has none."""
    name, mark, time = id.rpartition(SCHEDULE_MARK)
    if schedule is None or name != schedule or not mark or not _DIGITS.fullmatch(time):
        return None
    return from_us(int(time))


def id_of(schedule: str, time: int | str) -> str:
    """Return the id of a schedule's job for a time, or, with an id, of a job that runs now."""
    return f"{schedule}{SCHEDULE_MARK}{time}"


def check_schedule_name(name: str) -> str:
    """Return the name of a schedule, if it can be part of an id."""
    if len(check_name(name, "the name of a schedule").encode()) > LONGEST_NAME:
        raise UsageError(
            f"The name of a schedule has {LONGEST_NAME} bytes at most, and {name[:40]!r}… is "
            "longer; give it one with name=."
        )
    return name


def check_missed(missed: Missed) -> Missed:
    """Check the option `missed`."""
    if missed not in get_args(Missed):
        raise UsageError(f"missed must be 'skip', 'once' or 'all', not {missed!r}.")
    return missed


def timing_of(
    cron: str | None = None,
    every: Duration | None = None,
    at: Sequence[datetime] | None = None,
    tz: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    limit: int | None = None,
) -> Timing:
    """Check the arguments that define the times of a schedule."""
    if sum(given is not None for given in (cron, every, at)) != 1:
        raise UsageError("Give one of cron=, every= and at=: a schedule fires by one of them.")
    if tz is not None and cron is None:
        raise UsageError("tz= goes with cron=: moments and intervals are the same in every zone.")
    if tz in _ODD_ZONES or str(tz).startswith("right/"):
        raise UsageError(
            f"tz={tz!r} does not have the same times on each machine; write the name of a zone, "
            "such as 'Europe/Paris'."
        )
    if limit is not None and not is_whole(limit, 1, MOST_FIRED):
        raise UsageError(f"limit must be a whole number from 1 to {MOST_FIRED:,}, not {limit!r}.")
    start_us = 0 if start is None else at_to_us(start, "start")
    end_us = 0 if end is None else at_to_us(end, "end")
    if start_us and end_us and start_us > end_us:
        raise UsageError(f"start={start} is after end={end}, so it would never fire.")
    read = cron_of(cron, "UTC" if tz is None else tz) if cron is not None else None
    if read:
        _check_steps(read)
    return Timing(
        cron=read.text if read else "",
        tz=read.zone if read else "",
        every_us=0 if every is None else _interval(every),
        at_us=() if at is None else _moments(at, start_us, end_us),
        start_us=start_us,
        end_us=end_us,
        limit=limit or 0,
    )


def _check_steps(cron: Cron) -> None:
    """Refuse a step that is larger than its field; a stored schedule may have one."""
    for field, most in zip(cron.text.split(), _MOST_STEPS, strict=False):
        if any(int(step) > most for step in _STEP.findall(field)):
            raise UsageError(
                f"cron={cron.text!r} has a step of more than {most} in {field!r}, so it would fire "
                "only at the start of the range; write a longer interval as every=, such as "
                "every='90m'."
            )


def _interval(every: Duration) -> int:
    every_us = to_us(every, "every")
    if not SHORTEST_US <= every_us <= LONGEST_US:
        raise UsageError(f"every={every!r} is too short; an interval has 10ms or more.")
    return every_us


def _moments(at: Sequence[datetime], start_us: int, end_us: int) -> tuple[int, ...]:
    if isinstance(at, datetime | str) or not isinstance(at, Sequence) or not at:
        raise UsageError(f"at must be a list of aware datetimes, not {at!r}.")
    if len(at) > MOST_AT:
        raise UsageError(
            f"at= has {len(at)} moments, and a schedule {MOST_AT} at most; enqueue a job for each."
        )
    found = sorted({at_to_us(one) for one in at})
    return tuple(us for us in found if us >= start_us and (not end_us or us <= end_us))
