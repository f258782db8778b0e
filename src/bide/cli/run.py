"""`bide worker`: run jobs."""

from __future__ import annotations

import logging
import os
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from bide import logs
from bide.cli.options import (
    import_from_here,
    log_options,
    queues_option,
    read_address,
    server_options,
    url_option,
)
from bide.cli.screen import echo
from bide.client.config import settings
from bide.client.url import resolve_url
from bide.errors import UsageError
from bide.model.durations import to_bytes, to_us
from bide.worker import Worker
from bide.worker.executors import CONCURRENCY, EXECUTORS, Executor, processors, uses_processes
from bide.worker.lifespan import leave_threads_behind
from bide.worker.queue_state import read_strategy
from bide.worker.supervisor import Supervisor, WorkerConfig
from bide.worker.worker import GRACE, LEASE

if TYPE_CHECKING:
    import rq


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@queues_option("Queue to serve; repeat for more.  [default: the queues of the modules' tasks]")
@click.option(
    "--strategy",
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
    strategy: str | None,
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
        "strategy": strategy,
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
    if isinstance(options.get("strategy"), str):
        options["strategy"] = read_strategy(options["strategy"])
    health = read_address(health_port) if health_port is not None else None
    workers = workers or told.worker.workers
    if workers is None and health is None and not os.environ.get("NOTIFY_SOCKET"):
        Worker(**options).run(burst)
        leave_threads_behind()
        return None
    if uses_processes(options.get("executor", "auto")):
        options.setdefault("concurrency", max(1, processors() // (workers or 1)))
    plan = WorkerConfig(options, burst, log, counts=health is not None)
    grace_us = to_us(options.get("grace", GRACE), "grace")
    return Supervisor(plan, workers or 1, grace_us / 1e6, health).run()


EXTRA = "The page needs `pip install 'bide[web]'`."


@click.command()
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    default="127.0.0.1:8484",
    show_default=True,
    help="Where; 0 for any free port. Other machines are served only if tokens are set.",
)
@click.option(
    "--operator",
    is_flag=True,
    help="Let requests from this machine change things too, if no token is set.",
)
@queues_option("Show only this queue; again for more.")
@server_options
def web(
    listen: str, operator: bool, queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Serve the page: what is due when, queues, jobs, workers.

    Without tokens it can only be read, and only at this machine. $BIDE_WEB_VIEWER_TOKEN lets those
    in who have it, $BIDE_WEB_OPERATOR_TOKEN lets them change things too; a browser asks for a user,
    whose name does not matter, and the password, which is the token.
    """
    try:
        from bide.web.application import app, credentials_are_set, serve
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette", "jinja2", "markupsafe"):
            raise
        raise UsageError(EXTRA) from None

    host, port = read_address(listen if ":" in listen else f"127.0.0.1:{listen}", "--listen")
    if not credentials_are_set() and not _is_loopback(host):
        raise UsageError(
            f"--listen {listen} would let other machines in, and no token is set; set "
            "$BIDE_WEB_VIEWER_TOKEN or $BIDE_WEB_OPERATOR_TOKEN, or listen on 127.0.0.1."
        )
    page = app(
        url=url,
        prefix=prefix,
        queues=queues or None,
        local_role="operator" if operator else "viewer",
    )
    with _listening(host, port) as listener:
        at, number = listener.getsockname()[:2]
        shown = f"[{at}]" if ":" in at else at
        echo(f"The page is at http://{shown}:{number}/ (Ctrl-C ends it).")
        serve(page, listener)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    """Listen on an address, before the command prints the address.

    Raises:
        UsageError: the address is not available.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, TypeError) as error:  # TypeError: not a valid host name
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--listen {host}:{port} is not available ({why}); give another port, or 0 for "
            "any free port."
        ) from None


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
        from bide.contrib.rq.scripts import client_of
    except ImportError as error:
        raise UsageError(str(error)) from None
    logs.setup(log_format or settings().log_format, logging.DEBUG if verbose else None)
    client = client_of(resolve_url(url))
    made: list[Any] = [*queues]
    if queue_class is not None:
        made = [_import_class(queue_class)(queue, connection=client) for queue in queues]
    Timer(made, connection=client, name=name).work(burst)


def _import_class(path: str) -> type[rq.Queue]:
    """Import a class of queues, named as for RQ's own `--queue-class`.

    Raises:
        UsageError: the class cannot be imported, or is not a class of RQ queues.
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
