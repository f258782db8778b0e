"""Schedules: when each fires next."""

from __future__ import annotations

from typing import Any, Final

from bide.cli.cron import Seen, schedule_report
from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.errors import UsageError
from bide.ops.schedules import read_page, read_schedules
from bide.queue.schedules import found
from bide.schedule import Schedule, Timing, check_schedule_name
from bide.web.asked import Asked
from bide.web.site import Site

NEXT: Final = 10
"""Times of each schedule that are told."""

MOST: Final = 500
"""Schedules that are read at most."""


async def schedules(site: Site, asked: Asked) -> dict[str, Any]:
    """The schedules of `q`, or of all queues, with the next times of each.

    Raises:
        NotFound: there is no queue `q`.
    """
    listed: list[dict[str, Any]] = []
    now_us = 0
    for queue in await site.known(asked.text("q")):
        for now_us, one in await read_some(site, queue, MOST - len(listed)):
            listed.append(_report(queue, one, now_us))
    listed.sort(key=lambda each: (each["next"] is None, each["next"] or "", each["name"]))
    return {
        "now": moment_json(from_us(now_us)) if now_us else None,
        "schedules": listed,
        "all": len(listed) < MOST,
    }


async def schedule(site: Site, asked: Asked) -> dict[str, Any]:
    """The schedule `name` of the queue `q`, with its next times.

    Raises:
        UsageError: `q` is not given, or no schedule can have that name.
        NotFound: there is no queue `q`.
        ScheduleNotFound: it has no such schedule.
    """
    queue, now_us, one = await named(site, asked)
    return describe(queue, one, now_us)


def describe(queue: str, one: Schedule, now_us: int) -> dict[str, Any]:
    """A schedule as the page and the API have it."""
    now = moment_json(from_us(now_us))
    return {"now": now, **_report(queue, one, now_us), "stand": one.stand}


async def named(site: Site, asked: Asked) -> tuple[str, int, Schedule]:
    """Queue, the server's time, and the schedule that is named; raises as `schedule` does."""
    queue = await site.one(asked.text("q"))
    name = check_schedule_name(asked.text("name"))
    page = await site.client.run(read_schedules(site.keys(queue), [name]))
    return queue, page.now_us, found(next(iter(page.schedules), None), name, queue)


def foreseen(one: Schedule, timing: Timing, now_us: int) -> list[str | None]:
    """The next times of a schedule if it were set to these."""
    return _next(one.foreseen(timing, now_us))


def _report(queue: str, one: Schedule, now_us: int) -> dict[str, Any]:
    shown = schedule_report(Seen(queue, one, from_us(now_us)))
    return shown | {"when": one.when, "upcoming": _next(one)}


async def read_some(site: Site, queue: str, most: int) -> list[tuple[int, Schedule]]:
    """The schedules of a queue, `most` at most, each with the server's time."""
    found: list[tuple[int, Schedule]] = []
    cursor = "0"
    while len(found) < most:
        page = await site.client.run(read_page(site.keys(queue), cursor))
        found += [(page.now_us, schedule) for schedule in page.schedules]
        cursor = page.cursor
        if cursor == "0":
            break
    return found[:most]


def _next(schedule: Schedule) -> list[str | None]:
    try:
        return [moment_json(at) for at in schedule.upcoming(NEXT)]
    except UsageError:  # its time zone is not known here
        return []
