"""The progress of a run: a live picture in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bide.clock import describe
from bide.demo.report import percentile
from bide.demo.tally import Tally

REDRAW_EVERY: Final = 0.1
LINE_EVERY: Final = 2.0
"""Seconds between the plain lines."""


class View:
    """Shows a run while it goes on."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._next = 0.0 if self.console.is_terminal else time.monotonic() + LINE_EVERY

    def title(self, text: str) -> None:
        """Print a title."""
        self.console.print(f"  [bold]{text}[/bold]\n")

    def say(self, what: str, text: str | Text, style: str = "") -> None:
        """Print a line, above the live picture if there is one."""
        self.console.print(Text.assemble("  ", (f"{what:9}", style), " ", text), soft_wrap=True)

    def show(self, tally: Tally, elapsed: float, pids: list[int]) -> None:
        """Show how far the run is, if it has not been shown just now."""
        now = time.monotonic()
        if now < self._next:
            return
        if self.console.is_terminal:
            self._next = now + REDRAW_EVERY
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(_picture(tally, elapsed, pids), refresh=True)
        else:
            self._next = now + LINE_EVERY
            self.say(f"{elapsed:.1f} s", _line(tally))

    def close(self) -> None:
        """Take the live picture away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(tally: Tally) -> str:
    return ", ".join(f"{count:,} {name}" for name, count, _ in _counts(tally))


def _counts(tally: Tally) -> list[tuple[str, int, str]]:
    """What is counted, how many, and in what colour."""
    return [
        ("placed", tally.placed, "white"),
        ("notified", len(tally.notified), "cyan"),
        ("paid", len(tally.paid), "green"),
        ("unpaid", len(tally.cancelled), "magenta"),
    ]


def _picture(tally: Tally, elapsed: float, pids: list[int]) -> Group:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=15)
    grid.add_column(width=44, no_wrap=True, overflow="ellipsis")
    grid.add_column(width=10, justify="right")
    for name, count, style in _counts(tally):
        bar = ProgressBar(tally.orders, count, complete_style=style, finished_style=style)
        grid.add_row(f"  {name}", bar, f"{count:,}")
    grid.add_row()
    for pid in pids:
        if pid in tally.held:
            state = Text(f"killed while it ran {tally.held[pid]:,}", "red")
        else:
            state = Text("●" * len(tally.running[pid]), "yellow")
        grid.add_row(f"  worker {pid}", state, f"{tally.runs[pid]:,} jobs")
    late = Text(f"  {elapsed:.1f} s", "dim")
    if tally.lateness_us:
        values = sorted(tally.lateness_us)
        late.append(
            f"   lateness p50 {describe(percentile(values, 50) / 1e6)}, "
            f"p99 {describe(percentile(values, 99) / 1e6)}"
        )
    return Group("", grid, "", late)
