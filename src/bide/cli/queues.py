"""`bide queues`: list, pause, resume, limit and empty queues."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from bide.cli.ask import confirmed
from bide.cli.group import Group
from bide.cli.groups import groups
from bide.cli.options import complete_queues, json_option, queues_option, server_options
from bide.cli.screen import (
    STATE_STYLE,
    Cell,
    Column,
    count,
    echo,
    echo_json,
    moment_json,
    relative,
    table,
)
from bide.cli.site import Site
from bide.clock import describe
from bide.limits import describe_limits
from bide.ops.inspect import Counts

STATES = ("blocked", "delayed", "waiting", "active", "completed", "failed", "cancelled")
_ALWAYS = STATES[1:]
"""Shown also where no queue has any."""

queue_names = click.argument(
    "names", nargs=-1, required=True, metavar="QUEUE...", shell_complete=complete_queues
)


group_option = click.option(
    "-g", "--group", metavar="NAME", help="Only this group of jobs, not the whole queue."
)


@click.group(cls=Group)
@server_options
def queues(url: str | None, prefix: str | None) -> None:
    """List, pause, resume, limit and empty queues."""


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
def empty(
    names: tuple[str, ...], dry_run: bool, yes: bool, url: str | None, prefix: str | None
) -> None:
    """Remove delayed, waiting and blocked jobs, for good.

    Jobs that run, and those that have finished, stay; so do schedules (`bide cron rm`).
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
            echo(f"{name}: removed {count(site.queue(name).empty(), 'job')}.")


def queues_report(counts: dict[str, Counts]) -> dict[str, Any]:
    """Queues as JSON has them."""
    return {
        name: {state: getattr(each, state) for state in STATES}
        | {"paused": each.paused, "next_due_in": next_due(each), "totals": each.totals}
        | {"limits": limits_report(each), "schedules": each.schedules}
        for name, each in counts.items()
    }


def print_queues(counts: dict[str, Counts]) -> None:
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


def _row(name: str, counts: Counts, shown: Sequence[str]) -> list[str | Cell]:
    numbers = [(state, getattr(counts, state)) for state in shown]
    due = next_due(counts)
    return [
        name,
        *(Cell(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim") for state, n in numbers),
        "" if due is None else relative(due) if due > 0 else "now",
        _remark(counts),
    ]


def _remark(counts: Counts) -> Cell:
    line = limits_line(counts)
    if counts.paused:
        return Cell(", ".join(filter(None, ("paused", line))), "yellow")
    return Cell(line, "yellow" if counts.limits.held_until else "dim")


def limits_line(counts: Counts) -> str:
    """What limits a queue, as in `100/s, 10 at once, held for 20s`."""
    limits = counts.limits
    parts = describe_limits(limits.rate, limits.burst, limits.max_active)
    if limits.held_until:
        ahead = (limits.held_until - counts.now).total_seconds()
        parts.append(f"held for {describe(ahead)}")
    return ", ".join(parts)


def limits_report(counts: Counts) -> dict[str, Any]:
    """The same as JSON has it."""
    limits = counts.limits
    return {
        "rate": limits.rate,
        "burst": limits.burst,
        "max_active": limits.max_active,
        "held_until": moment_json(limits.held_until),
        "limited_until": moment_json(limits.limited_until),
    }


def next_due(counts: Counts) -> float | None:
    """Seconds until the next job is due, negative if it is overdue; None where there is none."""
    return (counts.next_due_us - counts.now_us) / 1e6 if counts.next_due_us else None
