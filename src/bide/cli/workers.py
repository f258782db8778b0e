"""`bide workers`: workers and their running jobs. `bide tasks`: the tasks of modules."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from bide.cli.options import (
    CommandGroup,
    completing,
    import_configured,
    import_from_here,
    json_option,
    queues_option,
    site_options,
)
from bide.cli.screen import Cell, Column, aside, echo, echo_json, show, table
from bide.errors import ServerUnavailable, UsageError
from bide.logs import count
from bide.model.durations import describe
from bide.model.ids import short_id
from bide.protocol.commands import Command
from bide.protocol.commands.queues import WorkerInfo, worker_pause, worker_stop
from bide.protocol.keys import Keys
from bide.queue.binding import known_task_queues
from bide.tasks.task import TaskRegistry
from bide.views._sync import Site
from bide.views.params import NotFound, megabytes, relative
from bide.views.queues import workers_report

worker_names = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="NAME...",
    shell_complete=completing("workers"),
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@queues_option("Queue whose workers are listed; repeat for more.")
@site_options
@json_option
@click.pass_context
def workers(ctx: click.Context, queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """List the workers; pause, resume or stop one.

    A worker is listed if it gave a sign of life in the last 15 seconds (it sends a heartbeat every
    10 seconds), or holds a job. The command reads the running jobs from the server's leases.
    """
    if ctx.invoked_subcommand is not None:
        return
    if queues:
        site.known(queues)
    seen = serving(site.workers(), queues)
    if as_json:
        echo_json({"workers": workers_report(seen)})
    else:
        print_workers(seen, queues)


@workers.command()
@worker_names
@site_options
def stop(names: tuple[str, ...], site: Site) -> None:
    """Ask workers to stop, as a signal would.

    Running jobs may finish, for at most the worker's --grace.

    NAME is a worker's name, or the beginning of it, if it matches one worker only.
    """
    _ask(names, site, worker_stop, "stop")


@workers.command()
@worker_names
@site_options
def pause(names: tuple[str, ...], site: Site) -> None:
    """Ask workers to start no further jobs.

    Running jobs continue. The pause ends with `bide workers resume`, or when the worker stops.

    NAME is a worker's name, or the beginning of it, if it matches one worker only.
    """
    _ask(names, site, partial(worker_pause, paused=True), "pause")


@workers.command()
@worker_names
@site_options
def resume(names: tuple[str, ...], site: Site) -> None:
    """Ask paused workers to start jobs again.

    NAME is a worker's name, or the beginning of it, if it matches one worker only.
    """
    _ask(names, site, partial(worker_pause, paused=False), "resume")


def _ask(
    names: Sequence[str],
    site: Site,
    asking: Callable[[Keys, Sequence[str]], Command[list[str]]],
    verb: str,
) -> None:
    there = [worker.name for worker in site.workers()]
    meant = [_meant(name, there) for name in names]
    words = site.client.run(asking(site.everywhere, meant))
    for name, word in zip(meant, words, strict=True):
        if word == "gone":
            raise NotFound(f"The worker {short_id(name)!r} has stopped already.")
    for name in meant:
        echo(f"{short_id(name)} was asked to {verb}.")


def _meant(name: str, there: list[str]) -> str:
    """Return the worker of this name, or of this beginning if no other name has it."""
    if name in there:
        return name
    found = [one for one in there if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        others = " or ".join(map(short_id, found))
        raise UsageError(f"{short_id(name)!r} may be {others}; give more of its name.")
    raise NotFound(f"There is no worker {short_id(name)!r}; `bide workers` lists them.")


def serving(workers: list[WorkerInfo], queues: Sequence[str]) -> list[WorkerInfo]:
    """Return the workers that serve one of these queues; all workers for none."""
    return [one for one in workers if not queues or {*queues} & {*one.about.queues}]


def no_worker(queues: Sequence[str]) -> str:
    """Return the sentence for no worker, of these queues or of all, without its end."""
    return f"No worker serves {' or '.join(queues)}" if queues else "No worker runs"


def print_workers(workers: list[WorkerInfo], queues: Sequence[str] = ()) -> None:
    """Print workers as a table: all, or those of these queues."""
    if not workers:
        name = shlex.quote(queues[0]) if queues else "QUEUE"
        echo(f"{no_worker(queues)}; `bide worker MODULE -q {name}` starts one.")
        return
    columns = [
        Column("worker", lambda worker: short_id(worker.name), cut="start"),
        Column("host", lambda worker: worker.about.host, cut="end", spare=True),
        Column("pid", lambda worker: str(worker.about.pid), right=True, spare=True),
        Column("queues", lambda worker: ", ".join(worker.about.queues), cut="end"),
        Column("executor", lambda worker: worker.about.executor, spare=True),
        Column("busy", lambda one: f"{one.about.busy}/{one.about.concurrency}", right=True),
        Column("since", lambda worker: f"{worker.about.started.astimezone():%m-%d %H:%M}"),
        Column("seen", lambda worker: relative(-worker.ago)),
        Column("memory", lambda worker: megabytes(worker.about.rss), right=True, spare=True),
        Column("clock", _clock, right=True, spare=True),
        Column("version", lambda worker: worker.about.version, spare=True),
        Column("runs", _runs, cut="end"),
    ]
    table(columns, workers)
    for worker in workers:
        name = short_id(worker.name)
        if not worker.alive:
            ago = describe(worker.ago)
            echo(
                f"{name} has given no sign of life for {ago}; if it is dead, its jobs run "
                "again when their leases end.",
                "yellow",
            )
        if worker.about.paused:
            echo(f"{name} is paused; `bide workers resume {name}` ends that.", "yellow")
        if worker.about.unknown_tasks:
            tasks = ", ".join(worker.about.unknown_tasks)
            echo(f"{name} claimed jobs of tasks that it does not have: {tasks}", "yellow")


def _clock(worker: WorkerInfo) -> str:
    skew = worker.about.skew
    return "" if skew is None else f"{skew:+.1f}s"


def _runs(worker: WorkerInfo) -> str:
    """Return the job that has run longest, for how long, and the number of others."""
    doing = sorted(worker.about.doing, key=lambda job: job.since_us)
    if not doing:
        return ""
    others = worker.about.busy - 1
    more = f" and {count(others, 'other')}" if others > 0 else ""
    return f"{doing[0].task} since {doing[0].since.astimezone():%H:%M:%S}{more}"


@dataclass
class _Row:
    """A task in the table."""

    name: str
    queues: list[str] = field(default_factory=list)
    """The queues that its module declares."""
    takes: str | None = None
    """The parameters; None if the module was not imported."""
    workers: list[str] = field(default_factory=list)
    """The live workers that serve it."""
    asked: bool = False
    """Whether a worker that does not serve it has claimed one of its jobs."""


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@site_options
@json_option
def tasks(modules: tuple[str, ...], site: Site, as_json: bool) -> None:
    """List the tasks of modules, and of live workers.

    Without MODULE, the command imports the modules of [tool.bide.worker]. If a module declares no
    task, the command lists its functions. A worker reports its first 200 tasks.
    """
    rows: dict[str, _Row] = {}
    _add_known(rows, modules)
    try:
        live = [worker for worker in site.workers(jobs=0) if worker.alive]
    except ServerUnavailable as error:
        if not rows:
            raise
        aside(f"{error} Only the tasks of modules are listed.")
        live = []
    _add_served(rows, live)
    found = sorted(rows.values(), key=lambda row: row.name)
    show(
        as_json,
        lambda: {"tasks": [_report(row) for row in found]},
        [
            Column("task", lambda row: row.name),
            Column("queue", lambda row: ", ".join(row.queues), cut="end"),
            Column("workers", lambda row: _count(row, live), right=True),
            Column("parameters", lambda row: row.takes or "", cut="end"),
        ],
        found,
        "No task is known: give the modules that have some, such as `bide tasks shop`.",
    )


def _add_known(rows: dict[str, _Row], modules: Sequence[str]) -> None:
    """Add the tasks of the given modules, or of the modules in [tool.bide.worker]."""
    import_from_here()
    if not modules:
        modules = import_configured("its tasks are listed only if a worker serves them")
    served = TaskRegistry(modules)
    for name in served.names():
        rows[name] = _Row(name, takes="")
        with suppress(Exception):  # for instance ValueError: it has no signature
            rows[name].takes = str(inspect.signature(served.function(name)))
    for task_queue, names in known_task_queues().items():
        for name in names:
            if name in rows and task_queue.queue not in rows[name].queues:
                rows[name].queues.append(task_queue.queue)


def _add_served(rows: dict[str, _Row], live: Sequence[WorkerInfo]) -> None:
    """Add the tasks of live workers."""
    for worker in live:
        for name in worker.about.tasks:
            rows.setdefault(name, _Row(name)).workers.append(worker.name)
        for name in worker.about.unknown_tasks:
            rows.setdefault(name, _Row(name)).asked = True


def _count(row: _Row, live: Sequence[WorkerInfo]) -> Cell:
    """Return how many workers serve it; a remark if it has or may have jobs, and none does."""
    if row.workers:
        return Cell(str(len(row.workers)))
    if row.asked:
        return Cell("0, jobs wait", "red")
    return Cell("0", "yellow" if live else "dim")


def _report(row: _Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "queues": row.queues,
        "parameters": row.takes,
        "workers": row.workers,
        "unserved_jobs": row.asked and not row.workers,
    }
