"""`bide cron`: schedules, when they fire next, and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from bide.cli.options import CommandGroup, json_option, queues_option, server_options
from bide.cli.screen import Cell, Column, aside, count, echo, echo_json, table
from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.ids import short_id
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.schedules import read_page
from bide.queue.schedules import by_name
from bide.views.schedules import FoundSchedule, _next_of, schedule_report
from bide.views.site import NotFound, Site, did_you_mean
from bide.views.times import moment, moment_json, relative

F = TypeVar("F", bound=Callable[..., Any])

_MOST: Final = 1_000


@click.group(cls=CommandGroup)
@server_options
def cron(url: str | None, prefix: str | None) -> None:
    """List schedules, run, pause, resume and remove them."""


def _names(function: F) -> F:
    function = queues_option("Look only in this queue; again for more.")(function)
    return click.argument("names", nargs=-1, required=True, metavar="NAME...")(function)


@cron.command("ls")
@queues_option("Only of this queue; again for more.")
@server_options
@json_option
def ls(queues: tuple[str, ...], url: str | None, prefix: str | None, as_json: bool) -> None:
    """List schedules, with when each fires next."""
    found = _all(Site(url, prefix), queues)
    if as_json:
        echo_json({"schedules": [schedule_report(seen) for seen in found]})
        return
    if not found:
        aside("There are no schedules; @queue.cron(...) declares one, queue.schedules sets one.")
        return
    columns = [
        Column("name"),
        Column("queue", cut="end"),
        Column("when"),
        Column("task", cut="start"),
        Column("next", right=True),
        Column("last"),
        Column("fired", right=True),
    ]
    table(columns, [_row(seen) for seen in found])


@cron.command("next")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@queues_option("Only of this queue; again for more.")
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1, _MOST),
    default=10,
    help="So many at most.  [default: 10]",
)
@server_options
@json_option
def next_(
    names: tuple[str, ...],
    queues: tuple[str, ...],
    limit: int,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """List when schedules fire next: those that are named, or all."""
    site = Site(url, prefix)
    found = _meant(site, names, queues) if names else _all(site, queues)
    times = sorted(
        (at, seen.schedule.name, seen.queue, seen.now)
        for seen in found
        for at in seen.schedule.upcoming(limit)
    )[:limit]
    if as_json:
        listed = [
            {"at": moment_json(at), "in": (at - now).total_seconds(), "name": name, "queue": queue}
            for at, name, queue, now in times
        ]
        echo_json({"times": listed})
        return
    if not times:
        aside("No schedule fires.")
        return
    columns = [Column("in", right=True), Column("at"), Column("name"), Column("queue", cut="end")]
    rows = [
        [relative((at - now).total_seconds()).removeprefix("in "), moment(at), name, queue]
        for at, name, queue, now in times
    ]
    table(columns, rows)


@cron.command()
@_names
@server_options
def run(
    names: tuple[str, ...], queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Make a job of each schedule now; when it fires next, stays."""
    site = Site(url, prefix)
    for seen in _meant(site, names, queues):
        job = site.queue(seen.queue).schedules.run(seen.schedule.name)
        if job.created:
            echo(f"{job.id} on {seen.queue}: {seen.schedule.task}, due now")
        else:
            id, name = short_id(job.id), seen.schedule.name
            echo(f"{id} holds the key of {name}: the run was {job.enqueue_result}.")


@cron.command()
@_names
@server_options
def pause(
    names: tuple[str, ...], queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Let schedules fire no more until they are resumed."""
    site = Site(url, prefix)
    for seen in _meant(site, names, queues):
        name = site.queue(seen.queue).schedules.pause(seen.schedule.name).name
        echo(f"{name} is paused; `bide cron resume {name}` lets it fire again.")


@cron.command()
@_names
@server_options
def resume(
    names: tuple[str, ...], queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Let schedules fire again, from their next time on."""
    site = Site(url, prefix)
    for seen in _meant(site, names, queues):
        at = _next_of(site.queue(seen.queue).schedules.resume(seen.schedule.name))
        echo(f"{seen.schedule.name} is resumed{f', next at {moment(at)}' if at else ''}.")


@cron.command()
@_names
@server_options
def delete(
    names: tuple[str, ...], queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Delete schedules, but not the jobs that they have created.

    A schedule that a module declares is set again by the next worker that serves the module.
    """
    site = Site(url, prefix)
    for seen in _meant(site, names, queues):
        site.queue(seen.queue).schedules.delete(seen.schedule.name)
        echo(f"{seen.schedule.name} is deleted.")


def _all(site: Site, queues: Sequence[str]) -> list[FoundSchedule]:
    """The schedules of these queues, or of all."""
    found = []
    for queue in site.known(queues):
        keys = site.queue(queue).keys
        pages = [site.client.run(read_page(keys, "0"))]
        while pages[-1].cursor != "0":
            pages.append(site.client.run(read_page(keys, pages[-1].cursor)))
        now = from_us(pages[-1].now_us)
        found += [FoundSchedule(queue, schedule, now) for schedule in by_name(pages)]
    return found


def _meant(site: Site, names: Sequence[str], queues: Sequence[str]) -> list[FoundSchedule]:
    """The schedules of these names.

    Raises:
        NotFound: there is none of a name.
        UsageError: several queues have one.
    """
    there = _all(site, queues)
    meant = []
    for name in dict.fromkeys(names):
        found = [seen for seen in there if seen.schedule.name == name]
        if not found:
            near = did_you_mean(name, {seen.schedule.name for seen in there})
            raise NotFound(f"There is no schedule {name!r}{near or '; `bide cron ls` lists them.'}")
        if len(found) > 1:
            where = ", ".join(seen.queue for seen in found)
            raise UsageError(f"The queues {where} have a schedule {name!r} each; add --queue.")
        meant += found
    return meant


def _row(seen: FoundSchedule) -> list[str | Cell]:
    schedule, next_in = seen.schedule, seen.next_in
    if schedule.paused:
        next_cell = Cell("paused", "yellow")
    elif schedule.over:
        next_cell = Cell("over", "dim")
    else:
        next_cell = Cell("?" if next_in is None else relative(next_in))
    return [
        schedule.name,
        seen.queue,
        schedule.when,
        schedule.task,
        next_cell,
        relative((schedule.last - seen.now).total_seconds()) if schedule.last else "",
        f"{schedule.fired:,}{f' of {schedule.limit:,}' if schedule.limit else ''}",
    ]


def print_summary(counts: dict[str, QueueStats]) -> None:
    """Which queues have schedules, and when the first of them fires; nothing where none has."""
    for name, each in counts.items():
        if each.schedules:
            in_ = (each.next_fire_us - each.now_us) / 1e6
            first = f", the next fires {relative(max(in_, 0))}" if each.next_fire_us else ""
            what = count(each.schedules, "schedule")
            echo(f"{name} has {what}{first}: `bide cron ls -q {name}`.", "dim")
