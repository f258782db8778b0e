"""Draw charts: the timeline of due jobs, and the heat map of lateness."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final

from bide.model.durations import describe

SIDE: Final = 10
ROW: Final = 26

STYLES: Final = ("on", "on", "on", "soon", "soon", "late", "late", "late", "late")
"""How each band of lateness is filled, the least late first."""


def draw_heatmap(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Draw what `timeline.lateness` has read as a heat map; None if no job has started.

    The strength of a cell, from 0 to 1, says how many there are beside the most; by magnitudes, so
    that few can be seen.
    """
    columns, bands = shown["columns"], shown["bands"]
    most = max((n for column in columns for n in column["counts"]), default=0)
    if not most:
        return None
    names = [f"below {describe(_near(band))}" if band else "more" for band in bands]
    cells = [
        {
            "x": x * SIDE,
            "y": (len(bands) - 1 - row) * ROW,
            "style": STYLES[row],
            "strength": round(0.25 + 0.75 * math.log1p(number) / math.log1p(most), 3),
            "says": f"{number:,} began {names[row] if bands[row] else 'later still'}",
        }
        for x, column in enumerate(columns)
        for row, number in enumerate(column["counts"])
        if number
    ]
    every = max(1, len(columns) // 6)
    return {
        "width": len(columns) * SIDE,
        "height": len(bands) * ROW,
        "cells": cells,
        "rows": names[::-1],
        "ticks": [column["at"] for column in columns[::every]][:6],
    }


def _near(seconds: float) -> float:
    """1.024 s are called a second, 65.5 s a minute, and so on."""
    if seconds < 1:
        return round(seconds, 3)
    to = 1 if seconds < 60 else 60 if seconds < 3600 else 600
    return round(seconds / to) * to


STEP: Final = 10
HEIGHT: Final = 260
_LEAST: Final = 3.0
"""Height of the smallest bar: one job beside forty thousand can be seen."""

COLOURS: Final = 8
_MANY: Final = 10
_BURST: Final = 5
"""How many times higher than what is usual a bar must be to be cut."""
TICKS: Final = 7


def draw(shown: dict[str, Any]) -> dict[str, Any] | None:
    """Draw what `timeline.timeline` has read; None if there is no queue yet.

    A bar of the whole height has `top` jobs; that of the fullest stretch, with `highest`, may be
    cut. The parts of a bar are style, place and height.
    """
    if shown["now"] is None:
        return None
    start, now, end = (datetime.fromisoformat(shown[name]) for name in ("from", "now", "to"))
    step = shown["step"]
    count = round((end - start).total_seconds() / step)
    colours = {queue: f"c{i % COLOURS}" for i, queue in enumerate(shown["queues"])}
    stacks = [
        (
            round((datetime.fromisoformat(each["at"]) - start).total_seconds() / step),
            *_stack(each, colours),
        )
        for each in shown["stretches"]
    ]
    sizes = sorted(sum(n for _, n in stack) for _, stack, _ in stacks)
    top = top_of(sizes)
    from_us, step_us = round(start.timestamp() * 1e6), round(step * 1e6)
    bars = []
    for index, stack, says in stacks:
        parts: list[tuple[str, float, float]] = []
        y, total = float(HEIGHT), sum(number for _, number in stack)
        for style, number in stack:
            height = max(_LEAST, number * (HEIGHT - 12) / max(top, total))
            y -= height
            parts.append((style, round(y, 2), round(height, 2)))
        at_us = from_us + index * step_us
        ahead = (n for style, n in stack if style not in ("done", "bad") and "ghost" not in style)
        bars.append(
            {
                "x": index * STEP,
                "parts": parts,
                "from_us": at_us,
                "to_us": at_us + step_us,
                "due": sum(ahead),
                "says": says,
                "is_cut": total > top,
            }
        )
    every = count // TICKS
    return {
        "width": count * STEP,
        "bars": bars,
        "now_x": round((now - start).total_seconds() / step * STEP, 1),
        "top": top,
        "highest": sizes[-1] if sizes else 0,
        "ticks": [_tick(start, k * every * step, (k - 1) * every * step) for k in range(TICKS)],
        "colours": colours,
        "step_us": step_us,
        "from_us": from_us,
    }


def top_of(sizes: list[int]) -> int:
    """Return the height of the picture in jobs: the bar of a burst is cut, to show the others."""
    if not sizes:
        return 0
    usual = sizes[len(sizes) * 9 // 10 - 1] if len(sizes) >= _MANY else sizes[-1]
    return sizes[-1] if sizes[-1] <= _BURST * usual else usual * 2


def _stack(each: dict[str, Any], colours: dict[str, str]) -> tuple[list[tuple[str, int]], str]:
    stack: list[tuple[str, int]] = []
    lines = []
    for kind, style, word in (("completed", "done", "completed"), ("failed", "bad", "failed")):
        if number := sum(each[kind].values()):
            stack.append((style, number))
            lines.append(f"{number:,} {word}")
    for queue, number in each["due"].items():
        stack.append((colours[queue], number))
        lines.append(f"{queue}: {number:,} due")
    for queue, number in each["scheduled"].items():
        stack.append((f"{colours[queue]} ghost", number))
        lines.append(f"{queue}: {number:,} by schedules")
    return stack, "; ".join(lines)


def _tick(start: datetime, seconds: float, away: float) -> dict[str, str]:
    """`away` is from now, the second of them, to a whole step."""
    far = f"{'+' if away > 0 else '-'}{describe(abs(away))}" if away else "now"
    return {"at": (start + timedelta(seconds=seconds)).isoformat(), "far": far}
