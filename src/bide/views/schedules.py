"""Schedules and their next times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from heapq import merge
from typing import Any, Final, NamedTuple

from bide.errors import UsageError
from bide.model.durations import at_to_us, from_us
from bide.model.schedule import Schedule, Timing, check_schedule_name, id_of
from bide.protocol.commands.schedules import SchedulePage, read_schedules
from bide.queue.schedules import found
from bide.queue.select import FoundJob
from bide.views._async import AsyncSite
from bide.views.job import masked_brief
from bide.views.params import Params, moment_json, report


class FoundSchedule(NamedTuple):
    """A schedule and its queue."""

    queue: str
    schedule: Schedule
    now: datetime

    @property
    def next_in(self) -> float | None:
        """Return seconds until it fires next, by the server's clock; None if it does not fire."""
        at = _next_of(self.schedule)
        return (at - self.now).total_seconds() if at else None


def found_in(queue: str, page: SchedulePage) -> list[FoundSchedule]:
    """Return the schedules of a queue, from a page."""
    return [FoundSchedule(queue, one, from_us(page.now_us)) for one in page.schedules]


def _next_of(schedule: Schedule) -> datetime | None:
    """Return when it fires next; None also if this machine cannot compute it."""
    try:
        return schedule.next
    except UsageError:
        return None


def schedule_report(seen: FoundSchedule) -> dict[str, Any]:
    """Return a schedule in its JSON form."""
    one = seen.schedule
    return {
        "name": one.name,
        "queue": seen.queue,
        **report(one, "task", "cron", "tz", "every"),
        "at": [moment_json(at) for at in one.at],
        **report(one, "start", "end", "limit", "missed", "jitter", "priority"),
        **report(one, "paused", "over", "fired", "last"),
        "next": moment_json(_next_of(one)),
    }


NEXT: Final = 10
"""Number of next times of each schedule."""

RUNS: Final = 10
"""Number of last runs of a schedule."""

LOOK_BACK: Final = 25
"""Number of past times whose jobs are read, in one call."""

MOST: Final = 500
"""Maximum number of schedules to read."""


async def schedules(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return the schedules of `q`, or of all queues, with the next times of each."""
    read: list[FoundSchedule] = []
    for queue in await site.known(params.queues):
        read += await read_some(site, queue, MOST - len(read))
    listed = [_report(seen) for seen in read]
    listed.sort(key=lambda each: (each["next"] is None, each["next"] or "", each["name"]))
    return {
        "now": moment_json(read[-1].now if read else None),
        "schedules": listed,
        "all": len(listed) < MOST,
    }


async def schedule(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return the schedule `name` of the queue `q`, with its next times and its last runs."""
    seen = await named(site, params)
    return describe_schedule(seen) | {"runs": await _runs(site, seen)}


async def _runs(site: AsyncSite, seen: FoundSchedule) -> list[dict[str, Any]]:
    """Return the jobs of its last times that still exist, latest first."""
    try:
        times = seen.schedule.passed(LOOK_BACK)
    except UsageError:  # its time zone is not known here
        return []
    ids = [id_of(seen.schedule.name, at_us) for at_us in times]
    found = {one.id: one for one in await site.fetch(seen.queue, ids)}
    return [
        masked_brief(FoundJob(seen.queue, found[id]), site.mask)
        | {"schedule_time": moment_json(from_us(at_us))}
        for id, at_us in zip(ids, times, strict=True)
        if id in found
    ][:RUNS]


def describe_schedule(seen: FoundSchedule) -> dict[str, Any]:
    """Return a schedule in the form of the dashboard and its API."""
    return {"now": moment_json(seen.now), **_report(seen), "stand": seen.schedule.stand}


async def named(site: AsyncSite, params: Params) -> FoundSchedule:
    """Return the named schedule; raises as `schedule` does."""
    queue = await site.one(params.text("q"))
    name = check_schedule_name(params.text("name"))
    page = await site.client.run(read_schedules(site.keys(queue), [name]))
    one = found(next(iter(page.schedules), None), name, queue)
    return FoundSchedule(queue, one, from_us(page.now_us))


def foreseen(seen: FoundSchedule, timing: Timing) -> list[str | None]:
    """Return the next times of a schedule if it had these times."""
    return _next(seen.schedule.foreseen(timing, at_to_us(seen.now)))


def _report(seen: FoundSchedule) -> dict[str, Any]:
    one = seen.schedule
    return schedule_report(seen) | {"when": one.when, "upcoming": _next(one)}


async def read_some(site: AsyncSite, queue: str, most: int) -> list[FoundSchedule]:
    """Return up to `most` schedules of a queue."""
    return found_in(queue, await site.schedules(queue, most)) if most else []


def _next(schedule: Schedule) -> list[str | None]:
    try:
        return [moment_json(at) for at in schedule.upcoming(NEXT)]
    except UsageError:  # its time zone is not known here
        return []


TIMES: Final = 50_000
"""Maximum number of counted times of cron expressions and lists, of all schedules together: more
than the minutes of a month. Times of intervals are not counted one by one."""


class ScheduleTimes(NamedTuple):
    """The future times of schedules."""

    counts: Mapping[str, Counter[int]]
    """By queue: start of an interval of the timeline -> number of times in it."""
    until_us: int | None
    """The moment from which only intervals are counted, because there are too many times; None if
    all times are counted."""
    left_out: int
    """Number of schedules that are not counted, because there are too many."""


async def schedule_times(
    site: AsyncSite, queues: Mapping[str, int], from_us: int, to_us: int, step_us: int
) -> ScheduleTimes:
    """Count the times of schedules in each interval of a timeline.

    `queues` has the number of schedules of each queue; `from_us` is a multiple of `step_us`.
    """
    owned: list[tuple[str, Schedule]] = []
    for queue, number in queues.items():
        if number:
            read = await read_some(site, queue, MOST - len(owned))
            owned += [(queue, seen.schedule) for seen in read]
    # In a thread, because the computation would delay other requests.
    counts, until_us = await asyncio.to_thread(_count, tuple(owned), from_us, to_us, step_us)
    return ScheduleTimes(counts, until_us, max(0, sum(queues.values()) - len(owned)))


@lru_cache(maxsize=16)  # a live page repeats the request
def _count(
    owned: tuple[tuple[str, Schedule], ...], from_us: int, to_us: int, step_us: int
) -> tuple[Mapping[str, Counter[int]], int | None]:
    counts: dict[str, Counter[int]] = {queue: Counter() for queue, _ in owned}
    for queue, schedule in owned:
        if schedule.timing.every_us:
            counts[queue].update(_of_interval(schedule, from_us, to_us, step_us))
    left = TIMES
    for at_us, queue in merge(*(_one_by_one(queue, one, from_us) for queue, one in owned)):
        if at_us >= to_us:
            break
        if not left:
            return counts, at_us
        if at_us >= from_us:
            counts[queue][at_us - at_us % step_us] += 1
            left -= 1
    return counts, None


def _one_by_one(queue: str, schedule: Schedule, from_us: int) -> Iterator[tuple[int, str]]:
    if schedule.timing.every_us:
        return
    try:
        for at_us in schedule.firing(from_us):
            yield at_us, queue
    except UsageError:  # its time zone is not known here
        return


def _of_interval(schedule: Schedule, from_us: int, to_us: int, step_us: int) -> dict[int, int]:
    """Count the times of an interval schedule without iterating over them."""
    timing = schedule.timing
    first_us = next(schedule.firing(), to_us)
    end_us = min(to_us, timing.end_us + 1) if timing.end_us else to_us
    if timing.limit:
        end_us = min(end_us, first_us + timing.every_us * (timing.limit - schedule.fired))

    def passed(until_us: int) -> int:
        """Return how many of its times are before a moment."""
        return max(0, -(-(min(until_us, end_us) - first_us) // timing.every_us))

    starts = range(max(from_us, first_us - first_us % step_us), end_us, step_us)
    return {at: number for at in starts if (number := passed(at + step_us) - passed(at))}
