"""`bide queues`: list, pause, resume, limit and purge queues."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final, Literal, cast

import click

from bide.cli.options import (
    CommandGroup,
    completing,
    flag,
    json_option,
    limit_option,
    option,
    queues_option,
    server_options,
    site_options,
    yes_option,
)
from bide.cli.screen import Cell, Column, aside, confirmed, echo, echo_json, state_columns, table
from bide.errors import BideError, UsageError
from bide.logs import count
from bide.model.durations import describe
from bide.model.ids import short_id
from bide.model.job import LISTABLE
from bide.model.limits import DECLARED, NONE, describe_limits
from bide.model.options import QueueSettings
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.queue import Group, Queue
from bide.views._sync import Site
from bide.views.params import relative
from bide.views.queues import (
    group_line,
    group_report,
    limits_report,
    most_first,
    next_due,
    queues_report,
)

queue_names = click.argument(
    "names", nargs=-1, required=True, metavar="QUEUE...", shell_complete=completing("queues")
)


group_option = option("-g --group", "NAME", "Group of jobs, instead of the whole queue.")


@click.group(cls=CommandGroup)
@server_options
def queues(url: str | None, prefix: str | None) -> None:
    """List, pause, resume, limit and purge queues."""


@queues.command("ls")
@queues_option("Queue to list; repeat for more.")
@site_options
@json_option
def ls(queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """List queues with their jobs by state."""
    counts = site.counts(site.known(queues))
    if as_json:
        echo_json({"queues": queues_report(counts)})
    else:
        print_queues(counts)


@queues.command()
@queue_names
@group_option
@site_options
def pause(names: tuple[str, ...], group: str | None, site: Site) -> None:
    """Pause queues, or a group: none of their jobs is claimed.

    Running jobs continue.
    """
    more = [] if group is None else ["--group", group]
    for name, what, one in _named(site, names, group):
        one.pause()
        undo = shlex.join(["bide", "queues", "resume", name, *more])
        echo(f"{what} is paused; `{undo}` lets its jobs run again.")
        if isinstance(one, Group) and not any(one.counts()[1:4]):
            aside(f"{what} has no jobs now; check the name if it should have some.")


@queues.command()
@queue_names
@group_option
@site_options
def resume(names: tuple[str, ...], group: str | None, site: Site) -> None:
    """Resume queues, or a group: their jobs are claimed again.

    The command also ends a pause that a job caused with PauseQueue.
    """
    for _, what, one in _named(site, names, group):
        one.resume()
        echo(f"{what} is resumed.")


def _named(
    site: Site, names: Sequence[str], group: str | None
) -> Iterator[tuple[str, str, Queue | Group]]:
    """Yield each named queue, or its group: the queue's name, a description, and the object."""
    for name in site.known(names):
        queue = site.queue(name)
        if group is None:
            yield name, name, queue
        else:
            yield name, f"Group {group} of {name}", queue.group(group)


@queues.command()
@click.argument("name", metavar="QUEUE", shell_complete=completing("queues"))
@limit_option("groups to list", 50)
@site_options
@json_option
def groups(name: str, limit: int, site: Site, as_json: bool) -> None:
    """List a queue's groups, those with most jobs first."""
    (known,) = site.known((name,))
    found = most_first(site.queue(known).groups())
    if as_json:
        shown = [one._asdict() for one in found[:limit]]
        echo_json({"queue": known, "groups": shown, "all": len(found)})
    elif not found:
        echo(f"{known} has no groups; jobs that are enqueued with group=... make some.")
    else:
        columns = [
            Column("group", lambda one: one.name, cut="end"),
            *state_columns(("delayed", "waiting", "active"), lambda one: one),
            Column("concurrency", lambda one: str(one.concurrency), right=True),
            Column("priority", lambda one: str(one.priority), right=True),
            Column("", lambda one: Cell(group_line(one, False), "yellow" if one.paused else "dim")),
        ]
        table(columns, found[:limit])
        if len(found) > limit:
            echo(f"{len(found) - limit:,} more; -n {len(found)} shows all.", "dim")


@queues.command()
@queue_names
@flag("--dry-run", "Print the number of jobs, and remove nothing.")
@yes_option
@site_options
def purge(names: tuple[str, ...], dry_run: bool, yes: bool, site: Site) -> None:
    """Remove delayed, waiting and blocked jobs, for good.

    Running jobs, finished jobs and schedules stay (delete schedules with `bide cron delete`).
    """
    known = site.known(names)
    counts = site.counts(known).values()
    pending = sum(each.delayed + each.waiting + each.blocked for each in counts)
    what = f"{count(pending, 'delayed, waiting or blocked job')} of {', '.join(known)}"
    if dry_run:
        echo(f"Would remove {what}.")
    elif confirmed(f"Remove {what}, for good?", yes):
        for name in known:
            echo(f"{name}: removed {count(site.queue(name).purge(), 'job')}.")


def print_queues(counts: dict[str, QueueStats]) -> None:
    """Print queues as a table."""
    if not counts:
        echo("No queue has been used yet; `bide enqueue module:function` starts one.")
        return
    shown = [
        state
        for state in LISTABLE
        if state != "blocked" or any(each.blocked for each in counts.values())
    ]
    columns = [
        Column("queue", lambda named: named[0], cut="end"),
        *state_columns(shown, lambda named: named[1]),
        Column("next due", lambda named: _next_due(named[1]), right=True),
        Column("", lambda named: _remark(named[1])),
    ]
    table(columns, counts.items())


def _next_due(counts: QueueStats) -> str:
    due = next_due(counts)
    return "" if due is None else relative(due) if due > 0 else "now"


def _remark(counts: QueueStats) -> Cell:
    line = limits_line(counts)
    if counts.paused:
        return Cell(", ".join(filter(None, ("paused", line))), "yellow")
    return Cell(line, "yellow" if counts.limits.held_until else "dim")


def limits_line(counts: QueueStats) -> str:
    """Describe the limits of a queue: `100/s, 10 at once, held for 20s`."""
    limits = counts.limits
    parts = describe_limits(
        *(limits.rate, limits.burst, limits.concurrency, limits.group_rate, limits.group_burst)
    )
    if limits.held_until:
        ahead = (limits.held_until - counts.now).total_seconds()
        parts.append(f"held for {describe(ahead)}")
    return ", ".join(parts)


_HOLDS: Final = {
    "pending": "holds {n} delayed, waiting or blocked job{s}; "
    "`bide queues purge {queue}` removes them",
    "active": "holds {n} running job{s}; wait until they have finished",
    "ended": "holds {n} finished job{s}; "
    "`bide jobs delete -q {queue} -s completed -s failed -s cancelled` removes them",
    "schedules": "has {n} schedule{s}; `bide cron delete -q {queue} NAME` removes one",
    "groups": "has settings of {n} group{s}; `bide queues groups {queue}` lists them, and "
    "`bide queues limit {queue} --group NAME --rate none --concurrency none` removes one",
    "edges": "has {n} message{s} for jobs of other queues; "
    "a worker that serves {queue} delivers them",
    "paused": "is paused; `bide queues resume {queue}` ends that",
    "limits": "has limits; `bide queues limit {queue} --rate none --concurrency none "
    "--group-rate none` removes them",
    "quarantined": "has {n} key{s} that `bide fsck` has quarantined; "
    "look at them with redis-cli, and delete them",
    "served": "is served by {n} worker{s} or reader{s}; "
    "stop them; a killed worker or reader counts for up to 15 s",
}
"""Each content that a queue may hold, in words; after a semicolon, how to remove it."""


@queues.command()
@queue_names
@site_options
def forget(names: tuple[str, ...], site: Site) -> None:
    """Remove queues from the list, if they hold nothing.

    Use it for a queue whose name was misspelt. The command refuses a queue that has jobs (finished
    jobs too), schedules, settings of groups, limits or a pause, and a queue that a worker serves.
    It removes the queue's counts, its statistics and its retention. If the queue is used again, it
    is listed again.
    """
    for name in site.known(names):
        _forget(site, name)
        echo(f"{name} is forgotten.")


def _forget(site: Site, name: str) -> None:
    """Remove the remaining data of a queue, and remove it from the list.

    The list may be on another node of a Cluster than the queue, so no script sees both. The second
    call finds a job that was added in between.
    """
    for worker in site.workers():  # also busy ones without a free slot
        if name in worker.about.queues:
            by = short_id(worker.name)
            raise BideError(
                f"{name} is served by the worker {by}; stop it first, or start it without "
                f"this queue (`bide workers stop {by}`)."
            )
    _remove(site, name)
    site.client.run(queue_commands.unregister_queues(site.everywhere, [name]))
    try:
        _remove(site, name)
    except BideError:
        site.client.run(queue_commands.register_queues(site.everywhere, [name]))
        raise


def _remove(site: Site, name: str) -> None:
    """Remove the remaining data of a queue; raise if it holds something."""
    holds = site.client.run(job_commands.forget(site.keys(name)))
    if holds:
        queue, told = shlex.quote(name), []
        for kind, n in holds.items():
            text = _HOLDS[kind].format(n=f"{n:,}", s="" if n == 1 else "s", queue=queue)
            told.append(text.split("; ", 1))
        what, cures = zip(*told, strict=True)
        raise BideError(f"{name} {' and '.join(what)}, so it is not forgotten; {'; '.join(cures)}.")


@queues.command()
@queue_names
@group_option
@option("--rate", "RATE", "Jobs that may start per period: 100/s, 5/10m; or none.")
@option("--burst", "N", "Jobs that may start at once after a quiet time.")
@option("--concurrency", "N", "Jobs that may run at once, over all workers; or none.", type=str)
@option("--group-rate", "RATE", "Rate of each group that has none of its own; or none.")
@option("--group-burst", "N", "Jobs of such a group that may start at once after a quiet time.")
@flag("--declared", "Return to the limits and the retention that the code declares.")
@site_options
@json_option
def limit(
    names: tuple[str, ...],
    group: str | None,
    rate: str | None,
    burst: int | None,
    concurrency: str | None,
    group_rate: str | None,
    group_burst: int | None,
    declared: bool,
    site: Site,
    as_json: bool,
) -> None:
    """Show the limits of a queue, or of a group, or set them.

    A limit that is not given stays as it is; `none` removes a limit, and `declared` returns to the
    limit that the code declares.
    """
    settings: QueueSettings = {}
    if rate is not None:
        settings["rate"] = None if rate == NONE else rate
    if burst is not None:
        settings["burst"] = burst
    if concurrency is not None:
        settings["concurrency"] = _number(concurrency)
    if group is not None and (group_rate, group_burst) != (None, None):
        raise UsageError(
            "--group-rate applies to all groups of a queue; give --rate, or no --group."
        )
    if group_rate is not None:
        settings["group_rate"] = None if group_rate == NONE else group_rate
    if group_burst is not None:
        settings["group_burst"] = group_burst
    if declared and (settings or group is not None):
        raise UsageError("--declared is for all settings of a queue; give it alone.")
    named = [*_named(site, names, group)]
    if settings or declared:
        each = [_all_declared(site, name) if declared else settings for name, _, _ in named]
        for (_, _, one), its in zip(named, each, strict=True):
            cast(Queue, one).configure(**its)
    if group is None:
        counts = site.counts([name for name, _, _ in named]).values()
        found = [(limits_report(each), _with_declared(each)) for each in counts]
    else:
        groups = [site.queue(name).group(group).counts() for name, _, _ in named]
        none = "no limits but those of its jobs"
        found = [(group_report(each), group_line(each) or none) for each in groups]
    if as_json:
        reports = {name: each for (name, *_), (each, _) in zip(named, found, strict=True)}
        echo_json({"queues": reports})
        return
    for (_, what, _), (_, line) in zip(named, found, strict=True):
        echo(f"{what}: {line}")


def _with_declared(counts: QueueStats) -> str:
    declared = counts.limits.declared
    end = f" (the code declares {declared}, without effect)" if declared else ""
    return f"{limits_line(counts) or 'no limits'}{end}"


def _all_declared(site: Site, name: str) -> QueueSettings:
    """Return all settings that the code declares."""
    (counts,) = site.counts([name]).values()
    if not counts.declared:
        raise UsageError(
            f"No worker of queue {name} has declared limits or a retention; write them into "
            f"Queue({name!r}, rate=...), and start a worker."
        )
    return cast(QueueSettings, counts.declared)


def _number(text: str) -> int | Literal["declared"] | None:
    if text == NONE:
        return None
    if text == DECLARED:
        return DECLARED
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--concurrency {text!r} is not a number; give a number, none or declared."
        ) from None
