"""`bide top`: the page's reads, live in a terminal."""

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

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import STATE_STYLE, about, count, echo, echo_json, relative
from bide.errors import BideError
from bide.logs import printable
from bide.states import LISTABLE
from bide.web.picture import top_of

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_MOST: Final = 12
"""Workers, and herds, that are shown."""


@click.command()
@queues_option("Only this queue; again for more.")
@click.option(
    "--span",
    type=click.Choice(["minute", "hour", "day", "month"]),
    default="hour",
    show_default=True,
    help="How far to look ahead.",
)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once; so it is too where there is no terminal.")
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

    The line of bars is what is due, of all queues, from now to the end of the span.
    """
    from bide.web.asked import Asked
    from bide.web.masking import mask_secrets
    from bide.web.reads.table import READS
    from bide.web.site import Site

    site = Site(url, prefix, queues or None, mask_secrets)
    console = Console()

    async def look() -> dict[str, Any]:
        asked = Asked(f"span={span}")
        return {name: await READS[name](site, asked) for name in ("timeline", "queues", "workers")}

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
            loop.add_signal_handler(signal.SIGTERM, watching.cancel)  # the screen is given back
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
    for herd in line["herds"][:_MOST]:
        takes = herd["takes"]
        told = "not known" if takes is None else about(takes)
        parts.append(
            Text(f"{count(herd['count'], 'job')} of {printable(herd['queue'])} due at ", "yellow")
            + Text(f"{herd['at'][:19].replace('T', ' ')} UTC; time to run: {told}", "yellow")
        )
    workers = seen["workers"]["workers"]
    parts.append(_workers(workers) if workers else Text("No worker runs.", "yellow"))
    return Group(*parts)


def _bars(line: dict[str, Any], width: int) -> str:
    """What is due from now on, as bars of text; a herd is cut, as in the page's picture."""
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


def _queues(queues: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("queue")
    for state in LISTABLE:
        table.add_column(state, justify="right")
    table.add_column("next due", justify="right")
    table.add_column("workers", justify="right")
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
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("worker", "busy", "memory", "runs"):
        table.add_column(title)
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
