"""`bide upcoming`: what is due next."""

from __future__ import annotations

import click

from bide.cli.jobs.find import look_up
from bide.cli.jobs.look import data_line
from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import Column, aside, count, echo_json, moment, moment_json, relative, table
from bide.cli.site import Site
from bide.clock import from_us, to_us
from bide.ids import short_id
from bide.keys import keys_of
from bide.ops import inspect
from bide.states import State


@click.command()
@queues_option("Only of this queue; again for more.")
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1, inspect.MAX_PAGE),
    default=20,
    help="So many at most.  [default: 20]",
)
@click.option("--within", metavar="DURATION", help="Look ahead so far.")
@server_options
@json_option
def upcoming(
    queues: tuple[str, ...],
    limit: int,
    within: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """List the delayed jobs that are due next, over all queues."""
    within_us = 0 if within is None else to_us(within, "--within")
    site = Site(url, prefix)
    names = site.known(queues)
    commands = [inspect.upcoming(keys_of(name, site.prefix), within_us, limit) for name in names]
    replies = zip(names, site.client.run_many(commands), strict=True)
    next_ones = sorted((due, id, name) for name, ids in replies for id, due in ids)[:limit]
    found = []
    for name in names:
        ids = [id for _, id, queue in next_ones if queue == name]
        found += [seen for seen in look_up(site, name, ids) if seen is not None]
    found = [seen for seen in found if seen.state in (State.DELAYED, State.WAITING)]
    found.sort(key=lambda seen: (seen.snapshot.due_us, seen.id))
    if as_json:
        echo_json(
            {
                "jobs": [
                    {
                        "id": seen.id,
                        "queue": seen.queue,
                        "task": seen.snapshot.task,
                        "due": moment_json(from_us(seen.snapshot.due_us)),
                        "in": -seen.ago,
                    }
                    for seen in found
                ]
            }
        )
        return
    waiting = sum(each.waiting for each in site.counts(names).values())
    if waiting:
        aside(f"{count(waiting, 'job is', 'jobs are')} due already: `bide jobs ls -s waiting`.")
    if not found:
        aside("No job is delayed." if within is None else f"No job is due within {within}.")
        return
    columns = [
        Column("in", right=True),
        Column("at"),
        Column("queue", cut="end"),
        Column("task", cut="start"),
        Column("id"),
    ]
    table(
        columns,
        [
            [
                relative(-seen.ago).removeprefix("in "),
                moment(from_us(seen.snapshot.due_us)),
                seen.queue,
                data_line(seen) or seen.snapshot.task,
                short_id(seen.id),
            ]
            for seen in found
        ],
    )
