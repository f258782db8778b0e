"""One command for development: a server that keeps its data, and a worker that follows the source.

    dev ──starts──> server     its data in `.bide/`, gone when dev is gone
        ──line────> worker     another whenever a source changes
        ──starts──> command    what else was asked for

Every part has a session of its own, so that Ctrl-C reaches `dev` alone, which stops them in order.
A part learns from its end of a line, or from a watcher's, that `dev` was killed, and ends too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from bide.cli.dev.run import Dev, Program, find_program
from bide.cli.options import import_from_here, queues_option
from bide.client.config import LOG_FORMATS, settings
from bide.worker.executors import EXECUTORS
from bide.worker.queue_state import read_strategy

__all__ = ["Dev", "Program", "find_program"]


@click.command()
@click.argument("app")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@queues_option("Serve this one; again for more.  [default: those of APP]")
@click.option("-c", "--concurrency", metavar="N", type=int, help="Jobs at once.")
@click.option("-x", "--executor", type=click.Choice(EXECUTORS), help="As of `bide worker`.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="As of `bide worker`.")
def dev(
    app: str,
    command: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int | None,
    executor: str | None,
    log_format: str | None,
) -> None:
    """Run APP's jobs while you write it, on a server of its own.

    APP is a file such as app.py, or a module such as shop.tasks. The server (embedded: not for
    production) keeps its data in .bide/, until you remove that. The worker is replaced when a
    source changes; a mistake in it is shown, and then no worker runs until it is mended. The page
    is served at this machine, if `bide[web]` is installed. Ctrl-C stops everything.

    COMMAND runs beside them, and finds the server in $BIDE_URL: your web server, for instance.
    """
    told = settings()
    import_from_here()
    options: dict[str, Any] = {
        "queues": list(queues or told.worker.queues) or None,
        "strategy": read_strategy(told.worker.strategy)
        if isinstance(told.worker.strategy, str)
        else told.worker.strategy,
        "concurrency": concurrency or told.worker.concurrency,
        "executor": executor or told.worker.executor,
    }
    options = {name: value for name, value in options.items() if value is not None}
    log = (log_format or told.log_format, logging.DEBUG)
    Dev(find_program(app, Path.cwd()), options, log, command).run()
