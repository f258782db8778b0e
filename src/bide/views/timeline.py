"""Jobs that are due soon, by queue; jobs that ended lately; and bursts.

A burst is many jobs that are due in the same second. It is found without reading any of them. A
stretch of time with fewer than `LEAST` jobs contains no burst. The search divides all other
stretches into finer steps, until a step is one second or `CALLS` stretches were read. The largest
remaining stretch then limits how large an unfound burst can be.

The time to run a burst is estimated from the mean time of an attempt in the last hour, and from how
many jobs run at once. If one of the two is unknown, there is no estimate. The estimate does not use
the rate at which jobs ended lately: most queues are idle most of the time.

The charts of both are drawn here: the timeline, and the heat map of lateness.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from heapq import nlargest
from operator import add
from typing import Any, Final, NamedTuple

from bide.model.durations import describe, from_us, to_us
from bide.model.latency import FINEST, LAST, LONGEST, Histogram, Minute
from bide.model.limits import per_second
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import QueueStats, Timeline
from bide.views._async import AsyncSite
from bide.views.params import Params, moment_json, report
from bide.views.schedules import schedule_times

LEAST: Final = 100
"""Minimum number of jobs within a second that count as a burst."""

SHOWN: Final = 10

CALLS: Final = 256
"""Maximum number of stretches that one search divides. Each takes the server a fraction of a
millisecond."""

_AT_ONCE: Final = 16
"""Stretches that one round trip divides: this many with the most jobs, and as many of the
densest."""

_SECOND: Final = 1_000_000
_STEPS_US: Final = tuple(seconds * _SECOND for seconds in (1200, 60, 5, 1))
"""Each step divides the one before it, and the first divides the longest step of a timeline. So
no second is cut in two."""

_HOUR: Final = 60
"""Minutes over which the time of an attempt is averaged."""


class Bursts(NamedTuple):
    """The bursts of a search."""

    listed: list[dict[str, Any]]
    """The largest bursts first."""
    unlisted: int
    """Maximum number of jobs in a burst that is not listed; 0 if all are listed."""


class _Place(NamedTuple):
    """A stretch of time with many jobs in it."""

    number: int
    queue: str
    at_us: int
    step_us: int

    @property
    def density(self) -> float:
        return self.number / self.step_us


class _Pace(NamedTuple):
    """The known speed at which the jobs of a queue run."""

    run: float | None
    """Average seconds from claim to outcome in the last hour; None if no attempt ended."""
    slots: int
    """Number of jobs that the live workers of the queue run at once, at most its limit."""
    rate: float | None
    """Jobs per second that its rate allows; None for no limit."""
    paused: bool

    def takes(self, number: int) -> float | None:
        """Return the seconds that `number` jobs take; None if that is not known."""
        if self.run is None or not self.slots or self.paused:
            return None
        busy = number * self.run / self.slots
        return max(busy, self.run, number / self.rate if self.rate else 0.0)


async def bursts(
    site: AsyncSite, lines: Mapping[str, Timeline], counts: Mapping[str, QueueStats]
) -> Bursts:
    """Find the largest bursts ahead, and estimate how long each takes."""
    found: list[_Place] = []
    hiding: set[_Place] = set()
    fresh = [place for queue, line in lines.items() for place in _full(queue, line)]
    left = CALLS
    while True:
        for place in fresh:
            if place.step_us == _SECOND:
                found.append(place)
            else:
                hiding.add(place)
        found = nlargest(SHOWN + 1, found)
        enough = found[SHOWN].number if len(found) > SHOWN else 0
        hiding = {place for place in hiding if place.number > enough}
        if not hiding or not left:
            break
        fullest = nlargest(min(_AT_ONCE, left), hiding)
        densest = nlargest(_AT_ONCE, hiding.difference(fullest), key=lambda each: each.density)
        chosen = (fullest + densest)[:left]
        left -= len(chosen)
        hiding.difference_update(chosen)
        looks = await site.client.run_many([_finer(site, place) for place in chosen])
        fresh = [
            finer
            for place, line in zip(chosen, looks, strict=True)
            for finer in _full(place.queue, line)
        ]
    paces = await _paces(site, {place.queue: counts[place.queue] for place in found})
    listed = [_report(place, paces[place.queue]) for place in found[:SHOWN]]
    return Bursts(listed, max((each.number for each in [*hiding, *found[SHOWN:]]), default=0))


def _full(queue: str, line: Timeline) -> Iterable[_Place]:
    """Yield the stretches, of a second or more, that are not past and may contain a burst."""
    step_us = max(line.step_us, _SECOND)
    counts: Counter[int] = Counter()
    for i, number in enumerate(line.due):
        at_us = line.from_us + i * line.step_us
        counts[at_us - at_us % step_us] += number
    for at_us, number in counts.items():
        if number >= LEAST and at_us + step_us > line.now_us:
            yield _Place(number, queue, at_us, step_us)


def _finer(site: AsyncSite, place: _Place) -> Command[Timeline]:
    step_us = next(step for step in _STEPS_US if step < place.step_us)
    count = place.step_us // step_us
    return job_commands.timeline(site.keys(place.queue), step_us, count, at_us=place.at_us)


def _report(place: _Place, pace: _Pace) -> dict[str, Any]:
    return {
        "queue": place.queue,
        "at": moment_json(from_us(place.at_us)),
        "from_us": place.at_us,
        "to_us": place.at_us + place.step_us,
        "count": place.number,
        **report(pace, "run", "slots", "rate", "paused"),
        "takes": pace.takes(place.number),
    }


async def _paces(site: AsyncSite, counts: Mapping[str, QueueStats]) -> dict[str, _Pace]:
    if not counts:
        return {}
    found = await site.each(counts, lambda keys: job_commands.latency(keys, _HOUR - 1, _HOUR))
    alive = [worker for worker in await site.workers() if worker.alive]
    paces = {}
    for queue, each in counts.items():
        limits, ran = each.limits, reduce(add, (minute.ran for minute in found[queue]))
        slots = sum(one.about.concurrency for one in alive if queue in one.about.queues)
        if limits.concurrency is not None:
            slots = min(slots, limits.concurrency)
        rate = per_second(limits.rate) if limits.rate else None
        paces[queue] = _Pace(ran.mean, slots, rate, each.paused)
    return paces


class TimelineSpan(NamedTuple):
    """The length of a timeline."""

    step_us: int
    back: int = 20
    """Number of intervals before now."""
    steps: int = 141
    """Number of intervals in total; one of them contains now, so the whole span is ahead."""


TIMELINE_SPANS: Final = {
    "minute": TimelineSpan(500_000),
    "hour": TimelineSpan(30_000_000),
    "day": TimelineSpan(720_000_000),
    "month": TimelineSpan(21_600_000_000),
}

MOST_QUEUES: Final = 30
"""Maximum number of queues with counts for each interval, those with the most due jobs. It limits
the cost on the server."""

_ENDED: Final = ("completed", "failed")


def largest(queues: Sequence[str], most: int, size: Callable[[str], int]) -> list[str]:
    """Return the largest queues in their original order, so that colours do not change."""
    among = set(sorted(queues, key=lambda queue: -size(queue))[:most])
    return [queue for queue in queues if queue in among]


async def timeline(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Count due jobs over the `span` minute, hour, day or month, of `q` or of all queues."""
    name, span = params.choice("span", TIMELINE_SPANS, "hour")
    there = await site.known(params.queues)
    counts = await site.counts(there)
    shown = largest(there, MOST_QUEUES, lambda queue: counts[queue].delayed + counts[queue].waiting)
    offset = -span.back * span.step_us
    lines = await site.each(
        shown,
        lambda keys: job_commands.timeline(keys, span.step_us, span.steps, offset_us=offset),
    )
    first = next(iter(lines.values()), None)
    from_to = (first.from_us, first.to_us) if first else (0, 0)
    fired = await schedule_times(
        site, {queue: counts[queue].schedules for queue in shown}, *from_to, span.step_us
    )
    found = await bursts(site, lines, counts)
    left_out = [queue for queue in there if queue not in shown]
    totals = lines | await site.each(  # one interval of each other queue, for its numbers
        left_out,
        lambda keys: job_commands.timeline(keys, span.step_us, 1, at_us=from_to[1] - span.step_us),
    )
    return {
        "span": name,
        "now": first and moment_json(from_us(first.now_us)),
        "from": first and moment_json(from_us(first.from_us)),
        "to": first and moment_json(from_us(first.to_us)),
        "step": span.step_us / 1e6,
        "queues": shown,
        "left_out": left_out,
        "ahead": _ahead(counts, totals),
        "overdue": {queue: line.overdue for queue, line in totals.items() if line.overdue},
        "later": {queue: line.later for queue, line in totals.items() if line.later},
        "active": sum(each.active for each in counts.values()),
        "stretches": _stretches(lines, fired.counts),
        "scheduled_until": moment_json(None if fired.until_us is None else from_us(fired.until_us)),
        "schedules_left_out": fired.left_out,
        "kept_for": _kept_for({queue: counts[queue] for queue in shown}, span.back * span.step_us),
        "bursts": found.listed,
        "burst": LEAST,
        "unlisted": found.unlisted,
    }


def _ahead(counts: Mapping[str, QueueStats], lines: Mapping[str, Timeline]) -> dict[str, int]:
    """Count the jobs that become due in the span, without waiting jobs."""
    left = {queue: counts[queue].delayed - line.later for queue, line in lines.items()}
    return {queue: number for queue, number in left.items() if number > 0}


def _kept_for(counts: Mapping[str, QueueStats], past_us: int) -> dict[str, dict[str, float]]:
    """Return the retention of queues that may have removed jobs of the shown past."""
    found = {}
    for queue, each in counts.items():
        ages = {state: to_us(getattr(each.retention, state), state) for state in _ENDED}
        full = any(getattr(each, state) >= each.retention.count for state in _ENDED)
        if full or min(ages.values()) < past_us:
            found[queue] = {
                **{state: age_us / 1e6 for state, age_us in ages.items()},
                "count": each.retention.count,
            }
    return found


def _stretches(
    lines: Mapping[str, Timeline], scheduled: Mapping[str, Counter[int]]
) -> list[dict[str, Any]]:
    """Return the non-empty intervals; the clocks of queues may differ by one interval."""
    starts: dict[int, dict[str, dict[str, int]]] = {}
    for queue, line in lines.items():
        for kind in ("due", *_ENDED):
            for i, number in enumerate(getattr(line, kind)):
                if number:
                    at = starts.setdefault(line.from_us + i * line.step_us, {})
                    at.setdefault(kind, {})[queue] = number
    for queue, firing in scheduled.items():
        for at_us, number in firing.items():
            starts.setdefault(at_us, {}).setdefault("scheduled", {})[queue] = number
    return [
        {
            "at": moment_json(from_us(at)),
            **{kind: found.get(kind, {}) for kind in ("due", "scheduled", "completed", "failed")},
        }
        for at, found in sorted(starts.items())
    ]


class Span(NamedTuple):
    """The length of a heat map."""

    minutes: int
    per_column: int
    queues: int
    """Maximum number of queues to read, those with the most jobs, which limits the cost."""


SPANS: Final = {"hour": Span(60, 1, 20), "day": Span(1440, 15, 10), "week": Span(10_080, 120, 2)}

BANDS: Final = (2, 6, 9, 12, 15, 18, 22, 26, LAST)
"""The last bucket of each band of lateness: below 1 ms, 16 ms, 128 ms, 1 s, 8 s, 65 s, 17 min, 4.7
h, and above."""

_CALL: Final = 480
"""Number of minutes per call, which takes the server some milliseconds."""

_NONE: Final = Histogram({})


async def lateness(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return the lateness of jobs over the last `span` hour, day or week, of `q` or all queues."""
    name, span = params.choice("span", SPANS, "hour")
    there = await site.known(params.queues)
    counts = await site.counts(there)
    shown = largest(there, span.queues, lambda queue: sum(counts[queue].totals.values()))
    minutes = {queue: await last_minutes(site, queue, span.minutes) for queue in shown}
    columns = [
        _column([m for each in minutes.values() for m in each[i : i + span.per_column]])
        for i in range(0, span.minutes, span.per_column)
    ]
    bounds = [FINEST * float(2**band) for band in BANDS[:-1]]
    return {
        "span": name,
        "now": moment_json(max((each.now for each in counts.values()), default=None)),
        "step": span.per_column * 60,
        "bands": [*bounds, None],
        "columns": columns if shown else [],
        "queues": {
            queue: summarize_lateness(minutes[queue]) | _waiting(counts[queue]) for queue in shown
        },
        "longest": LONGEST,
        "left_out": [queue for queue in there if queue not in shown],
    }


async def last_minutes(site: AsyncSite, queue: str, count: int) -> list[Minute]:
    """Return the last minutes of a queue, oldest first."""
    keys = site.keys(queue)
    commands = [
        job_commands.latency(keys, first - 1, min(_CALL, first))
        for first in range(count, 0, -_CALL)
    ]
    return [minute for some in await site.client.run_many(commands) for minute in some]


def summarize_lateness(minutes: Sequence[Minute]) -> dict[str, Any]:
    """Return how many jobs started, and the percentiles of their lateness."""
    late = reduce(add, (minute.late for minute in minutes), _NONE)
    return {"began": late.total, **{f"p{p}": late.percentile(p / 100) for p in (50, 95, 99)}}


def _column(minutes: Sequence[Minute]) -> dict[str, Any]:
    late = reduce(add, (minute.late for minute in minutes), _NONE)
    counts = [0] * len(BANDS)
    for bucket, count in late.counts.items():
        counts[next(i for i, last in enumerate(BANDS) if bucket <= last)] += count
    at = min((minute.at for minute in minutes), default=None)
    return {"at": moment_json(at), "counts": counts}


def overdue(counts: QueueStats) -> float:
    """Return the seconds by which the longest waiting job is overdue; 0 if none waits."""
    return max(0.0, (counts.now_us - counts.next_due_us) / 1e6) if counts.next_due_us else 0.0


def _waiting(counts: QueueStats) -> dict[str, Any]:
    late = overdue(counts)
    return {
        "waiting": counts.waiting,
        "overdue": late or None,
        "oldest_due": moment_json(from_us(counts.next_due_us)) if late else None,
    }


SIDE: Final = 10
ROW: Final = 26

STYLES: Final = ("on", "on", "on", "soon", "soon", "late", "late", "late", "late")
"""The style of each band of lateness, the least late first."""


def draw_heatmap(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Draw what `timeline.lateness` has read as a heat map; None if no job has started.

    The strength of a cell, from 0 to 1, is its number relative to the maximum, on a logarithmic
    scale, so that small numbers are visible.
    """
    columns, bands = shown["columns"], shown["bands"]
    most = max((n for column in columns for n in column["counts"]), default=0)
    if not most:
        return None
    names = [f"below {describe(_near(band))}" if band else "more" for band in bands]
    cells = [
        {
            "x": x * SIDE,
            "y": (len(bands) - 1 - row) * ROW,
            "style": STYLES[row],
            "strength": round(0.25 + 0.75 * math.log1p(number) / math.log1p(most), 3),
            "says": f"{number:,} started {names[row] if bands[row] else 'later'}",
        }
        for x, column in enumerate(columns)
        for row, number in enumerate(column["counts"])
        if number
    ]
    every = max(1, len(columns) // 6)
    return {
        "width": len(columns) * SIDE,
        "height": len(bands) * ROW,
        "cells": cells,
        "rows": names[::-1],
        "ticks": [column["at"] for column in columns[::every]][:6],
    }


def _near(seconds: float) -> float:
    """Round a bound for people: 1.024 s to a second, 65.5 s to a minute, and so on."""
    if seconds < 1:
        return round(seconds, 3)
    to = 1 if seconds < 60 else 60 if seconds < 3600 else 600
    return round(seconds / to) * to


STEP: Final = 10
HEIGHT: Final = 260
_LEAST: Final = 3.0
"""Minimum height of a bar, so that one job beside forty thousand is visible."""

COLOURS: Final = 8
_MANY: Final = 10
_BURST: Final = 5
"""A bar is cut if it is so many times higher than usual."""
TICKS: Final = 7


def draw(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Draw what `timeline.timeline` has read; None if there is no queue yet.

    A bar of the whole height has `top` jobs; the highest bar, with `highest` jobs, may be cut. The
    parts of a bar are style, place and height.
    """
    if shown["now"] is None:
        return None
    start, now, end = (datetime.fromisoformat(shown[name]) for name in ("from", "now", "to"))
    step = shown["step"]
    count = round((end - start).total_seconds() / step)
    colours = {queue: f"c{i % COLOURS}" for i, queue in enumerate(shown["queues"])}
    stacks = [
        (
            round((datetime.fromisoformat(each["at"]) - start).total_seconds() / step),
            *_stack(each, colours),
        )
        for each in shown["stretches"]
    ]
    sizes = sorted(sum(n for _, n in stack) for _, stack, _ in stacks)
    top = top_of(sizes)
    from_us, step_us = round(start.timestamp() * 1e6), round(step * 1e6)
    bars = []
    for index, stack, says in stacks:
        parts: list[tuple[str, float, float]] = []
        y, total = float(HEIGHT), sum(number for _, number in stack)
        for style, number in stack:
            height = max(_LEAST, number * (HEIGHT - 12) / max(top, total))
            y -= height
            parts.append((style, round(y, 2), round(height, 2)))
        at_us = from_us + index * step_us
        ahead = (n for style, n in stack if style not in ("done", "bad") and "ghost" not in style)
        bars.append(
            {
                "x": index * STEP,
                "parts": parts,
                "from_us": at_us,
                "to_us": at_us + step_us,
                "due": sum(ahead),
                "says": says,
                "is_cut": total > top,
            }
        )
    every = count // TICKS
    return {
        "width": count * STEP,
        "bars": bars,
        "now_x": round((now - start).total_seconds() / step * STEP, 1),
        "top": top,
        "highest": sizes[-1] if sizes else 0,
        "ticks": [_tick(start, k * every * step, (k - 1) * every * step) for k in range(TICKS)],
        "colours": colours,
        "step_us": step_us,
        "from_us": from_us,
    }


def top_of(sizes: list[int]) -> int:
    """Return the height of the picture in jobs: the bar of a burst is cut, to show the others."""
    if not sizes:
        return 0
    usual = sizes[len(sizes) * 9 // 10 - 1] if len(sizes) >= _MANY else sizes[-1]
    return sizes[-1] if sizes[-1] <= _BURST * usual else usual * 2


def _stack(each: dict[str, Any], colours: dict[str, str]) -> tuple[list[tuple[str, int]], str]:
    stack: list[tuple[str, int]] = []
    lines = []
    for kind, style, word in (("completed", "done", "completed"), ("failed", "bad", "failed")):
        if number := sum(each[kind].values()):
            stack.append((style, number))
            lines.append(f"{number:,} {word}")
    for queue, number in each["due"].items():
        stack.append((colours[queue], number))
        lines.append(f"{queue}: {number:,} due")
    for queue, number in each["scheduled"].items():
        stack.append((f"{colours[queue]} ghost", number))
        lines.append(f"{queue}: {number:,} scheduled")
    return stack, "; ".join(lines)


def _tick(start: datetime, seconds: float, away: float) -> dict[str, str]:
    """Return a tick; `away` is the time from now, rounded to a whole step."""
    far = f"{'+' if away > 0 else '-'}{describe(abs(away))}" if away else "now"
    return {"at": (start + timedelta(seconds=seconds)).isoformat(), "far": far}
