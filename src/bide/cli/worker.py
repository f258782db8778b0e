"""`bide worker`: run jobs."""

from __future__ import annotations

import logging
import os
import sys
import threading

import click
from rich.logging import RichHandler

from bide.cli.options import import_from_here, server_options
from bide.worker import Worker
from bide.worker.worker import GRACE, LEASE


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option("-q", "--queue", "queues", multiple=True, help="Again for more.  [default: default]")
@click.option("-c", "--concurrency", type=int, default=100, show_default=True, help="Jobs at once.")
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--lease", default=f"{LEASE:g}s", show_default=True, help="How long a job is held.")
@click.option("--grace", default=f"{GRACE:g}s", show_default=True, help="To finish, on a signal.")
@click.option("--name", help="In logs and `bide info`.  [default: host and process id]")
@click.option("-v", "--verbose", is_flag=True, help="Log every job.")
@server_options
def worker(
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int,
    burst: bool,
    lease: str,
    grace: str,
    name: str | None,
    verbose: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """Run the jobs of queues, taking functions from MODULEs (and what they register).

    Stops on SIGINT or SIGTERM when running jobs have finished; a second signal gives them back.
    """
    _log_to_stderr(verbose)
    import_from_here()
    Worker(
        queues or ("default",),
        url=url,
        prefix=prefix,
        modules=modules,
        concurrency=concurrency,
        lease=lease,
        grace=grace,
        name=name,
    ).work(burst)
    _leave_threads_behind()


def _leave_threads_behind() -> None:
    """End although threads still run that jobs have started, and the interpreter would wait for."""
    main = threading.main_thread()
    left = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
    if left:
        logging.getLogger("bide").warning("ends though threads still run: %s", ", ".join(left))
        logging.shutdown()
        os._exit(0)


def _log_to_stderr(verbose: bool) -> None:
    """Colours for people at a terminal, one plain line a record for everything else."""
    level = logging.DEBUG if verbose else logging.INFO
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(show_path=False, log_time_format="[%X]")
        form = "%(message)s"
    else:
        handler = logging.StreamHandler()
        form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler])
    logging.getLogger("bide").setLevel(level)
