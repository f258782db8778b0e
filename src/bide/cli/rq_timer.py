"""`bide rq-timer`: move delayed jobs of RQ's queues when they are due."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from bide import logs
from bide.cli.options import import_from_here, log_options, url_option
from bide.config import settings
from bide.connection import resolve_url
from bide.errors import UsageError

if TYPE_CHECKING:
    import rq


@click.command("rq-timer")
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--name", metavar="NAME", help="In logs.  [default: host and process id]")
@click.option(
    "--queue-class",
    metavar="CLASS",
    help="Class of the queues, if it sets a delay_key: shop.queues.MailQueue.",
)
@log_options
@url_option
def rq_timer(
    queues: tuple[str, ...],
    burst: bool,
    name: str | None,
    queue_class: str | None,
    verbose: bool,
    log_format: str | None,
    url: str | None,
) -> None:
    """Move delayed jobs of RQ's queues when they are due.

    It moves jobs that bide.contrib.rq's DelayQueue or delay-rq delayed; RQ's own workers run them.
    Any number of Timers may work at once. It stops on SIGINT or SIGTERM.
    """
    try:
        from bide.contrib.rq import Timer
        from bide.contrib.rq.connections import client_of
    except ImportError as error:
        raise UsageError(str(error)) from None
    logs.setup(log_format or settings().log_format, logging.DEBUG if verbose else None)
    client = client_of(resolve_url(url))
    made: list[Any] = [*queues]
    if queue_class is not None:
        made = [_import_class(queue_class)(queue, connection=client) for queue in queues]
    Timer(made, connection=client, name=name).work(burst)


def _import_class(path: str) -> type[rq.Queue]:
    """A class of queues, named as RQ's own `--queue-class` names it.

    Raises:
        UsageError: it cannot be imported, or is no class of queues.
    """
    import rq
    from rq.utils import import_attribute

    import_from_here()
    try:
        found: Any = import_attribute(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--queue-class {path} cannot be imported ({error}); write it as shop.queues.MailQueue."
        ) from None
    if not (isinstance(found, type) and issubclass(found, rq.Queue)):
        raise UsageError(f"--queue-class {path} is not a class of RQ queues.")
    return found
