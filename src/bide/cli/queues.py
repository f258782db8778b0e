"""`bide queues`: list, pause, resume, limit and purge queues."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click

from bide.cli.options import (
    CommandGroup,
    complete_queues,
    json_option,
    queues_option,
    server_options,
)
from bide.cli.screen import STATE_STYLE, Cell, Column, confirmed, count, echo, echo_json, table
from bide.errors import BideError, UsageError
from bide.model.durations import describe
from bide.model.limits import NONE, describe_limits
from bide.model.options import GroupSettings, QueueSettings
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import GroupCounts
from bide.protocol.keys import SCHEMA, Keys, keys_of
from bide.views.queues import (
    STATES,
    group_line,
    group_report,
    limits_report,
    next_due,
    queues_report,
)
from bide.views.site import Site
from bide.views.times import relative

_STATES = ("delayed", "waiting", "active")


@click.command()
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=50,
    help="Maximum number of groups to list.  [default: 50]",
)
@server_options
@json_option
def groups(name: str, limit: int, url: str | None, prefix: str | None, as_json: bool) -> None:
    """List a queue's groups, those with most jobs first."""
    site = Site(url, prefix)
    (known,) = site.known((name,))
    found = site.queue(known).groups()
    found.sort(key=lambda one: (-one.delayed - one.waiting - one.active, one.name))
    if as_json:
        shown = [one._asdict() for one in found[:limit]]
        echo_json({"queue": known, "groups": shown, "all": len(found)})
    elif not found:
        echo(f"{known} has no groups; jobs that are enqueued with group=... make some.")
    else:
        columns = [
            Column("group", cut="end"),
            *(Column(state, right=True) for state in _STATES),
            Column("at once", right=True),
            Column("priority", right=True),
            Column(""),
        ]
        table(columns, [_group_row(one) for one in found[:limit]])
        if len(found) > limit:
            echo(f"{len(found) - limit:,} more; -n {len(found)} shows all.", "dim")


def _group_row(group: GroupCounts) -> list[str | Cell]:
    numbers = [(state, getattr(group, state)) for state in _STATES]
    return [
        group.name,
        *(Cell(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim") for state, n in numbers),
        str(group.concurrency),
        str(group.priority),
        Cell(group_line(group, with_count=False), "yellow" if group.paused else "dim"),
    ]


_ALWAYS = STATES[1:]
"""Shown also where no queue has any."""

queue_names = click.argument(
    "names", nargs=-1, required=True, metavar="QUEUE...", shell_complete=complete_queues
)


group_option = click.option(
    "-g", "--group", metavar="NAME", help="Only this group of jobs, not the whole queue."
)


@click.group(cls=CommandGroup)
@server_options
def queues(url: str | None, prefix: str | None) -> None:
    """List, pause, resume, limit and purge queues."""


@queues.command("ls")
@queues_option("Only these; again for more.")
@server_options
@json_option
def ls(queues: tuple[str, ...], url: str | None, prefix: str | None, as_json: bool) -> None:
    """List queues with their jobs by state."""
    site = Site(url, prefix)
    counts = site.counts(site.known(queues))
    if as_json:
        echo_json({"queues": queues_report(counts)})
    else:
        print_queues(counts)


@queues.command()
@queue_names
@group_option
@server_options
def pause(names: tuple[str, ...], group: str | None, url: str | None, prefix: str | None) -> None:
    """Let no job of a queue, or of a group, be claimed.

    Those that run go on.
    """
    site = Site(url, prefix)
    for name in site.known(names):
        queue = site.queue(name)
        if group is None:
            queue.pause()
            echo(f"{name} is paused; `bide queues resume {name}` lets its jobs run again.")
        else:
            queue.group(group).pause()
            resume = shlex.join(["bide", "queues", "resume", name, "--group", group])
            echo(f"Group {group} of {name} is paused; `{resume}` lets its jobs run again.")


@queues.command()
@queue_names
@group_option
@server_options
def resume(names: tuple[str, ...], group: str | None, url: str | None, prefix: str | None) -> None:
    """Let jobs of a queue, or of a group, be claimed again.

    Also where one of a queue's jobs holds it.
    """
    site = Site(url, prefix)
    for name in site.known(names):
        queue = site.queue(name)
        if group is None:
            queue.resume()
            echo(f"{name} is resumed.")
        else:
            queue.group(group).resume()
            echo(f"Group {group} of {name} is resumed.")


queues.add_command(groups)


@queues.command()
@queue_names
@click.option("--dry-run", is_flag=True, help="Only say how many jobs that would remove.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@server_options
def purge(
    names: tuple[str, ...], dry_run: bool, yes: bool, url: str | None, prefix: str | None
) -> None:
    """Remove delayed, waiting and blocked jobs, for good.

    Jobs that run, and those that have finished, stay; so do schedules (`bide cron delete`).
    """
    site = Site(url, prefix)
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
    """Queues as a table."""
    if not counts:
        echo("No queue has been used yet; `bide enqueue module:function` starts one.")
        return
    shown = [
        state
        for state in STATES
        if state in _ALWAYS or any(getattr(each, state) for each in counts.values())
    ]
    columns = [
        Column("queue", cut="end"),
        *(Column(state, right=True) for state in shown),
        Column("next due", right=True),
        Column(""),
    ]
    table(columns, [_row(name, each, shown) for name, each in counts.items()])


def _row(name: str, counts: QueueStats, shown: Sequence[str]) -> list[str | Cell]:
    numbers = [(state, getattr(counts, state)) for state in shown]
    due = next_due(counts)
    return [
        name,
        *(Cell(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim") for state, n in numbers),
        "" if due is None else relative(due) if due > 0 else "now",
        _remark(counts),
    ]


def _remark(counts: QueueStats) -> Cell:
    line = limits_line(counts)
    if counts.paused:
        return Cell(", ".join(filter(None, ("paused", line))), "yellow")
    return Cell(line, "yellow" if counts.limits.held_until else "dim")


def limits_line(counts: QueueStats) -> str:
    """What limits a queue, as in `100/s, 10 at once, held for 20s`."""
    limits = counts.limits
    parts = describe_limits(limits.rate, limits.burst, limits.concurrency)
    if limits.held_until:
        ahead = (limits.held_until - counts.now).total_seconds()
        parts.append(f"held for {describe(ahead)}")
    return ", ".join(parts)


_HOLDS: Final[dict[str, tuple[Callable[[int], str], str]]] = {
    "pending": (
        lambda n: f"holds {count(n, 'delayed, waiting or blocked job')}",
        "`bide queues purge {queue}` removes them",
    ),
    "active": (
        lambda n: f"holds {count(n, 'running job')}",
        "wait until they have finished",
    ),
    "ended": (
        lambda n: f"holds {count(n, 'finished job')}",
        "`bide jobs delete -q {queue}` removes them",
    ),
    "schedules": (
        lambda n: f"has {count(n, 'schedule')}",
        "`bide cron delete -q {queue} NAME` removes one",
    ),
    "groups": (
        lambda n: f"has settings of {count(n, 'group')}",
        "`bide queues groups {queue}` lists them",
    ),
    "edges": (
        lambda n: f"has {count(n, 'message')} for jobs of other queues",
        "a worker that serves {queue} delivers them",
    ),
    "paused": (lambda n: "is paused", "`bide queues resume {queue}` ends that"),
    "limits": (
        lambda n: "has limits",
        "`bide queues limit {queue} --rate none --concurrency none` removes them",
    ),
    "aside": (
        lambda n: f"has {count(n, 'key')} that `bide fsck` has moved aside",
        "look at them with redis-cli, and delete them",
    ),
    "served": (
        lambda n: f"is served by {count(n, 'worker or reader', 'workers or readers')}",
        "stop them; a killed worker or reader counts for up to 15 s",
    ),
}
"""What a queue may hold, in words; and what to do about it."""


@click.command()
@queue_names
@server_options
def forget(names: tuple[str, ...], url: str | None, prefix: str | None) -> None:
    """Take a queue off the list, if it holds nothing.

    Use it for a queue whose name was misspelt. The command refuses a queue that has jobs (finished
    jobs too), schedules, settings of groups, limits or a pause, and a queue that a worker serves.
    It removes the queue's counts, its statistics and its retention. If the queue is used again, it
    is listed again.
    """
    site = Site(url, prefix)
    for name in site.known(names):
        _forget(site, name)
        echo(f"{name} is forgotten.")


def _forget(site: Site, name: str) -> None:
    """Remove what is left of a queue, and take it off the list.

    The list may be on another node of a Cluster than the queue, so no script sees both. A job that
    comes in between is found by the second look.
    """
    everywhere = keys_of(None, site.prefix)
    _check_unserved(site, name)
    _remove(site, name)
    site.client.run(queue_commands.unregister_queues(everywhere, [name]))
    try:
        _remove(site, name)
    except BideError:
        site.client.run(queue_commands.register_queues(everywhere, [name]))
        raise


def _check_unserved(site: Site, name: str) -> None:
    """Refuse a queue that a worker serves, busy ones with no slot left included."""
    for worker in site.workers():
        if name in worker.about.queues:
            raise BideError(
                f"{name} is served by the worker {worker.name}; stop it first, or start it without "
                f"this queue (`bide workers stop {worker.name}`)."
            )


def _remove(site: Site, name: str) -> None:
    """Remove what is left of a queue.

    Raises:
        BideError: it holds something, so nothing was removed.
    """
    holds = site.client.run(job_commands.forget(keys_of(name, site.prefix)))
    if holds:
        queue = shlex.quote(name)
        what, cures = zip(*(_HOLDS[kind] for kind in holds), strict=True)
        told = " and ".join(say(n) for say, n in zip(what, holds.values(), strict=True))
        fix = "; ".join(cure.format(queue=queue) for cure in cures)
        raise BideError(f"{name} {told}, so it is not forgotten; {fix}.")


@click.command()
@queue_names
@group_option
@click.option(
    "--rate", metavar="RATE", help="How many may begin in which time: 100/s, 5/10m; none."
)
@click.option(
    "--burst", metavar="N", type=int, help="How many of these at once after a quiet time."
)
@click.option("--concurrency", metavar="N", help="How many may run at once, on all workers; none.")
@server_options
@json_option
def limit(
    names: tuple[str, ...],
    group: str | None,
    rate: str | None,
    burst: int | None,
    concurrency: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Show the limits of a queue, or of a group, or set them.

    Those that are not given stay as they are; `none` removes one.
    """
    settings: QueueSettings = {}
    if rate is not None:
        settings["rate"] = None if rate == NONE else rate
    if burst is not None:
        settings["burst"] = burst
    if concurrency is not None:
        settings["concurrency"] = _number(concurrency)
    site = Site(url, prefix)
    known = site.known(names)
    if group is None:
        _of_queues(site, known, settings, as_json)
    else:
        _of_group(site, known, group, settings, as_json)


def _of_queues(site: Site, known: list[str], settings: QueueSettings, as_json: bool) -> None:
    if settings:
        for name in known:
            site.queue(name).configure(**settings)
    counts = site.counts(known)
    if as_json:
        echo_json({"queues": {name: limits_report(each) for name, each in counts.items()}})
        return
    for name, each in counts.items():
        echo(f"{name}: {limits_line(each) or 'no limits'}")


def _of_group(
    site: Site, known: list[str], group: str, settings: QueueSettings, as_json: bool
) -> None:
    wanted: GroupSettings = {}
    if "rate" in settings:
        wanted["rate"] = settings["rate"]
    if "burst" in settings:
        wanted["burst"] = settings["burst"]
    if "concurrency" in settings:
        wanted["concurrency"] = settings["concurrency"]
    if wanted:
        for name in known:
            site.queue(name).group(group).configure(**wanted)
    found = {name: site.queue(name).group(group).counts() for name in known}
    if as_json:
        echo_json({"queues": {name: group_report(each) for name, each in found.items()}})
        return
    for name, each in found.items():
        echo(f"Group {group} of {name}: {group_line(each) or 'no limits but those of its jobs'}")


def _number(text: str) -> int | None:
    if text == NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--concurrency {text!r} is not a number; give a number, or none."
        ) from None


@click.command()
@queue_names
@click.option("--to", "target", type=int, metavar="SCHEMA", help=f"[default: {SCHEMA}, the newest]")
@click.option("--force", is_flag=True, help="Though workers are alive that do not know it.")
@server_options
def upgrade(
    names: tuple[str, ...], target: int | None, force: bool, url: str | None, prefix: str | None
) -> None:
    """Bring what a queue stores to another schema.

    That is the newest that this bide knows, or an older one, to go back. Older programs are
    refused from the beginning of the way up to the end of the way back. Jobs run meanwhile. What
    was interrupted is begun again.
    """
    site = Site(url, prefix)
    to = job_commands.check_schema(SCHEMA if target is None else target)
    known = site.known(names)
    if not force:
        _check_workers(site, known, to)
    for name, counts in site.counts(known).items():
        changed = sum(
            _convert(site, site.queue(name).keys, step) for step in _steps(counts.schema, to)
        )
        echo(f"{name} is stored in schema {to}; {changed:,} values were changed.")


def _steps(found: int, target: int) -> Iterator[int]:
    """Each schema on the way; the one that is there, where it may not have been completed."""
    if found == target:
        yield target
    while found != target:
        found += 1 if target > found else -1
        yield found


def _convert(site: Site, keys: Keys, target: int) -> int:
    """One step of the way, to its end; how many values were changed."""
    changed, cursor = 0, "0"
    while True:
        done = site.client.run(job_commands.upgrade(keys, target, cursor))
        if done.found:
            raise BideError(f"{keys.queue} is in schema {done.found} by now; run this once more.")
        changed, cursor = changed + done.changed, done.cursor
        if cursor == "0":
            return changed


def _check_workers(site: Site, names: list[str], target: int) -> None:
    """Refuse to lay a queue out so that workers which are alive can no longer touch it."""
    for worker in site.workers():
        if worker.about.schema < target and {*worker.about.queues} & {*names}:
            raise UsageError(
                f"The worker {worker.name} (bide {worker.about.version}) does not know schema "
                f"{target}; stop such workers first, or --force: then their jobs run again."
            )
