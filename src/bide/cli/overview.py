"""`bide info`, `bide upcoming`, and `bide top`: the page's reads, live in a terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import datetime
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bide.cli.cron import print_summary
from bide.cli.options import (
    flag,
    json_option,
    limit_option,
    option,
    queues_option,
    server_options,
    site_options,
)
from bide.cli.queues import print_queues
from bide.cli.screen import STATE_STYLE, Column, aside, count, echo, echo_json, show
from bide.cli.workers import print_workers
from bide.errors import BideError
from bide.logs import printable
from bide.model.durations import from_us, to_us
from bide.model.ids import short_id
from bide.model.job import LISTABLE, State
from bide.protocol.commands import jobs as job_commands
from bide.views import READS
from bide.views._async import AsyncSite
from bide.views._sync import Site
from bide.views.charts import top_of
from bide.views.job import data_line
from bide.views.params import Params, about, ahead, moment, moment_json, relative
from bide.views.queues import queues_report, workers_report

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_MOST: Final = 12
"""Maximum number of workers, and of bursts, that are shown."""


@click.command()
@queues_option("Queue to show; repeat for more.")
@option(
    "--span",
    "",
    "Time span to look ahead.",
    type=click.Choice(["minute", "hour", "day", "month"]),
    default="hour",
    show_default=True,
)
@option(
    "--every",
    "",
    "Seconds between two reads.",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
)
@flag("--once", "Print one reading and end, as without a terminal.")
@server_options
@json_option
def top(
    queues: tuple[str, ...],
    span: str,
    every: float,
    once: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Watch what is due, queues and workers; Ctrl-C ends it.

    The bars count the jobs of all queues that are due, from now to the end of the span.
    """
    site = AsyncSite(url, prefix, queues or None)
    console = Console()

    async def look() -> dict[str, Any]:
        params = Params(f"span={span}")
        return {name: await READS[name](site, params) for name in ("timeline", "queues", "workers")}

    async def watch() -> None:
        try:
            if once or as_json or not console.is_terminal:
                seen = await look()
                if as_json:
                    echo_json(seen)
                elif queues and not seen["queues"]["queues"]:
                    echo(f"No queue {' or '.join(queues)} has been used on {site.where} yet.")
                elif not seen["queues"]["queues"]:
                    echo("No queue has been used yet; `bide enqueue module:function` starts one.")
                else:
                    console.print(_picture(seen, site.where, console.width))
                return
            watching = asyncio.current_task()
            assert watching is not None
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, watching.cancel)  # the screen is restored
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    try:
                        picture: Any = _picture(await look(), site.where, console.width)
                    except BideError as error:  # it may come back
                        picture = Text(printable(str(error)), "red")
                    live.update(picture, refresh=True)
                    await asyncio.sleep(every)
        finally:
            await site.client.close()

    try:
        asyncio.run(watch())
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)


def _picture(seen: dict[str, Any], where: str, width: int) -> Group:
    line, queues = seen["timeline"], seen["queues"]["queues"]
    due = sum(line["ahead"].values())
    parts: list[Any] = [
        Text(printable(where), "bold"),
        Text(f"{count(due, 'job')} due in the next {line['span']}; {line['active']:,} run"),
        Text(_bars(line, max(10, min(120, width - 36))), "cyan"),
        _queues(queues),
    ]
    for burst in line["bursts"][:_MOST]:
        takes = burst["takes"]
        told = "not known" if takes is None else about(takes)
        parts.append(
            Text(f"{count(burst['count'], 'job')} of {printable(burst['queue'])} due at ", "yellow")
            + Text(f"{burst['at'][:19].replace('T', ' ')} UTC; time to run: {told}", "yellow")
        )
    workers = seen["workers"]["workers"]
    parts.append(_workers(workers) if workers else Text("No worker runs.", "yellow"))
    return Group(*parts)


def _bars(line: dict[str, Any], width: int) -> str:
    """Draw what is due as bars of text; a burst is cut, as in the dashboard's picture."""
    if line["now"] is None:
        return ""
    now, end = (datetime.fromisoformat(line[name]).timestamp() for name in ("now", "to"))
    sums = [0] * width
    for each in line["stretches"]:
        at = (datetime.fromisoformat(each["at"]).timestamp() - now) / (end - now)
        if 0 <= at < 1:
            sums[int(at * width)] += sum(each["due"].values())
    top = top_of(sorted(number for number in sums if number)) or 1
    bars = "".join(_LEVELS[-(-min(number, top) * (len(_LEVELS) - 1) // top)] for number in sums)
    cut = f"; cut: up to {max(sums):,}" if max(sums) > top else ""
    return f"now {bars} +1 {line['span']}{cut}"


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))


def _queues(queues: dict[str, Any]) -> Table:
    table = _table("queue")
    for title in (*LISTABLE, "next due", "workers"):
        table.add_column(title, justify="right")
    for name, each in queues.items():
        due = each["next_due_in"]
        table.add_row(
            Text(printable(name) + (" (paused)" if each["paused"] else "")),
            *(
                Text(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim")
                for state in LISTABLE
                if (n := each.get(state, 0)) is not None
            ),
            "" if due is None else relative(due) if due > 0 else Text("now", "yellow"),
            str(each["workers"]),
        )
    return table


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = _table("worker", "busy", "memory", "runs")
    for worker in workers[:_MOST]:
        runs = ", ".join(job["task"] for job in worker["doing"][:3])
        table.add_row(
            Text(printable(worker["name"])),
            f"{worker['busy']}/{worker['concurrency']}",
            f"{worker['rss'] / 1e6:.0f} MB" if worker["rss"] else "",
            Text(printable(runs), overflow="ellipsis", no_wrap=True),
        )
    if len(workers) > _MOST:
        table.add_row(f"and {len(workers) - _MOST:,} more")
    return table


@click.command()
@queues_option("Queue to show; repeat for more.")
@site_options
@json_option
def info(queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """Show queues, their jobs by state, and the workers."""
    counts = site.counts(site.known(queues))
    workers = site.workers()
    if as_json:
        echo_json({"queues": queues_report(counts), "workers": workers_report(workers)})
        return
    echo(site.where, "bold")
    print_queues(counts)
    print_summary(counts)
    if counts:
        echo()
        print_workers(workers)


@click.command()
@queues_option("Queue whose jobs are listed; repeat for more.")
@limit_option("jobs to list", 20, job_commands.MAX_PAGE)
@option("--within", "DURATION", "Maximum time until a job is due.")
@site_options
@json_option
def upcoming(
    queues: tuple[str, ...], limit: int, within: str | None, site: Site, as_json: bool
) -> None:
    """List the delayed jobs that are due next, over all queues."""
    within_us = 0 if within is None else to_us(within, "--within")
    names = site.known(queues)
    pages = site.each(names, lambda keys: job_commands.upcoming(keys, within_us, limit))
    due = sorted((due_us, id, name) for name, page in pages.items() for id, due_us in page)
    found = [
        seen
        for seen in site.next_due(names, due[:limit])
        if seen.state in (State.DELAYED, State.WAITING)
    ]
    jobs = [
        {
            "id": seen.id,
            "queue": seen.queue,
            "task": seen.snapshot.task,
            "due": moment_json(from_us(seen.snapshot.due_us)),
            "in": -seen.ago,
        }
        for seen in found
    ]
    waiting = 0 if as_json else sum(each.waiting for each in site.counts(names).values())
    if waiting:
        aside(f"{count(waiting, 'job is', 'jobs are')} due already: `bide jobs ls -s waiting`.")
    columns = [
        Column("in", lambda seen: ahead(-seen.ago), right=True),
        Column("at", lambda seen: moment(from_us(seen.snapshot.due_us))),
        Column("queue", lambda seen: seen.queue, cut="end"),
        Column("task", lambda seen: data_line(seen) or seen.snapshot.task, cut="start"),
        Column("id", lambda seen: short_id(seen.id)),
    ]
    empty = "No job is delayed." if within is None else f"No job is due within {within}."
    show(as_json, lambda: {"jobs": jobs}, columns, found, empty)
