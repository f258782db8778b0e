"""`bide worker`: run jobs."""

from __future__ import annotations

import logging
import os
from typing import Any

import click

from bide import logs
from bide.cli.options import (
    import_from_here,
    log_options,
    queues_option,
    read_address,
    server_options,
)
from bide.clock import to_bytes, to_us
from bide.config import settings
from bide.errors import UsageError
from bide.supervisor import Supervisor
from bide.supervisor.plan import Plan
from bide.worker import Worker
from bide.worker.executors import CONCURRENCY, EXECUTORS, Executor, is_apart, processors
from bide.worker.leftovers import leave_threads_behind
from bide.worker.order import read_order
from bide.worker.worker import GRACE, LEASE


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@queues_option("Queue to serve; repeat for more.  [default: the queues of the modules' tasks]")
@click.option(
    "--order",
    metavar="ORDER",
    help="Which queue first: strict, fair, or weights as high=6,low=1.  [default: strict]",
)
@click.option(
    "-c",
    "--concurrency",
    metavar="N",
    type=int,
    help=f"Jobs at once.  [default: {CONCURRENCY}; in processes, a share of the processors]",
)
@click.option(
    "-x",
    "--executor",
    type=click.Choice(EXECUTORS),
    help="Jobs in this process, in child processes, or in a process each.  [default: auto]",
)
@click.option(
    "-w",
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="So many workers, in processes that a supervisor keeps alive.",
)
@click.option("--max-jobs", metavar="N", type=int, help="Replace a process after so many jobs.")
@click.option(
    "--max-rss", metavar="SIZE", help="Replace a child that has more memory than this: 500MB."
)
@click.option("--max-idle", metavar="DURATION", help="Stop after so long without a job.")
@click.option(
    "--health-port",
    metavar="[HOST:]PORT",
    help="Answer /livez, /readyz and /metrics on this port. Without HOST the port is open on all "
    "IPv4 interfaces (0.0.0.0); 127.0.0.1:PORT answers this machine only.",
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
    help="Read pickled arguments, of jobs that a key of $BIDE_SIGNING_KEYS has signed.",
)
@click.option(
    "--allow-eviction",
    is_flag=True,
    help="Serve a server that drops jobs when its memory is full (maxmemory-policy).",
)
@log_options
@server_options
def worker(
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    order: str | None,
    concurrency: int | None,
    executor: Executor | None,
    workers: int | None,
    max_jobs: int | None,
    max_rss: str | None,
    max_idle: str | None,
    health_port: str | None,
    burst: bool,
    lease: str | None,
    grace: str | None,
    name: str | None,
    allow_pickle: bool,
    allow_eviction: bool,
    verbose: bool,
    log_format: str | None,
    url: str | None,
    prefix: str | None,
) -> int | None:
    """Run the jobs of queues.

    The worker runs functions of MODULEs, and functions that these register. It reads options that
    are left out from [tool.bide.worker] in pyproject.toml. Without -q, it serves the queues in
    MODULEs and the queues of their tasks, otherwise `default`. It stops on SIGINT or SIGTERM when
    running jobs have finished; a second signal returns them to the queue.

    With -w or --health-port, and under systemd (Type=notify), a supervisor starts the workers,
    starts those that die again, and stops all of them together.
    """
    told = settings()
    modules = modules or told.worker.modules
    if not modules:
        raise UsageError(
            "No MODULE is given: name those whose functions may run, as in `bide worker "
            "shop.tasks`, or set modules in [tool.bide.worker] of pyproject.toml."
        )
    log = (log_format or told.log_format, logging.DEBUG if verbose else None)
    logs.setup(*log)
    import_from_here()
    given: dict[str, Any] = {
        "order": order,
        "concurrency": concurrency,
        "executor": executor,
        "max_jobs": max_jobs,
        "max_rss": None if max_rss is None else to_bytes(max_rss, "--max-rss"),
        "max_idle": max_idle,
        "lease": lease,
        "grace": grace,
    }
    options: dict[str, Any] = {
        "queues": list(queues or told.worker.queues) or None,
        "modules": list(modules),
        "url": url,
        "prefix": prefix,
        "name": name,
        "allow_pickle": allow_pickle,
        "allow_eviction": allow_eviction,
    }
    for option, value in given.items():
        value = getattr(told.worker, option) if value is None else value
        if value is not None:
            options[option] = value
    if isinstance(options.get("order"), str):
        options["order"] = read_order(options["order"])
    health = read_address(health_port) if health_port is not None else None
    workers = workers or told.worker.workers
    if workers is None and health is None and not os.environ.get("NOTIFY_SOCKET"):
        Worker(**options).work(burst)
        leave_threads_behind()
        return None
    if is_apart(options.get("executor", "auto")):
        options.setdefault("concurrency", max(1, processors() // (workers or 1)))
    plan = Plan(options, burst, log, counts=health is not None)
    grace_us = to_us(options.get("grace", GRACE), "grace")
    return Supervisor(plan, workers or 1, grace_us / 1e6, health).run()
