"""The heat map of lateness as a picture: time from left to right, lateness upward."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from bide.clock import describe

SIDE: Final = 10
ROW: Final = 26

STYLES: Final = ("on", "on", "on", "soon", "soon", "late", "late", "late", "late")
"""How each band of lateness is filled, the least late first."""


class Cell(NamedTuple):
    """Jobs that began in a stretch of time, and were as late as the others."""

    x: int
    y: int
    style: str
    strength: float
    """From 0 to 1: how many there are, beside the most; by magnitudes, so that few can be seen."""
    says: str


class Heat(NamedTuple):
    """Cells, and what stands beside and below them."""

    width: int
    height: int
    cells: list[Cell]
    rows: list[str]
    """The names of the bands, from the top."""
    ticks: list[str]
    """Moments, evenly from the left."""


def draw_heat(shown: dict[str, Any]) -> Heat | None:
    """The picture of what `reads.punctuality` has read; None where nothing has begun."""
    columns, bands = shown["columns"], shown["bands"]
    most = max((n for column in columns for n in column["counts"]), default=0)
    if not most:
        return None
    names = [f"below {describe(_near(band))}" if band else "more" for band in bands]
    cells = [
        Cell(
            x * SIDE,
            (len(bands) - 1 - row) * ROW,
            STYLES[row],
            round(0.25 + 0.75 * math.log1p(number) / math.log1p(most), 3),
            f"{number:,} began {names[row] if bands[row] else 'later still'}",
        )
        for x, column in enumerate(columns)
        for row, number in enumerate(column["counts"])
        if number
    ]
    every = max(1, len(columns) // 6)
    return Heat(
        width=len(columns) * SIDE,
        height=len(bands) * ROW,
        cells=cells,
        rows=names[::-1],
        ticks=[column["at"] for column in columns[::every]][:6],
    )


def _near(seconds: float) -> float:
    """1.024 s are called a second, 65.5 s a minute, and so on."""
    if seconds < 1:
        return round(seconds, 3)
    to = 1 if seconds < 60 else 60 if seconds < 3600 else 600
    return round(seconds / to) * to
