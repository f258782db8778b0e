"""What the books say, for people: a table, and lateness as a histogram."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bide.clock import describe
from bide.demo.books import EARLY, KINDS, LOST, TWICE, Books

SHOWN: Final = 10
"""Problems that are shown one by one."""

BAR: Final = 36
"""The width of the longest bar, in characters."""

EDGES_US: Final = [step * 10**power for power in range(8) for step in (1, 2, 5)]
"""Where one bucket of the histogram ends and the next begins."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Bucket(NamedTuple):
    """A bar of the histogram."""

    label: str
    first: int
    """First runs in it."""
    redelivered: int


def report(books: Books, console: Console | None = None) -> None:
    """Print it all."""
    console = console or Console(highlight=False)
    console.print(_table(books))
    if books.lateness_us:
        console.print(_lateness(books))
        for line in histogram(books, console.options.ascii_only):
            console.print(line)
        console.print()
    for note in books.notes:
        console.print(f"  {escape(note)}")
    for problem in books.problems[:SHOWN]:
        console.print(f"  [red]{problem.kind}[/red]: {escape(problem.text)}")
    if len(books.problems) > SHOWN:
        console.print(f"  ... and {len(books.problems) - SHOWN:,} more")
    if books.balanced:
        console.print(
            "  [bold green]The books balance:[/bold green] nothing early, nothing lost, nothing "
            "twice without a cause."
        )
    else:
        console.print("  [bold red]The books do not balance.[/bold red]")


def percentile(sorted_values: Sequence[int], percent: float) -> int:
    """The least value that `percent` of all do not exceed."""
    return sorted_values[max(0, ceil(len(sorted_values) * percent / 100) - 1)]


def buckets(first_us: Sequence[int], redelivered_us: Sequence[int]) -> list[Bucket | None]:
    """Bars from the least to the greatest lateness; None for a stretch of two or more empty."""
    counts: dict[int, list[int]] = {}
    for which, values in enumerate((first_us, redelivered_us)):
        for value in values:
            counts.setdefault(bisect_right(EDGES_US, value), [0, 0])[which] += 1
    bars: list[Bucket | None] = []
    empty = 0
    for place in range(min(counts), max(counts) + 1):
        if place in counts:
            if empty == 1:
                bars.append(Bucket(_label(place - 1), 0, 0))
            elif empty:
                bars.append(None)
            empty = 0
            bars.append(Bucket(_label(place), *counts[place]))
        else:
            empty += 1
    return bars


def histogram(books: Books, ascii_only: bool = False) -> Iterator[Text]:
    """The lines of the histogram of lateness."""
    bars = buckets(books.lateness_us, books.redelivered_us)
    highest = max(bar.first + bar.redelivered for bar in bars if bar)
    axis = "|" if ascii_only else "│"
    for bar in bars:
        if bar is None:
            yield Text(f"{'...':>9}{axis:>10}", "dim")
            continue
        count = bar.first + bar.redelivered
        width = count / highest * BAR
        yield Text.assemble(
            f"  {bar.label:15} ",
            (axis, "dim"),
            (
                "#" * ceil(width) if ascii_only else _blocks(width),
                "yellow" if bar.redelivered > bar.first else "cyan",
            ),
            f" {bar.first:,}" if bar.first else "",
            (f" {bar.redelivered:,} redelivered" if bar.redelivered else "", "yellow"),
        )


def _label(place: int) -> str:
    """Where a bucket begins and ends; `place` is its position in `EDGES_US`, as `bisect` has it."""
    if place == len(EDGES_US):
        return f"  over {describe(EDGES_US[-1] / 1e6)}"
    low = describe(EDGES_US[place - 1] / 1e6) if place else "less"
    return f"{low:>5} - {describe(EDGES_US[place] / 1e6)}"


def _blocks(width: float) -> str:
    """A bar in eighths of a character; whatever there is, is seen."""
    eighths = max(1, round(width * 8)) if width else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _table(books: Books) -> Text:
    killed = ", ".join(map(str, books.killed))
    rows = [
        Text("  The books, order by order\n", "bold"),
        _row("enqueued", books.enqueued, "", "2 for each order"),
        _row("run", books.run, "", "to their end"),
        _row("cancelled", books.cancelled, "", "taken back: the order was paid in time"),
        _row(
            "redelivered",
            books.redelivered,
            "yellow",
            f"begun by worker {killed}, which was killed" if killed else "no worker was killed",
        ),
        Text(),
    ]
    for kind in KINDS:
        count = books.count(kind)
        if count or kind in (EARLY, LOST, TWICE):
            rows.append(_row(kind, count, "bold red" if count else "bold green"))
    return Text("\n").join([*rows, Text()])


def _row(name: str, count: int, style: str, remark: str = "") -> Text:
    return Text.assemble(f"  {name:26}", (f"{count:>8,}", style), (f"  {remark}".rstrip(), "dim"))


def _lateness(books: Books) -> Text:
    values = sorted(books.lateness_us)
    text = Text.assemble(
        ("  Lateness", "bold"), (" of first runs, from due to begun\n\n", "dim"), " "
    )
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        text.append(f" {name} ", "dim").append(f"{describe(percentile(values, percent) / 1e6):8}")
    text.rstrip()
    return text.append("\n")
