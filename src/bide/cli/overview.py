"""`bide info`, `upcoming`, `top` and `events`: the dashboard's data, also live in a terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import click
from msgspec.structs import replace
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bide.cli.cron import print_summary
from bide.cli.options import (
    flag,
    json_option,
    limit_option,
    mask_of,
    mask_option,
    masked_site_options,
    option,
    queue_option,
    queues_option,
    server_options,
    site_options,
)
from bide.cli.queues import print_queues
from bide.cli.screen import (
    STATE_STYLE,
    Column,
    Style,
    aside,
    at_terminal,
    draw,
    echo,
    echo_json,
    show,
)
from bide.cli.workers import no_worker, print_workers, serving
from bide.errors import BideError
from bide.logs import count, printable
from bide.model.durations import describe, from_us, to_us
from bide.model.ids import short_id
from bide.model.job import EVENTS, LISTABLE, Event, State
from bide.protocol.commands import jobs as job_commands
from bide.queue import Queue
from bide.queue.event_reader import EventReader
from bide.queue.select import masked_error
from bide.views import READS
from bide.views._async import AsyncSite
from bide.views._sync import Site
from bide.views.job import data_line, of_unknown_task
from bide.views.params import (
    Params,
    about,
    ahead,
    moment,
    moment_exactly,
    moment_json,
    relative,
    report,
)
from bide.views.queues import queues_report, workers_report
from bide.views.timeline import top_of

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_MOST: Final = 12
"""Maximum number of workers, and of bursts, on the screen."""


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
@flag("--once", "Print once and exit; this is the default without a terminal.")
@server_options
@mask_option
@json_option
def top(
    queues: tuple[str, ...],
    span: str,
    every: float,
    once: bool,
    url: str | None,
    prefix: str | None,
    mask: str | None,
    as_json: bool,
) -> None:
    """Watch what is due, queues and workers; Ctrl-C ends it.

    The bars count the due jobs of all queues, from now to the end of the span; of more than 30
    queues, those of the 30 with the most due jobs.
    """
    site = AsyncSite(url, prefix, queues or None, mask_of(mask, as_json))
    console = Console()

    async def look() -> dict[str, Any]:
        params = Params(f"span={span}")
        return {name: await READS[name](site, params) for name in ("timeline", "queues", "workers")}

    async def watch() -> None:
        try:
            await site.known(queues)
            if once or as_json or not at_terminal() or console.is_dumb_terminal:
                seen = await look()
                if as_json:
                    echo_json(seen)
                elif not seen["queues"]["queues"]:
                    echo("No queue has been used yet; `bide enqueue module:function` starts one.")
                else:
                    draw(_picture(seen, site.where, console.width, queues))
                return
            watching = asyncio.current_task()
            assert watching is not None
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, watching.cancel)  # `Live` restores it
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    try:
                        picture: Any = _picture(await look(), site.where, console.width, queues)
                    except BideError as error:  # the server may answer again later
                        picture = Text(printable(str(error)), "red")
                    live.update(picture, refresh=True)
                    await asyncio.sleep(every)
        finally:
            await site.client.close()

    try:
        asyncio.run(watch())
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)


def _picture(seen: dict[str, Any], where: str, width: int, named: Sequence[str] = ()) -> Group:
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
    parts.append(_workers(workers) if workers else Text(f"{no_worker(named)}.", "yellow"))
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
    workers = serving(site.workers(), queues)
    if as_json:
        echo_json({"queues": queues_report(counts), "workers": workers_report(workers)})
        return
    echo(site.where, "bold")
    print_queues(counts)
    print_summary(counts)
    if counts:
        echo()
        print_workers(workers, queues)


@click.command()
@queues_option("Queue whose jobs are listed; repeat for more.")
@limit_option("jobs to list", 20, job_commands.MAX_UPCOMING)
@option("--within", "DURATION", "Maximum time until a job is due.")
@masked_site_options
def upcoming(
    queues: tuple[str, ...], limit: int, within: str | None, site: Site, as_json: bool
) -> None:
    """List the delayed jobs that are due next, over all queues."""
    within_us = 0 if within is None else max(1, to_us(within, "--within"))  # 0: without a limit
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
        Column("task", lambda seen: data_line(seen, site.mask) or seen.snapshot.task, cut="start"),
        Column("id", lambda seen: short_id(seen.id)),
    ]
    empty = "No job is delayed." if within is None else f"No job is due within {within}."
    show(as_json, lambda: {"jobs": jobs}, columns, found, empty)


_STYLE: Final[dict[str, Style]] = {
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "reclaimed": "red",
    "gap": "red",
    "retried": "yellow",
    "cancelled": "dim",
    "drained": "dim",
}


@click.command()
@queue_option("Queue whose events are printed.", "queue_name", default="default", show_default=True)
@option(
    "-k --kind kinds",
    "KIND",
    "Kind of events to print; repeat for more.",
    type=click.Choice(list(EVENTS)),
    multiple=True,
)
@option(
    "--job job_ids", "ID", "Id of a job whose events are printed; repeat for more.", multiple=True
)
@option("--after", "EVENT", "Id of the last event that you have read; later events are printed.")
@option("--name", "NAME", "Name under which events are kept for ten minutes, for --after.")
@option("--timeout", "DURATION", "Time without an event after which the command ends.")
@server_options
@mask_option
@json_option
def events(
    queue_name: str,
    kinds: tuple[str, ...],
    job_ids: tuple[str, ...],
    after: str | None,
    name: str | None,
    timeout: str | None,
    url: str | None,
    prefix: str | None,
    mask: str | None,
    as_json: bool,
) -> None:
    """Print the events of a queue, until Ctrl-C."""
    shown = mask_of(mask, as_json)
    queue = Queue(queue_name, url=url, prefix=prefix)
    tasks = _Tasks(queue)
    following = queue.events(
        name=name, after=after, kinds=kinds or None, job_id=job_ids or None, timeout=timeout
    )
    with following:
        try:
            for event in following:
                task = tasks.of(event, following._reader)
                hiding = shown if task is not None else of_unknown_task(shown)
                event = replace(event, error=masked_error(event.error, task or "", hiding))
                if as_json:
                    echo_json(_document(event, task))
                else:
                    echo(_line(event, task), _STYLE.get(event.kind, ""))
        except KeyboardInterrupt:
            pass
    if name is not None:
        aside(
            f"To continue from here: bide events -q {queue.name} --name {name} "
            f"--after {following.after}"
        )


_MOST_KNOWN: Final = 20_000


class _Tasks:
    """The tasks of jobs, which events do not name: read once per job, of many jobs together."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: dict[str, str | None] = {}
        """Task by job id; None for a job that was deleted before."""

    def of(self, event: Event, reader: EventReader) -> str | None:
        """Return the task of the event's job; None if it has no job, or the job is gone."""
        if event.job_id is None:
            return None
        if event.job_id not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            ids = {event.job_id, *reader.job_ids_ahead} - self._known.keys()
            self._known |= dict.fromkeys(ids)
            with suppress(BideError):  # the events are shown without their tasks
                found = self._queue.fetch_many([*ids])
                self._known |= {job.id: job.task for job in found if job is not None}
        return self._known[event.job_id]


def _line(event: Event, task: str | None) -> str:
    at = moment_exactly(event.at) if event.at else "-"
    told = [short_id(event.job_id or ""), task, _remark(event)]
    return "  ".join([at, event.kind.ljust(11), *filter(None, told)])


def _remark(event: Event) -> str:
    if event.kind == "gap":
        lost = count(event.count, "event was", "events were") if event.count else "events were"
        return f"{lost} lost before {event.id}"
    if event.kind == "purged":
        return count(event.count, "job")
    told = []
    if event.worker:
        told.append(f"attempt {event.attempt} on {short_id(event.worker)}")
    if event.progress:
        told.append(f"{event.progress.fraction:.0%} {event.progress.text}".rstrip())
    if event.error:
        told.append(f"{event.error.type}: {event.error.message}")
    if event.due and event.at and event.kind != "active":
        ahead = (event.due - event.at).total_seconds()
        told.append(f"due in {describe(ahead)}" if ahead > 0 else "due now")
    return ", ".join(told)


def _document(event: Event, task: str | None) -> dict[str, Any]:
    return {
        **report(event, "id", "kind", "verb", "at"),
        "job": event.job_id,
        "task": task or None,
        **report(event, "worker", "attempt", "due"),
        "error": event.error and report(event.error, "type", "message"),
        "progress": event.progress and report(event.progress, "fraction", "text"),
        "count": event.count,
    }
