"""`bide workers`: who serves what."""

from __future__ import annotations

from typing import Any

import click

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import Column, echo, echo_json, moment_json, relative, table
from bide.cli.site import Site
from bide.clock import from_us
from bide.ops.registry import WorkerSeen


@click.command()
@queues_option("Only those that serve one of these.")
@server_options
@json_option
def workers(queues: tuple[str, ...], url: str | None, prefix: str | None, as_json: bool) -> None:
    """List the workers.

    Shown are those that were heard of in the last minute; they speak every ten seconds.
    """
    seen = Site(url, prefix).workers()
    if queues:
        seen = [worker for worker in seen if set(queues) & set(worker.about.queues)]
    if as_json:
        echo_json({"workers": workers_report(seen)})
    else:
        print_workers(seen)


def workers_report(workers: list[WorkerSeen]) -> list[dict[str, Any]]:
    """Workers as JSON has them."""
    return [
        {
            "name": worker.name,
            "host": worker.about.host,
            "pid": worker.about.pid,
            "queues": worker.about.queues,
            "executor": worker.about.executor,
            "concurrency": worker.about.concurrency,
            "started": moment_json(from_us(worker.about.started_us)),
            "seen_ago": worker.ago,
            "version": worker.about.version,
        }
        for worker in workers
    ]


def print_workers(workers: list[WorkerSeen]) -> None:
    """Workers as a table."""
    if not workers:
        echo("No worker runs; `bide worker MODULE -q QUEUE` starts one.")
        return
    columns = [
        Column("worker", cut="start"),
        Column("host", cut="end", spare=True),
        Column("pid", right=True, spare=True),
        Column("queues", cut="end"),
        Column("executor", spare=True),
        Column("at once", right=True),
        Column("since"),
        Column("seen"),
        Column("version", spare=True),
    ]
    table(columns, [_row(worker) for worker in workers])


def _row(worker: WorkerSeen) -> list[str]:
    about = worker.about
    return [
        worker.name,
        about.host,
        str(about.pid),
        ", ".join(about.queues),
        about.executor,
        str(about.concurrency),
        f"{from_us(about.started_us).astimezone():%m-%d %H:%M}",
        relative(-worker.ago),
        about.version,
    ]
