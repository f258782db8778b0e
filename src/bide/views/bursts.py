"""Bursts: many jobs that are due in the same second, found without reading any of them.

A stretch of time with fewer than `LEAST` jobs contains no burst. The search divides all other
stretches into finer steps, until a step is one second or `CALLS` stretches were read. The largest
remaining stretch then limits how large an unfound burst can be.

The time to run a burst is estimated from the mean time of an attempt in the last hour, and from how
many jobs run at once. If one of the two is unknown, there is no estimate. The estimate does not use
the rate at which jobs ended lately: most queues are idle most of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from heapq import nlargest
from operator import add
from typing import Any, Final, NamedTuple

from bide.model.durations import from_us
from bide.model.latency import Histogram
from bide.model.limits import per_second
from bide.protocol.command import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import QueueStats, Timeline
from bide.protocol.commands.queues import WorkerInfo
from bide.views.site import AsyncSite
from bide.views.times import moment_json

LEAST: Final = 100
"""Jobs within a second that make a burst."""

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
    """The largest first."""
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
    """How fast the jobs of a queue run, as far as that is known."""

    run: float | None
    """Seconds from claim to outcome, on average in the last hour; None where no attempt ended."""
    slots: int
    """Jobs that the live workers of the queue run at once; no more than its limit lets run."""
    rate: float | None
    """Jobs that its limit lets begin in a second; None for no limit."""
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
        "run": pace.run,
        "slots": pace.slots,
        "rate": pace.rate,
        "paused": pace.paused,
        "takes": pace.takes(place.number),
    }


async def _paces(site: AsyncSite, counts: Mapping[str, QueueStats]) -> dict[str, _Pace]:
    """Estimate how fast the jobs of each queue run."""
    if not counts:
        return {}
    commands = [job_commands.latency(site.keys(queue), _HOUR - 1, _HOUR) for queue in counts]
    found = await site.client.run_many(commands)
    alive = [worker for worker in await site.workers() if worker.alive]
    return {
        queue: _pace(reduce(add, (minute.ran for minute in minutes)), queue, each, alive)
        for (queue, each), minutes in zip(counts.items(), found, strict=True)
    }


def _pace(ran: Histogram, queue: str, counts: QueueStats, alive: Iterable[WorkerInfo]) -> _Pace:
    limits = counts.limits
    slots = sum(one.about.concurrency for one in alive if queue in one.about.queues)
    if limits.concurrency is not None:
        slots = min(slots, limits.concurrency)
    rate = per_second(limits.rate) if limits.rate else None
    return _Pace(ran.mean, slots, rate, counts.paused)
