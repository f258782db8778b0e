"""`bide tasks`: the tasks of modules, and those that live workers serve."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click

from bide.cli.options import import_configured, import_from_here, json_option, site_options
from bide.cli.screen import Cell, Column, aside, show
from bide.errors import ServerUnavailable
from bide.protocol.commands.queues import WorkerInfo
from bide.queue.binding import known_task_queues
from bide.tasks.task import TaskRegistry
from bide.views._sync import Site


@dataclass
class _Row:
    """A task, as the table shows it."""

    name: str
    queues: list[str] = field(default_factory=list)
    """The queue that its module declares."""
    takes: str | None = None
    """Its parameters; None if its module was not imported."""
    workers: list[str] = field(default_factory=list)
    """The live workers that serve it."""
    asked: bool = False
    """Whether a worker has claimed a job of it without serving it."""


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
    """Add the tasks of modules that are named here, or in [tool.bide.worker]."""
    import_from_here()
    if not modules:
        modules = import_configured("its tasks are listed only if a worker serves them")
    served = TaskRegistry(modules)
    for name in served.names():
        rows[name] = _Row(name, takes="")
        with suppress(Exception):  # such as ValueError: it has no signature
            rows[name].takes = str(inspect.signature(served.function(name)))
    for task_queue, names in known_task_queues().items():
        for name in names:
            if name in rows and task_queue.queue not in rows[name].queues:
                rows[name].queues.append(task_queue.queue)


def _add_served(rows: dict[str, _Row], live: Sequence[WorkerInfo]) -> None:
    """Add the tasks of workers."""
    for worker in live:
        for name in worker.about.tasks:
            rows.setdefault(name, _Row(name)).workers.append(worker.name)
        for name in worker.about.unknown_tasks:
            rows.setdefault(name, _Row(name)).asked = True


def _count(row: _Row, live: Sequence[WorkerInfo]) -> Cell:
    """How many workers serve it; a remark if jobs of it came, or might, and none does."""
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
