"""`bide metrics`: what the server knows of queues, as Prometheus reads it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Final

import click

from bide.cli.options import queues_option, server_options
from bide.client.coalesce import ReadThroughCache
from bide.errors import ServerRefused
from bide.model.job import LISTABLE
from bide.model.latency import Family, Labels, expose
from bide.protocol.commands.jobs import count_due
from bide.protocol.keys import keys_of
from bide.views.site import Site
from bide.worker.supervisor import Metrics, serve

WITHIN: Final = (1, 10, 60, 600, 3600, 86_400)
"""Seconds ahead for which is counted what is due."""


@click.command()
@queues_option("Only this one; again for more.  [default: all]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Answer /metrics here until Ctrl-C, instead of printing once.",
)
@click.option(
    "--host",
    help="The interface for --port; 0.0.0.0 lets other machines in.  [default: 127.0.0.1]",
)
@server_options
def metrics(
    queues: tuple[str, ...],
    port: int | None,
    host: str | None,
    url: str | None,
    prefix: str | None,
) -> None:
    """Print what queues hold, for Prometheus.

    One scrape target for a server is enough. What workers do, they tell themselves, at /metrics
    of their --health-port.
    """
    site = Site(url, prefix)
    if host and port is None:
        raise click.UsageError("--host is where --port answers; give that too: --port 9109.")
    if port is None:
        click.echo(queue_metrics(site, queues), nl=False)
    else:
        asyncio.run(_serve(site, queues, host or "127.0.0.1", port))


async def _serve(site: Site, queues: Sequence[str], host: str, port: int) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        server = await serve(host, port, {}, answering(site, queues))
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise ServerRefused(f"Nothing can listen on {host}, port {port}: {error}.") from None
    where, number = server.sockets[0].getsockname()[:2]
    click.echo(
        f"answers http://{f'[{where}]' if ':' in where else where}:{number}/metrics", err=True
    )
    await stopped.wait()
    server.close()


def answering(site: Site, queues: Sequence[str]) -> Metrics:
    """Return what answers a scrape; scrapes at the same time share one read of the server."""
    reads = ReadThroughCache[str](0)
    return lambda: reads.read("", lambda: asyncio.to_thread(queue_metrics, site, queues))


def queue_metrics(site: Site, queues: Sequence[str]) -> str:
    """What the server says of these queues, or of all; text for Prometheus.

    Raises:
        NotFound: a queue of that name was never used.
        BideError: the server cannot be asked.
    """
    names = site.known(queues)
    counts = site.counts(names)
    commands = [count_due(keys_of(name, site.prefix), WITHIN) for name in names]
    due = dict(zip(names, site.client.run_many(commands), strict=True))
    workers = [worker.about for worker in site.workers() if worker.alive]
    jobs: list[tuple[Labels, float]] = []
    within: list[tuple[Labels, float]] = []
    overdue: list[tuple[Labels, float]] = []
    paused: list[tuple[Labels, float]] = []
    serving: list[tuple[Labels, float]] = []
    totals: dict[str, list[tuple[Labels, float]]] = {name: [] for name in _TOTALS}
    for name, seen in counts.items():
        of = {"queue": name}
        jobs += [({**of, "state": state}, getattr(seen, state)) for state in LISTABLE]
        within += [
            ({**of, "seconds": str(seconds)}, count)
            for seconds, count in zip(WITHIN, due[name], strict=True)
        ]
        late_us = seen.now_us - seen.next_due_us if seen.next_due_us else 0
        overdue.append((of, max(0, late_us) / 1e6))
        paused.append((of, int(seen.paused)))
        serving.append((of, sum(name in worker.queues for worker in workers)))
        for total, samples in totals.items():
            samples.append((of, seen.totals[total]))
    return expose(
        [
            Family("bide_jobs", "gauge", "Jobs in each state; waiting: due, not taken.", jobs),
            Family("bide_jobs_due_within", "gauge", "Delayed jobs due in so many seconds.", within),
            Family("bide_overdue_seconds", "gauge", "How late what waits longest is.", overdue),
            Family("bide_queue_paused", "gauge", "1 where workers take nothing.", paused),
            Family("bide_queue_workers", "gauge", "Live workers that serve it.", serving),
            *(
                Family(f"bide_jobs_{name}_total", "counter", help, totals[name])
                for name, help in _TOTALS.items()
            ),
        ]
    )


_TOTALS: Final = {
    "completed": "Jobs that ran to their end.",
    "failed": "Jobs that will not be run again.",
    "cancelled": "Jobs that were taken back, or ended when asked to, or expired.",
    "expired": "Jobs that were cancelled because they had not begun in time.",
    "retried": "Attempts that raised and were followed by another.",
    "reclaimed": "Leases that ended without an outcome, and processes that died under a job.",
}
