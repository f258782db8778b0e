"""`bide workers`: who serves what, and what each runs; and stopping one."""

from __future__ import annotations

import click

from bide.cli.options import CommandGroup, json_option, queues_option, server_options
from bide.cli.screen import Column, count, echo, echo_json, table
from bide.errors import UsageError
from bide.model.durations import describe, from_us
from bide.protocol.commands.queues import WorkerInfo
from bide.views.queues import workers_report
from bide.views.site import NotFound, Site
from bide.views.times import relative


@click.group(cls=CommandGroup, invoke_without_command=True)
@queues_option("Only those that serve one of these.")
@server_options
@json_option
@click.pass_context
def workers(
    ctx: click.Context,
    queues: tuple[str, ...],
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """List the workers, or stop one.

    A worker is listed if it gave a sign of life in the last 15 seconds (it sends a heartbeat every
    10 seconds), or holds a job. The command reads the running jobs from the server's leases.
    """
    if ctx.invoked_subcommand is not None:
        return
    seen = Site(url, prefix).workers()
    if queues:
        seen = [worker for worker in seen if set(queues) & set(worker.about.queues)]
    if as_json:
        echo_json({"workers": workers_report(seen)})
    else:
        print_workers(seen)


@workers.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@server_options
def stop(names: tuple[str, ...], url: str | None, prefix: str | None) -> None:
    """Ask workers to stop, as a signal would: what they run may end.

    NAME is a worker's name or its beginning, if no other worker's begins so.
    """
    site = Site(url, prefix)
    there = [worker.name for worker in site.workers()]
    meant = [_meant(name, there) for name in names]
    site.stop(meant)
    for name in meant:
        echo(f"{name} was asked to stop.")


def _meant(name: str, there: list[str]) -> str:
    """The worker that is meant.

    Raises:
        NotFound: none is, or several are.
    """
    if name in there:
        return name
    found = [one for one in there if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} may be {' or '.join(found)}; give more of its name.")
    raise NotFound(f"There is no worker {name!r}; `bide workers` lists them.")


def print_workers(workers: list[WorkerInfo]) -> None:
    """Workers as a table."""
    if not workers:
        echo("No worker runs; `bide worker MODULE -q QUEUE` starts one.")
        return
    columns = [
        Column("worker", cut="start"),
        Column("host", cut="end", spare=True),
        Column("pid", right=True, spare=True),
        Column("queues", cut="end"),
        Column("executor", spare=True),
        Column("busy", right=True),
        Column("since"),
        Column("seen"),
        Column("memory", right=True, spare=True),
        Column("clock", right=True, spare=True),
        Column("version", spare=True),
        Column("runs", cut="end"),
    ]
    table(columns, [_row(worker) for worker in workers])
    for worker in workers:
        if not worker.alive:
            ago = describe(worker.ago)
            echo(
                f"{worker.name} has given no sign of life for {ago}; if it is dead, its jobs run "
                "again when their leases end.",
                "yellow",
            )
        if worker.about.unserved:
            tasks = ", ".join(worker.about.unserved)
            echo(f"{worker.name} was asked for what it does not serve: {tasks}", "yellow")


def _row(worker: WorkerInfo) -> list[str]:
    about = worker.about
    return [
        worker.name,
        about.host,
        str(about.pid),
        ", ".join(about.queues),
        about.executor,
        f"{about.busy}/{about.concurrency}",
        f"{from_us(about.started_us).astimezone():%m-%d %H:%M}",
        relative(-worker.ago),
        f"{about.rss / 1e6:.1f} MB" if about.rss else "",
        "" if about.skew is None else f"{about.skew:+.1f}s",
        about.version,
        _runs(worker),
    ]


def _runs(worker: WorkerInfo) -> str:
    """The job that has run longest, for how long, and how many others there are."""
    doing = sorted(worker.about.doing, key=lambda job: job.since_us)
    if not doing:
        return ""
    others = worker.about.busy - 1
    more = f" and {count(others, 'other')}" if others > 0 else ""
    return f"{doing[0].task} since {doing[0].since.astimezone():%H:%M:%S}{more}"
