"""`bide info`: queues, their jobs by state, and workers, at a glance."""

from __future__ import annotations

import click

from bide.cli.cron import print_summary
from bide.cli.options import json_option, queues_option, server_options
from bide.cli.queues import print_queues, queues_report
from bide.cli.screen import echo, echo_json
from bide.cli.site import Site
from bide.cli.workers import print_workers, workers_report


@click.command()
@queues_option("Only these; again for more.")
@server_options
@json_option
def info(queues: tuple[str, ...], url: str | None, prefix: str | None, as_json: bool) -> None:
    """Show queues, their jobs by state, and the workers."""
    site = Site(url, prefix)
    counts = site.counts(site.known(queues))
    workers = site.workers()
    if as_json:
        echo_json({"queues": queues_report(counts), "workers": workers_report(workers)})
        return
    echo(site.where, "bold")
    print_queues(counts)
    print_summary(counts)
    if counts:
        echo()
        print_workers(workers)
