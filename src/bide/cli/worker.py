"""`bide worker`: run jobs."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import click

from bide import logs
from bide.cli.options import import_from_here, queues_option, server_options
from bide.config import LOG_FORMATS, settings
from bide.errors import UsageError
from bide.worker import Worker
from bide.worker.order import OrderChoice, read_order
from bide.worker.worker import GRACE, LEASE

CONCURRENCY = 100


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@queues_option("Again for more.  [default: default]")
@click.option(
    "--order",
    metavar="ORDER",
    help="Which queue first: strict, fair, or weights as high=6,low=1.  [default: strict]",
)
@click.option(
    "-c", "--concurrency", metavar="N", type=int, help=f"Jobs at once.  [default: {CONCURRENCY}]"
)
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--lease", metavar="DURATION", help=f"How long a job is held.  [default: {LEASE:g}s]")
@click.option("--grace", metavar="DURATION", help=f"To finish, on a signal.  [default: {GRACE:g}s]")
@click.option(
    "--name", metavar="NAME", help="In logs and `bide info`.  [default: host and process id]"
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Read pickled arguments: whoever can write to a queue can then run any code here.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every job.")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    help="For people, as logfmt, or as JSON, a line each; else $BIDE_LOG_FORMAT.  [default: text]",
)
@server_options
def worker(
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    order: str | None,
    concurrency: int | None,
    burst: bool,
    lease: str | None,
    grace: str | None,
    name: str | None,
    allow_pickle: bool,
    verbose: bool,
    log_format: str | None,
    url: str | None,
    prefix: str | None,
) -> None:
    """Run the jobs of queues.

    Their functions are those of MODULEs, and what these register. Modules, queues, order,
    concurrency, lease and grace that are not given are those of [tool.bide.worker] in
    pyproject.toml. Stops on SIGINT or SIGTERM when running jobs have finished; a second signal
    gives them back.
    """
    told = settings()
    modules = modules or told.worker.modules
    if not modules:
        raise UsageError(
            "No MODULE is given: name those whose functions may run, as in `bide worker "
            "shop.tasks`, or set modules in [tool.bide.worker] of pyproject.toml."
        )
    logs.setup(log_format or told.log_format or "text", logging.DEBUG if verbose else logging.INFO)
    import_from_here()
    Worker(
        queues or told.worker.queues or ("default",),
        url=url,
        prefix=prefix,
        modules=modules,
        order=_order(_first(order, told.worker.order, "strict")),
        concurrency=_first(concurrency, told.worker.concurrency, CONCURRENCY),
        lease=_first(lease, told.worker.lease, LEASE),
        grace=_first(grace, told.worker.grace, GRACE),
        name=name,
        allow_pickle=allow_pickle,
    ).work(burst)
    _leave_threads_behind()


def _order(told: str | dict[str, int]) -> OrderChoice:
    """An order, typed or from the file."""
    return read_order(told) if isinstance(told, str) else told


def _first(*values: Any) -> Any:
    """The first that is given."""
    return next(value for value in values if value is not None)


def _leave_threads_behind() -> None:
    """End although threads still run that jobs have started, and the interpreter would wait for."""
    main = threading.main_thread()
    left = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
    if left:
        logging.getLogger("bide").warning("ends though threads still run: %s", ", ".join(left))
        logging.shutdown()
        os._exit(0)
