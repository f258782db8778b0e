"""The commands that run until a signal: `bide worker`, `bide web` and `bide rq-timer`."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from bide import logs
from bide.cli.options import (
    NO_PROFILES,
    flag,
    import_from_here,
    log_options,
    mask_of,
    mask_option,
    option,
    profile_named,
    queues_option,
    read_address,
    served_modules,
    server_options,
    url_option,
    worker_options,
)
from bide.cli.screen import echo
from bide.client.config import Settings, WorkerSettings, settings
from bide.client.url import resolve_url
from bide.errors import UsageError
from bide.model.durations import to_bytes, to_us
from bide.worker import Worker
from bide.worker.executors import CONCURRENCY, EXECUTORS, processors, uses_processes
from bide.worker.lifespan import leave_threads_behind
from bide.worker.relay import load_outbox, outbox_beside
from bide.worker.supervisor import Supervisor, WorkerConfig
from bide.worker.worker import GRACE, LEASE, check_options

if TYPE_CHECKING:
    import rq


def _one_profile(ctx: click.Context, param: click.Parameter, names: Sequence[str]) -> str | None:
    if len(names) > 1:
        raise UsageError(
            "--profile is given twice; start a command for each profile, or all of them with --all."
        )
    return next(iter(names), None)


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@queues_option("Queue to serve; repeat for more.  [default: the queues of the modules' tasks]")
@option(
    "--strategy",
    "ORDER",
    "Order of the queues: strict, fair, or weights such as high=6,low=1.  [default: strict]",
)
@option(
    "-c --concurrency",
    "N",
    "Maximum number of jobs that run at once.  "
    f"[default: {CONCURRENCY}; in processes, a share of the processors]",
)
@option(
    "-x --executor",
    "",
    "Executor: this process (auto, async, thread), child processes (process), or a new process "
    "for each job (fork).  [default: auto]",
    type=click.Choice(EXECUTORS),
)
@option(
    "-w --workers",
    "N",
    "Number of workers, which a supervisor starts and replaces.",
    type=click.IntRange(min=1),
)
@option("--max-jobs", "N", "Number of jobs after which a process is replaced.")
@option("--max-rss", "SIZE", "Memory above which a child process is replaced: 500MB.")
@option("--max-idle", "DURATION", "Time without a job after which the worker stops.")
@option(
    "--health-port",
    "[HOST:]PORT",
    "Port that answers /livez, /readyz and /metrics. Without HOST the port is open on all "
    "IPv4 interfaces (0.0.0.0); 127.0.0.1:PORT answers this machine only.",
)
@option(
    "--profile",
    "NAME",
    "Profile to start: [tool.bide.workers.NAME] in pyproject.toml.",
    multiple=True,
    callback=_one_profile,
)
@flag("--all all_profiles", "Start the workers of all profiles, under one supervisor.")
@flag("--burst", "Stop when nothing is due.")
@option(
    "--lease",
    "DURATION",
    "Time for which a job is held without renewal; then another worker runs it.  "
    f"[default: {LEASE:g}s]",
)
@option(
    "--grace", "DURATION", f"Time for running jobs to finish after a signal.  [default: {GRACE:g}s]"
)
@option("--outbox", "OUTBOX", "Outbox whose unsent rows the worker sends too: shop.db:outbox.")
@option("--name", "NAME", "Name of the worker, for logs and lists.  [default: host and process id]")
@flag(
    "--allow-pickle", "Read pickled arguments of jobs that a key of $BIDE_SIGNING_KEYS has signed."
)
@flag(
    "--allow-eviction", "Serve a server that drops jobs when its memory is full (maxmemory-policy)."
)
@log_options
@server_options
def worker(
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    workers: int | None,
    max_rss: str | None,
    health_port: str | None,
    burst: bool,
    outbox: str | None,
    verbose: bool,
    log_format: str | None,
    profile: str | None,
    all_profiles: bool,
    **given: Any,
) -> int | None:
    """Run the jobs of queues.

    The worker runs functions of MODULEs, and functions that these register. It reads options that
    are left out from [tool.bide.worker] in pyproject.toml. Without -q, it serves the queues in
    MODULEs and the queues of their tasks, otherwise `default`. It stops on SIGINT or SIGTERM when
    running jobs have finished; a second signal returns them to the queue.

    With -w, --health-port or --all, and under systemd (Type=notify), a supervisor starts the
    workers, replaces a worker that dies, and stops all of them together.

    A table [tool.bide.workers.NAME] in pyproject.toml is a profile: the options of one kind of
    workers. Options that it leaves out are those of [tool.bide.worker]; options that are given here
    take precedence, for each profile.
    """
    told = settings()
    profiles = _profiles(told, profile, all_profiles)
    if all_profiles and (queues or given["strategy"] is not None):
        raise UsageError(
            "With --all each profile has its own queues; leave out -q and --strategy, or start one "
            "profile with --profile NAME."
        )
    log = (log_format or told.log_format, logging.DEBUG if verbose else None)
    logs.setup(*log)
    import_from_here()
    for module in modules:
        if module in told.workers and find_spec(module) is None:
            raise UsageError(
                f"There is no module {module!r}, but a worker profile of this name; write "
                f"--profile {module}."
            )
    given["max_rss"] = None if max_rss is None else to_bytes(max_rss, "--max-rss")
    health = read_address(health_port) if health_port is not None else None
    found: list[tuple[dict[str, Any], int]] = []
    for name, its in profiles.items():
        served = served_modules(modules, its)
        if not served:
            raise UsageError(_no_module(told, name))
        try:
            options = worker_options(queues, its, modules=served, **given)
            check_options(options)
        except UsageError as error:
            raise UsageError(f"worker profile {name}: {error}" if name else str(error)) from None
        if name:
            options.setdefault("name", f"{name}.{socket.gethostname()}")
        found.append((options, workers or its.workers or 1))
    has_number = workers is not None or any(its.workers for its in profiles.values())
    if not (all_profiles or has_number or health or os.environ.get("NOTIFY_SOCKET")):
        made = Worker(**found[0][0])
        made.run(burst, beside=outbox_beside(outbox, burst) if outbox else None)
        leave_threads_behind()
        return None
    _share_processors(found)
    configs = [
        WorkerConfig(options, burst, log, counts=health is not None)
        for options, number in found
        for _ in range(number)
    ]
    if outbox is not None:
        load_outbox(outbox)  # an error is raised before any worker starts
        configs[0] = msgspec.structs.replace(configs[0], outbox=outbox)
    grace_us = max(to_us(options.get("grace", GRACE), "grace") for options, _ in found)
    return Supervisor(configs, grace_us / 1e6, health).run()


def _profiles(told: Settings, profile: str | None, all_profiles: bool) -> dict[str, WorkerSettings]:
    """Return the settings of the workers to start, by profile; the name is empty for no profile."""
    if not all_profiles:
        return {profile: profile_named(profile)} if profile else {"": told.worker}
    if profile:
        raise UsageError("--profile starts one profile and --all each of them; give one of these.")
    if not told.workers:
        raise UsageError(f"There are no worker profiles{NO_PROFILES}")
    return told.workers


def _no_module(told: Settings, profile: str) -> str:
    table = f"[tool.bide.workers.{profile}]" if profile else "[tool.bide.worker]"
    text = (
        "No MODULE is given: name those whose functions may run, as in `bide worker shop.tasks`, "
        f"or set modules in {table} of {told.file or 'pyproject.toml'}"
    )
    names = ", ".join(told.workers)
    return f"{text}." if profile or not names else f"{text}, or start a profile ({names}) of it."


def _share_processors(found: Sequence[tuple[dict[str, Any], int]]) -> None:
    """Give each worker with child processes its share of the processors, if nothing else is set."""
    several = [each for each in found if uses_processes(each[0].get("executor", "auto"))]
    total = sum(number for _, number in several)
    for options, _ in several:
        options.setdefault("concurrency", max(1, processors() // total))


@click.command()
@option(
    "--listen",
    "[HOST:]PORT",
    "Address to listen on; port 0 is any free port. Other machines are served only if tokens "
    "are set.",
    default="127.0.0.1:8484",
    show_default=True,
)
@flag("--operator", "Let requests from this machine change things too, if no token is set.")
@queues_option("Queue to show; repeat for more.")
@click.option(
    "--outbox",
    "outboxes",
    metavar="OUTBOX",
    multiple=True,
    help="Outbox whose rows are shown too: shop.db:outbox; repeat for more.",
)
@server_options
@mask_option
@click.pass_context
def web(
    ctx: click.Context,
    listen: str,
    operator: bool,
    queues: tuple[str, ...],
    outboxes: tuple[str, ...],
    url: str | None,
    prefix: str | None,
    mask: str | None,
) -> None:
    """Serve the dashboard: what is due, queues, jobs, workers.

    Without tokens, the dashboard is read-only and answers only this machine. A request with
    $BIDE_WEB_VIEWER_TOKEN may read, a request with $BIDE_WEB_OPERATOR_TOKEN may also change things.
    A browser asks for a user and a password: the token is the password, the user has no effect.
    """
    try:
        from bide.web.access import is_loopback
        from bide.web.application import app, credentials_are_set, serve
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette", "jinja2", "markupsafe"):
            raise
        raise UsageError("The dashboard needs `pip install 'bide[web]'`.") from None

    host, port = read_address(f"127.0.0.1:{listen}" if listen.isdecimal() else listen, "--listen")
    if not credentials_are_set() and host != "localhost" and not is_loopback(host):
        raise UsageError(
            f"--listen {listen} would let other machines in, and no token is set; set "
            "$BIDE_WEB_VIEWER_TOKEN or $BIDE_WEB_OPERATOR_TOKEN, or listen on 127.0.0.1."
        )
    if queues and outboxes:
        if ctx.get_parameter_source("outboxes") is not ParameterSource.DEFAULT_MAP:
            raise UsageError("An outbox has rows of all queues; give either --outbox or --queue.")
        outboxes = ()
    if outboxes:
        import_from_here()
    page = app(
        url=url,
        prefix=prefix,
        queues=queues or None,
        outboxes={path: load_outbox(path) for path in outboxes},
        local_role="operator" if operator else "viewer",
        mask=mask_of(mask),
    )
    with _listening(host, port) as listener:
        at, number = listener.getsockname()[:2]
        shown = f"[{at}]" if ":" in at else at
        echo(f"The dashboard is at http://{shown}:{number}/ (Ctrl-C ends it).")
        serve(page, listener)


def _listening(host: str, port: int) -> socket.socket:
    """Listen on an address, before the command prints the address."""
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
@flag("--burst", "Stop when nothing is due.")
@option("--name", "NAME", "Name of the Timer in logs.  [default: host and process id]")
@option(
    "--queue-class", "CLASS", "Class of the queues, if it sets a delay_key: shop.queues.MailQueue."
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

    The Timer moves jobs that bide.contrib.rq's DelayQueue or delay-rq delayed; RQ's own workers run
    them. Several Timers may serve the same queues. The Timer stops on SIGINT or SIGTERM.
    """
    try:
        from bide.contrib.rq import Timer
        from bide.contrib.rq.queue import client_of
    except ImportError as error:
        raise UsageError(str(error)) from None
    logs.setup(log_format or settings().log_format, logging.DEBUG if verbose else None)
    client = client_of(resolve_url(url))
    made: list[Any] = [*queues]
    if queue_class is not None:
        made = [_import_class(queue_class)(queue, connection=client) for queue in queues]
    Timer(made, connection=client, name=name).work(burst)


def _import_class(path: str) -> type[rq.Queue]:
    """Import a class of queues, named as for RQ's own `--queue-class`."""
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
        raise UsageError(
            f"--queue-class {path} is not a class of RQ queues; name a subclass of rq.Queue."
        )
    return found
