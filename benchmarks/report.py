"""Figures: percentiles, medians over rounds, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Row = dict[str, float]
Rows = dict[str, Row]


class Report(NamedTuple):
    """One table: a row for each thing measured, a column for each figure."""

    title: str
    rows: Rows
    first: str = ""
    note: str = ""


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
    """The median of each figure over rounds."""
    return {column: statistics.median(r[column] for r in rounds) for column in rounds[0]}


def spread(rounds: Sequence[Row], column: str) -> Row:
    """The lowest and highest of one figure over rounds: how far to trust its median."""
    values = [r[column] for r in rounds]
    return {"lowest": min(values), "highest": max(values)}


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
        table.add_row(name, *(_number(row[c]) if c in row else "–" for c in columns))
    console.print(table)
    if report.note:
        console.print(report.note, style="dim", highlight=False)
        console.print()


def _number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
