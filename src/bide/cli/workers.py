"""`bide workers`: who serves what, and what each runs; pausing one, and stopping one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import click

from bide.cli.options import CommandGroup, completing, json_option, queues_option, site_options
from bide.cli.screen import Column, count, echo, echo_json, table
from bide.errors import UsageError
from bide.model.durations import describe
from bide.model.ids import short_id
from bide.protocol.command import Command
from bide.protocol.commands.queues import WorkerInfo, worker_pause, worker_stop
from bide.protocol.keys import Keys
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
    seen = site.workers()
    if queues:
        seen = [worker for worker in seen if set(queues) & set(worker.about.queues)]
    if as_json:
        echo_json({"workers": workers_report(seen)})
    else:
        print_workers(seen)


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
    """The worker of a name, or of its beginning if no other begins so."""
    if name in there:
        return name
    found = [one for one in there if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        others = " or ".join(map(short_id, found))
        raise UsageError(f"{short_id(name)!r} may be {others}; give more of its name.")
    raise NotFound(f"There is no worker {short_id(name)!r}; `bide workers` lists them.")


def print_workers(workers: list[WorkerInfo]) -> None:
    """Workers as a table."""
    if not workers:
        echo("No worker runs; `bide worker MODULE -q QUEUE` starts one.")
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
    """The job that has run longest, for how long, and how many others there are."""
    doing = sorted(worker.about.doing, key=lambda job: job.since_us)
    if not doing:
        return ""
    others = worker.about.busy - 1
    more = f" and {count(others, 'other')}" if others > 0 else ""
    return f"{doing[0].task} since {doing[0].since.astimezone():%H:%M:%S}{more}"
