"""`bide jobs ls`: list jobs."""

from __future__ import annotations

from itertools import islice

import click

from bide.cli.jobs.find import MOST, filter_options, read_filter, scan
from bide.cli.jobs.look import Seen, brief, remark, state_cell, when
from bide.cli.options import json_option, server_options
from bide.cli.screen import Column, aside, bar, count, echo, echo_json, table
from bide.cli.site import Site
from bide.ids import short_id


@click.command()
@filter_options
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1, MOST),
    default=50,
    help="So many at most.  [default: 50]",
)
@click.option(
    "--start", metavar="N", type=click.IntRange(0, MOST), default=0, help="Pass over so many."
)
@click.option("--ids", "only_ids", is_flag=True, help="Print ids only, for `bide jobs ... -`.")
@server_options
@json_option
def ls(
    queues: tuple[str, ...],
    states: tuple[str, ...],
    task: str | None,
    error: str | None,
    older_than: str | None,
    due_before: str | None,
    limit: int,
    start: int,
    only_ids: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """List jobs, of all queues and states unless told otherwise.

    Those that run come first, then those that wait or are delayed, by priority and due time, then
    those that have ended, newest first.
    """
    wanted = read_filter(states, task, error, older_than, due_before)
    site = Site(url, prefix)
    names = site.known(queues)
    with bar("looking") as tick:
        found = list(islice(scan(site, names, wanted, tick), start, start + limit + 1))
    more, found = len(found) > limit, found[:limit]
    if as_json:
        echo_json({"jobs": [brief(seen) for seen in found], "more": more})
        return
    if only_ids:
        for seen in found:
            echo(seen.id)
    elif found:
        print_jobs(found, len(names) > 1)
    else:
        aside("No job fits." if names else "No queue has been used yet.")
    if more:
        aside(f"There are more than these {count(limit, 'job')}; see --limit and --start.")


def print_jobs(jobs: list[Seen], with_queue: bool) -> None:
    """Jobs as a table."""
    columns = [
        Column("id"),
        *([Column("queue", cut="end")] if with_queue else []),
        Column("state"),
        Column("when", right=True),
        Column("task", cut="start"),
        Column("", cut="end"),
    ]
    table(
        columns,
        [
            [
                short_id(seen.id),
                *([seen.queue] if with_queue else []),
                state_cell(seen.state),
                when(seen),
                seen.snapshot.task,
                remark(seen),
            ]
            for seen in jobs
        ],
    )
