"""Draws the panels of `deploy/grafana/dashboard.json`: `python -m docs.make_metrics_picture`.

A shop runs for four minutes, and a real Prometheus scrapes it. Its answers to the panels' queries
are drawn by matplotlib, not by Grafana. It needs `make .venv/has-prometheus`.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
import time
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bide import Queue
from bide.embedded import Server
from tests.support.programs import prometheus
from tests.support.watched import Panel, Prometheus, panels, watched

PICTURE: Final = Path(__file__).parent / "static" / "metrics-dashboard.svg"
SECONDS: Final = 240
COLUMNS: Final = 2
GREY: Final = "#64748b"

SHOP: Final = """
import asyncio, os, random, time
import bide

queue = bide.Queue("orders")

@queue.task
async def send(order_id: int) -> None:
    await asyncio.sleep(random.uniform(0.005, 0.04))

@queue.task
async def render(order_id: int) -> None:
    await asyncio.sleep(random.lognormvariate(-1, 0.5))

@queue.task(retry=bide.Retry(2, backoff=["2s"]))
async def bill(order_id: int) -> None:
    await asyncio.sleep(0.02)
    if random.random() < 0.1:
        raise ValueError("the bank does not answer")

@queue.task(on_crash="fail")
async def crash() -> None:
    os._exit(3)
"""


def work(queue: Queue, seconds: float) -> None:
    """Enqueue as a shop does: some a second, many far ahead, a burst, and a job that crashes."""
    randomness = random.Random(7)
    tasks = ("shop:send", "shop:send", "shop:render", "shop:bill")
    queue.enqueue_many([queue.prepare("shop:send", (n,), delay="30d") for n in range(500)])
    start = time.monotonic()
    steps = 0
    while time.monotonic() - start < seconds:
        for _ in range(randomness.randint(5, 15)):
            queue.enqueue(randomness.choice(tasks), 1, delay=randomness.expovariate(1 / 20))
        steps += 1
        if steps == int(seconds * 0.3):
            ahead = seconds * 0.25
            queue.enqueue_many(
                [queue.prepare("shop:render", (n,), delay=ahead) for n in range(800)]
            )
        if steps == int(seconds * 0.75):
            queue.enqueue("shop:crash")
        time.sleep(max(0.0, start + steps - time.monotonic()))


def draw(found: Prometheus, start: float, end: float) -> None:
    """Ask for each panel, and write the picture."""
    groups = [[*group] for _, group in groupby(panels("30s"), key=lambda panel: panel.title)]
    stats = [group for group in groups if group[0].kind == "stat"]
    lines = [group for group in groups if group[0].kind != "stat"]
    rows = math.ceil(len(lines) / COLUMNS)
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "bide", "font.size": 8}
    figure = Figure(figsize=(11, 1.2 + 2.1 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, COLUMNS, height_ratios=[0.5] + [1] * rows)
    top = grid[0, :].subgridspec(1, len(stats))
    for place, (panel, *_) in enumerate(stats):
        axes = figure.add_subplot(top[place])
        axes.set_axis_off()
        (value,) = found.values(panel.expr)
        unit = " s" if panel.unit == "s" else ""
        axes.text(0.5, 0.35, f"{value:.3g}{unit}", ha="center", fontsize=18, color="#15803d")
        axes.set_title(panel.title)
    for place, group in enumerate(lines):
        axes = figure.add_subplot(grid[1 + place // COLUMNS, place % COLUMNS])
        for panel in group:
            _plot(axes, panel, found, start, end)
        axes.set_title(group[0].title, loc="left", fontweight="bold")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, end - start)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=6, loc="upper left", ncols=2, frameon=False)
        if place >= len(lines) - COLUMNS:
            axes.set_xlabel("seconds", color=GREY)
    figure.savefig(PICTURE, metadata={"Date": None})


def _plot(axes: Axes, panel: Panel, found: Prometheus, start: float, end: float) -> None:
    scale, unit = {"bytes": (2**-20, "MiB"), "percentunit": (100, "%"), "ops": (1, "/s")}.get(
        panel.unit, (1, panel.unit.replace("short", ""))
    )
    axes.set_ylabel(unit, color=GREY)
    for series in found.series(panel.expr, start, end):
        name = re.sub(r"{{(\w+)}}", lambda of, series=series: series.labels[of[1]], panel.legend)  # type: ignore[misc]
        xs, ys = zip(*series.points, strict=True)
        axes.plot([x - start for x in xs], [y * scale for y in ys], label=name, linewidth=1)


def main() -> None:
    """Run the shop, and draw it."""
    program = prometheus("prometheus")
    if program is None:
        raise SystemExit("there is no Prometheus; `make .venv/has-prometheus` fetches it")
    with (
        tempfile.TemporaryDirectory() as home,
        Server.start() as server,
        closing(Queue("orders", url=server.url)) as queue,
        watched(Path(home), server.url, program, SHOP) as (found, _),
    ):
        start = time.time()
        work(queue, SECONDS)
        draw(found, start, time.time())
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
