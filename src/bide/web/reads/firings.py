"""How many times of schedules fall into stretches of time that are to come."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from heapq import merge
from typing import Final, NamedTuple

from bide.errors import UsageError
from bide.schedule import Schedule
from bide.web.reads.schedules import MOST, read_some
from bide.web.site import Site

TIMES: Final = 50_000
"""Times of cron expressions and lists that are counted at most, of all schedules together: the
minutes of a month, and some. Those of intervals are not counted one by one."""


class Firings(NamedTuple):
    """What schedules will fire."""

    counts: Mapping[str, Counter[int]]
    """By queue: the moment at which a stretch begins -> how many times are in it."""
    until_us: int | None
    """From when on only intervals are counted, for there are too many times; None where all are."""
    left_out: int
    """Schedules that are not counted, for there are too many."""


async def firings(
    site: Site, queues: Mapping[str, int], from_us: int, to_us: int, step_us: int
) -> Firings:
    """How many times of schedules fall into each stretch of a span.

    Args:
        site: where they are.
        queues: queue -> how many schedules it has.
        from_us: where the first stretch begins, at a whole multiple of `step_us`.
        to_us: where the last one ends.
        step_us: how long each is.
    """
    owned: list[tuple[str, Schedule]] = []
    for queue, number in queues.items():
        if number:
            found = await read_some(site, queue, MOST - len(owned))
            owned += [(queue, schedule) for _, schedule in found]
    # In a thread: to reckon so many times takes longer than others who are served can wait.
    counts, until_us = await asyncio.to_thread(_count, tuple(owned), from_us, to_us, step_us)
    return Firings(counts, until_us, max(0, sum(queues.values()) - len(owned)))


@lru_cache(maxsize=16)  # a page that is live asks again and again
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
    """By stretch, without a look at each time."""
    timing = schedule.timing
    first_us = next(schedule.firing(), to_us)
    end_us = min(to_us, timing.end_us + 1) if timing.end_us else to_us
    if timing.limit:
        end_us = min(end_us, first_us + timing.every_us * (timing.limit - schedule.fired))

    def passed(until_us: int) -> int:
        """How many of its times lie before a moment."""
        return max(0, -(-(min(until_us, end_us) - first_us) // timing.every_us))

    starts = range(max(from_us, first_us - first_us % step_us), end_us, step_us)
    return {at: number for at in starts if (number := passed(at + step_us) - passed(at))}
