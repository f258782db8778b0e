"""`bide queues groups`: the groups of a queue's jobs."""

from __future__ import annotations

from typing import Any

import click

from bide.cli.options import complete_queues, json_option, server_options
from bide.cli.screen import STATE_STYLE, Cell, Column, echo, echo_json, table
from bide.cli.site import Site
from bide.limits import describe_limits
from bide.ops.groups import GroupCounts

_STATES = ("delayed", "waiting", "active")


@click.command()
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("-n", "--count", default=50, show_default=True, help="How many at most.")
@server_options
@json_option
def groups(name: str, count: int, url: str | None, prefix: str | None, as_json: bool) -> None:
    """List a queue's groups, those with most jobs first."""
    site = Site(url, prefix)
    (known,) = site.known((name,))
    found = site.queue(known).groups()
    found.sort(key=lambda one: (-one.delayed - one.waiting - one.active, one.name))
    if as_json:
        shown = [one._asdict() for one in found[:count]]
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
        table(columns, [_row(one) for one in found[:count]])
        if len(found) > count:
            echo(f"{len(found) - count:,} more; -n {len(found)} shows all.", "dim")


def _row(group: GroupCounts) -> list[str | Cell]:
    numbers = [(state, getattr(group, state)) for state in _STATES]
    return [
        group.name,
        *(Cell(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim") for state, n in numbers),
        str(group.concurrency),
        str(group.priority),
        Cell(group_line(group, with_count=False), "yellow" if group.paused else "dim"),
    ]


def group_line(group: GroupCounts, with_count: bool = True) -> str:
    """What is configured of a group, as in `paused, 100/s, 2 at once`."""
    at_once = group.concurrency if with_count and group.is_configured else None
    parts = describe_limits(group.rate, group.burst, at_once)
    return ", ".join([*(["paused"] if group.paused else []), *parts])


def group_report(group: GroupCounts) -> dict[str, Any]:
    """The same as JSON has it."""
    return {
        "group": group.name,
        "rate": group.rate,
        "burst": group.burst,
        "max_active": group.concurrency if group.is_configured else None,
        "paused": group.paused,
    }
