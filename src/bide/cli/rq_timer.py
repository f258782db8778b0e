"""`bide rq-timer`: move delayed jobs of RQ's queues when they are due."""

from __future__ import annotations

import logging

import click

from bide import logs
from bide.cli.options import log_options, url_option
from bide.config import settings
from bide.connection import resolve_url
from bide.errors import UsageError


@click.command("rq-timer")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--name", metavar="NAME", help="In logs.  [default: host and process id]")
@log_options
@url_option
def rq_timer(
    queues: tuple[str, ...],
    burst: bool,
    name: str | None,
    verbose: bool,
    log_format: str | None,
    url: str | None,
) -> None:
    """Move delayed jobs of RQ's queues when they are due.

    They were delayed with bide.contrib.rq's DelayQueue; RQ's own workers run them. Any number of
    Timers may work at once. Stops on SIGINT or SIGTERM.
    """
    try:
        from bide.contrib.rq import Timer
        from bide.contrib.rq.connections import client_of
    except ImportError as error:
        raise UsageError(f"{error}.") from None
    logs.setup(
        log_format or settings().log_format or "text", logging.DEBUG if verbose else logging.INFO
    )
    Timer(queues, connection=client_of(resolve_url(url)), name=name).work(burst)
