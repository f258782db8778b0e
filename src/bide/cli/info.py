"""`bide info`: queues, their jobs by state, and workers."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bide import sync
from bide.cli.options import json_option, server_options
from bide.clock import describe
from bide.connection import resolve_prefix
from bide.keys import keys_of
from bide.ops import inspect, registry
from bide.ops.inspect import Counts
from bide.ops.registry import WorkerSeen

_STATES = ("delayed", "waiting", "active", "completed", "failed", "cancelled")


@click.command()
@click.option("-q", "--queue", "only", multiple=True, help="Only these; again for more.")
@server_options
@json_option
def info(only: tuple[str, ...], url: str | None, prefix: str | None, as_json: bool) -> None:
    """Show queues, how many jobs are in each state, and the workers."""
    client = sync.Client(url, patience=0)
    prefix = resolve_prefix(prefix)
    everywhere = keys_of(None, prefix)
    known, workers = client.run_many([registry.queues(everywhere), registry.workers(everywhere)])
    names = list(only) or known
    counts = client.run_many([inspect.counts(keys_of(name, prefix)) for name in names])
    by_queue = dict(zip(names, counts, strict=True))
    if as_json:
        click.echo(json.dumps(_report(by_queue, workers)))
    else:
        _print(client.where, by_queue, workers)


def _report(queues: dict[str, Counts], workers: list[WorkerSeen]) -> dict[str, Any]:
    return {
        "queues": {
            name: {state: getattr(counts, state) for state in _STATES}
            | {
                "paused": counts.paused,
                "next_due_in": _next_due(counts),
                "totals": counts.totals,
            }
            for name, counts in queues.items()
        },
        "workers": [
            {
                "name": worker.name,
                "seen_ago": worker.ago,
                "host": worker.about.host,
                "pid": worker.about.pid,
                "queues": worker.about.queues,
                "concurrency": worker.about.concurrency,
                "version": worker.about.version,
            }
            for worker in workers
        ],
    }


def _print(where: str, queues: dict[str, Counts], workers: list[WorkerSeen]) -> None:
    console = Console(highlight=False)
    console.print(Text(where, "bold"))
    if not queues:
        console.print("No queue has been used yet; `bide enqueue module:function` starts one.")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("queue")
    for state in _STATES:
        table.add_column(state, justify="right")
    table.add_column("next due", justify="right")
    table.add_column("")
    for name, counts in queues.items():
        due = _next_due(counts)
        table.add_row(
            Text(name),
            *(f"{getattr(counts, state):,}" for state in _STATES),
            "" if due is None else "now" if due <= 0 else f"in {describe(due)}",
            "[yellow]paused[/yellow]" if counts.paused else "",
        )
    console.print(table)
    console.print()
    if not workers:
        console.print("No worker runs; `bide worker MODULE -q QUEUE` starts one.")
        return
    crew = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "host", "pid", "queues", "at once", "seen"):
        crew.add_column(title, justify="right" if title in ("pid", "at once") else "left")
    for worker in workers:
        about = worker.about
        crew.add_row(
            Text(worker.name),
            Text(about.host),
            str(about.pid),
            Text(", ".join(about.queues)),
            str(about.concurrency),
            f"{describe(worker.ago)} ago",
        )
    console.print(crew)


def _next_due(counts: Counts) -> float | None:
    """Seconds until the next job is due; None where there is none."""
    return (counts.next_due_us - counts.now_us) / 1e6 if counts.next_due_us else None
