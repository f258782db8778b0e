"""Figures: percentiles, medians over rounds, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Row = dict[str, float]
Rows = dict[str, Row]


class Aim(NamedTuple):
    """What a figure is to be, and is."""

    what: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bound(self) -> str:
        """What it is to be, in print."""
        if self.at_most is not None:
            return f"≤ {number(self.at_most)}"
        return f"≥ {number(self.at_least or 0)}"

    @property
    def met(self) -> bool:
        """Whether it is."""
        if self.at_most is not None and self.measured > self.at_most:
            return False
        return self.at_least is None or self.measured >= self.at_least


class Report(NamedTuple):
    """One table: a row for each thing measured, a column for each figure."""

    title: str
    rows: Rows
    first: str = ""
    note: str = ""
    aims: Sequence[Aim] = ()
    points: Mapping[str, Sequence[float]] = {}
    """Of some rows, the values themselves, thinned: for a plot."""


def percentiles(values: Iterable[float]) -> Row:
    """p50, p90, p99 and the maximum (nearest rank), with the count."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": ordered[-1],
        "n": len(ordered),
    }


def difference(one: Row, floor: Row) -> Row:
    """What `one` lies above the floor, percentile by percentile."""
    return {column: one[column] - floor[column] for column in ("p50", "p90", "p99")}


def median(rounds: Sequence[Row]) -> Row:
    """The median of each figure over those rounds that have it."""
    columns = dict.fromkeys(column for row in rounds for column in row)
    return {
        column: statistics.median(row[column] for row in rounds if column in row)
        for column in columns
    }


def spread(rounds: Sequence[Row], column: str) -> Row:
    """The lowest and highest of one figure over rounds: how far to trust its median."""
    values = [r[column] for r in rounds]
    return {"lowest": min(values), "highest": max(values)}


def thinned(values: Iterable[float], most: int = 200) -> list[float]:
    """Quantiles at even distances, to three decimals: for a cumulative plot."""
    ordered = sorted(round(value, 3) for value in values)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]


def show_aims(console: Console, aims: Sequence[Aim]) -> None:
    """Print what was to be reached, and whether it was."""
    table = Table(title="What is to be reached", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for column in ("measured", "to be", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for aim in aims:
        table.add_row(aim.what, number(aim.measured), aim.bound, "met" if aim.met else "missed")
    console.print(table)


def show(console: Console, report: Report) -> None:
    """Print a report; an absent figure is a dash."""
    table = Table(
        title=report.title,
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column(report.first, no_wrap=True)
    columns = list(dict.fromkeys(column for row in report.rows.values() for column in row))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in report.rows.items():
        table.add_row(name, *(number(row[c]) if c in row else "–" for c in columns))
    console.print(table)
    if report.note:
        console.print(report.note, style="dim", highlight=False)
        console.print()


def number(value: float) -> str:
    """A figure with as many digits as mean something."""
    if isinstance(value, int) or abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
