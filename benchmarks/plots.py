"""Pictures of the figures, and the pages that they stand in: `python -m benchmarks.plots FILES`.

Writes `docs/performance.json` (the first file, with what the others add), the tables of the pages
that `page.py` names, and the SVGs in `docs/static`: how late jobs were, cumulated, beside
`time.sleep`; how many jobs a worker ran, and a producer enqueued, in a second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import page
from benchmarks.lab import ROOT

STATIC = ROOT / "docs" / "static"
LEAST_MS = 0.02
OURS = "#c2410c"
COLOURS = {
    "BullMQ": "#047857",
    "RQ": "#1d4ed8",
    "Celery": "#65a30d",
    "Dramatiq": "#7e22ce",
    "Huey": "#a16207",
    "arq": "#0ea5e9",
    "SAQ": "#be185d",
    "taskiq": "#334155",
    "streaq": "#94a3b8",
    "Docket": "#ea580c",
}
GREY = "#94a3b8"

LATENESS = {
    "lateness-stream": "Lateness in ms, 200 jobs/s at random moments, delayed by 0.5 s",
    "lateness-idle": "Lateness in ms, single delayed jobs on an idle server",
}
THROUGHPUT = {
    "coroutines, 100 at once": "bide async, 100",
    "threads, 2 processes × 8": "bide threads, 2 × 8",
    "threads, 8": "bide threads, 1 × 8",
    "two child processes": "bide process, 2",
    "a process forked for each job, 2": "bide fork, 2",
}
ENQUEUE = {
    "one by one, blocking": "Enqueueing, one by one",
    "100 callers that await": "Enqueueing, 100 callers that await in one loop",
    "many in one call": "Enqueueing, many in one call",
}
DUE = ", due at once"

Bars = list[tuple[str, float, float, float]]
"""Name, median, lowest, highest."""


def main() -> None:
    """Draw all, and make the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        help="what `python -m benchmarks --json` wrote; later files replace parts of earlier ones",
    )
    options = parser.parse_args()
    told, *others = (json.loads(file.read_text("utf-8")) for file in options.files)
    for other in others:
        measured = {aim["what"].split(",")[0] for aim in other["aims"]}
        told["aims"] = [aim for aim in told["aims"] if aim["what"].split(",")[0] not in measured]
        told["aims"] += other["aims"]
        for part in ("results", "notes", "points"):
            told[part] |= other[part]
        peers = {peer["name"]: peer for peer in (*told["peers"], *other.get("peers", ()))}
        told["peers"] = list(peers.values())
        told.setdefault("environments", {}).update(
            dict.fromkeys(other["results"], (other["environment"], other["quick"]))
        )
    matplotlib.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "bide",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    page.DATA.write_text(json.dumps(told), "utf-8")
    page.write()
    for name, title in LATENESS.items():
        save(lateness(title, told["points"][title]), name)
    save(bars(THROUGHPUT, throughput(told["results"]["executors"])), "throughput")
    save(bars(ENQUEUE, enqueueing(told["results"]["enqueue"])), "enqueue")


def save(figure: Figure, name: str) -> None:
    """Write a picture that is the same whenever its figures are."""
    figure.savefig(STATIC / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def lateness(title: str, points: dict[str, list[float]]) -> Figure:
    """Which share of jobs had started so many milliseconds after they were due."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    drawn: set[str] = set()
    for name, times in sorted(points.items(), key=lambda one: one[1][len(one[1]) // 2]):
        shares = [100 * i / len(times) for i in range(len(times) + 1)]
        ours, floor = name.startswith("bide"), name.startswith("floor")
        library = name.replace(",", "").split()[0]
        early = sum(one < 0 for one in times) / len(times)
        axes.step(
            [max(LEAST_MS, one) for one in (times[0], *times)],
            shares,
            where="post",
            label=f"{name} ({early:.0%} early)" if early >= 0.01 else name,
            color=OURS if ours else "black" if floor else COLOURS.get(library, GREY),
            linewidth=2.4 if ours else 1.3,
            linestyle="--" if floor else ":" if library in drawn else "-",
            zorder=3 if ours else 2,
        )
        drawn.add(library)
    axes.set_xscale("log")
    axes.set_xlim(left=LEAST_MS)
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("milliseconds from due to the job's first statement")
    axes.set_ylabel("% of jobs that have begun")
    axes.set_title(title.replace("Lateness in ms, ", "Lateness: "), loc="left", fontsize=11)
    axes.grid(color="#e2e8f0", linewidth=0.7)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def throughput(results: dict[str, dict[str, Any]]) -> dict[str, Bars]:
    """Each group of workers that do the like."""
    rows, pairs = results["Jobs that do nothing"], results["How many times as fast"]
    groups: dict[str, Bars] = {}
    for group, ours in THROUGHPUT.items():
        names = [
            ours,
            *(name.partition(" / ")[2] for name in pairs if name.startswith(f"{ours} /")),
        ]
        groups[group] = [_bar(name, rows[name]) for name in names if name in rows]
    return groups


def enqueueing(results: dict[str, dict[str, Any]]) -> dict[str, Bars]:
    """Each way, by each library."""
    return {
        group: [
            _bar(name.removesuffix(DUE), row)
            for name, row in results[title].items()
            if name.endswith(DUE) and "jobs/s" in row and not name.startswith("floor")
        ]
        for group, title in ENQUEUE.items()
    }


def _bar(name: str, row: dict[str, float]) -> tuple[str, float, float, float]:
    return name, row["jobs/s"], row["lowest"], row["highest"]


def bars(titles: dict[str, str], groups: dict[str, Bars]) -> Figure:
    """A panel for each group; at each bar, what part of bide's it is."""
    heights = [len(groups[title]) + 1.3 for title in titles]
    figure = Figure(figsize=(8, 0.3 * sum(heights) + 0.6), layout="constrained")
    panels: list[Axes] = list(
        figure.subplots(len(titles), height_ratios=heights, squeeze=False).flat
    )
    for axes, title in zip(panels, titles, strict=True):
        _panel(axes, title, groups[title])
    panels[-1].set_xlabel(
        "jobs a second, medians, and their ratio; the thin line: lowest to highest"
    )
    return figure


def _panel(axes: Axes, title: str, made: Bars) -> None:
    ordered = sorted(made, key=lambda bar: bar[1])
    ours = next((value for name, value, *_ in made if name.startswith("bide")), None)
    most = max(highest for *_, highest in made)
    for at, (name, value, lowest, highest) in enumerate(ordered):
        is_ours = name.startswith("bide")
        axes.barh(at, value, color=OURS if is_ours else GREY, height=0.7)
        axes.plot([lowest, highest], [at, at], color="black", linewidth=0.9)
        told = f"{value:,.0f}"
        if ours and not is_ours:
            times = ours / value
            told += f"   bide: × {times:.1f}" if times < 10 else f"   bide: × {times:.0f}"
        axes.text(max(value, highest) + most * 0.01, at, told, va="center", fontsize=9)
    axes.set_yticks(range(len(ordered)), [name for name, *_ in ordered])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, most * 1.25)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


if __name__ == "__main__":
    main()
