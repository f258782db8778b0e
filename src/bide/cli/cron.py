"""`bide cron`: lists, runs, pauses, resumes and deletes schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import click

from bide.cli.options import (
    CommandGroup,
    completing,
    json_option,
    limit_option,
    queues_option,
    server_options,
    site_options,
)
from bide.cli.screen import Cell, Column, aside, echo, show
from bide.errors import UsageError
from bide.logs import count
from bide.model.ids import short_id
from bide.model.schedule import Schedule
from bide.protocol.commands.jobs import QueueStats
from bide.queue import Schedules
from bide.views._sync import Site
from bide.views.params import NotFound, ahead, did_you_mean, moment, moment_json, relative
from bide.views.schedules import FoundSchedule, _next_of, found_in, schedule_report

_MOST: Final = 1_000


@click.group(cls=CommandGroup)
@server_options
def cron(url: str | None, prefix: str | None) -> None:
    """List schedules, run, pause, resume and remove them."""


@cron.command("ls")
@queues_option("Queue whose schedules are listed; repeat for more.")
@site_options
@json_option
def ls(queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """List schedules, with the next time of each."""
    found = _all(site, queues)
    show(
        as_json,
        lambda: {"schedules": [schedule_report(seen) for seen in found]},
        COLUMNS,
        found,
        "There are no schedules; @queue.cron(...) declares one, queue.schedules sets one.",
    )


def _next(seen: FoundSchedule) -> Cell:
    if seen.schedule.paused:
        return Cell("paused", "yellow")
    if seen.schedule.over:
        return Cell("over", "dim")
    return Cell("?" if seen.next_in is None else relative(seen.next_in))


def _last(seen: FoundSchedule) -> str:
    last = seen.schedule.last
    return relative((last - seen.now).total_seconds()) if last else ""


def _fired(schedule: Schedule) -> str:
    return f"{schedule.fired:,}{f' of {schedule.limit:,}' if schedule.limit else ''}"


COLUMNS: Final = [
    Column("name", lambda seen: short_id(seen.schedule.name)),
    Column("queue", lambda seen: seen.queue, cut="end"),
    Column("when", lambda seen: seen.schedule.when),
    Column("task", lambda seen: seen.schedule.task, cut="start"),
    Column("next", _next, right=True),
    Column("last", _last),
    Column("fired", lambda seen: _fired(seen.schedule), right=True),
]
"""The columns of a table of schedules."""


@cron.command("next")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=completing("schedules"))
@queues_option("Queue whose schedules are listed; repeat for more.")
@limit_option("times to list", 10, _MOST)
@site_options
@json_option
def next_(
    names: tuple[str, ...], queues: tuple[str, ...], limit: int, site: Site, as_json: bool
) -> None:
    """List the next times of the named schedules, or of all."""
    found = _meant(site, names, queues) if names else _all(site, queues)
    times: list[tuple[datetime, str, str, datetime]] = []
    for seen in found:
        name = seen.schedule.name
        try:
            times += [(at, name, seen.queue, seen.now) for at in seen.schedule.upcoming(limit)]
        except UsageError as error:  # its time zone is not known here
            if names:
                raise
            aside(f"{short_id(name)} is left out: {error}")
    times = sorted(times)[:limit]
    columns = [
        Column("in", lambda one: ahead((one[0] - one[3]).total_seconds()), right=True),
        Column("at", lambda one: moment(one[0])),
        Column("name", lambda one: short_id(one[1])),
        Column("queue", lambda one: one[2], cut="end"),
    ]
    listed = [
        {"at": moment_json(at), "in": (at - now).total_seconds(), "name": name, "queue": queue}
        for at, name, queue, now in times
    ]
    show(as_json, lambda: {"times": listed}, columns, times, "No schedule fires.")


def _verb(function: Callable[[Schedules, FoundSchedule], None]) -> None:
    """Add a command that calls a function with each named schedule."""

    @cron.command(function.__name__, help=function.__doc__)
    @click.argument(
        "names",
        nargs=-1,
        required=True,
        metavar="NAME...",
        shell_complete=completing("schedules"),
    )
    @queues_option("Queue to look in; repeat for more.")
    @site_options
    def command(names: tuple[str, ...], queues: tuple[str, ...], site: Site) -> None:
        for seen in _meant(site, names, queues):
            function(site.queue(seen.queue).schedules, seen)


@_verb
def run(schedules: Schedules, seen: FoundSchedule) -> None:
    """Create a job of each schedule now; its times do not change."""
    name = seen.schedule.name
    job = schedules.run(name)
    if job.created:
        echo(f"{short_id(job.id)} on {seen.queue}: {seen.schedule.task}, due now")
    else:
        holder, result = short_id(job.id), job.enqueue_result
        echo(f"{holder} holds the key of {short_id(name)}: the run was {result}.")


@_verb
def pause(schedules: Schedules, seen: FoundSchedule) -> None:
    """Stop schedules from firing until they are resumed."""
    name = short_id(schedules.pause(seen.schedule.name).name)
    echo(f"{name} is paused; `bide cron resume {name}` lets it fire again.")


@_verb
def resume(schedules: Schedules, seen: FoundSchedule) -> None:
    """Let schedules fire again, from their next time on."""
    at = _next_of(schedules.resume(seen.schedule.name))
    name, next_at = short_id(seen.schedule.name), f", next at {moment(at)}" if at else ""
    echo(f"{name} is resumed{next_at}.")


@_verb
def delete(schedules: Schedules, seen: FoundSchedule) -> None:
    """Delete schedules, but not the jobs that they have created.

    A schedule that a module declares is set again by the next worker that serves the module.
    """
    schedules.delete(seen.schedule.name)
    echo(f"{short_id(seen.schedule.name)} is deleted.")


def _all(site: Site, queues: Sequence[str]) -> list[FoundSchedule]:
    known = site.known(queues)
    return [seen for queue in known for seen in found_in(queue, site.schedules(queue))]


def _meant(site: Site, names: Sequence[str], queues: Sequence[str]) -> list[FoundSchedule]:
    """Return the schedules of these names; each must exist in exactly one queue."""
    there = _all(site, queues)
    meant = []
    for name in dict.fromkeys(names):
        found = [seen for seen in there if seen.schedule.name == name]
        if not found:
            near = did_you_mean(name, {seen.schedule.name for seen in there})
            raise NotFound(
                f"There is no schedule {short_id(name)!r}{near or '; `bide cron ls` lists them.'}"
            )
        if len(found) > 1:
            where = ", ".join(seen.queue for seen in found)
            raise UsageError(
                f"The queues {where} have a schedule {short_id(name)!r} each; add --queue."
            )
        meant += found
    return meant


def print_summary(counts: dict[str, QueueStats]) -> None:
    """Print which queues have schedules, and the next time; nothing without schedules."""
    for name, each in counts.items():
        if each.schedules:
            in_ = (each.next_fire_us - each.now_us) / 1e6
            first = f", the next fires {relative(max(in_, 0))}" if each.next_fire_us else ""
            what = count(each.schedules, "schedule")
            echo(f"{name} has {what}{first}: `bide cron ls -q {name}`.", "dim")
