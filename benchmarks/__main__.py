"""Run benchmarks on a server of their own: `python -m benchmarks [NAME...] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.lab import environment, open_lab
from benchmarks.report import Report, Rows, show, show_aims
from benchmarks.rounds import company

SUITE = ("executors", "enqueue", "lateness", "burst", "memory", "idle", "cost")
"""What is measured if nothing is named: bide and its peers, side by side."""

MORE = (
    "ahead",
    "throughput",
    "calls",
    "watching",
    "fleet",
    "events",
    "data",
    "scale",
    "sizing",
    "limits",
    "flood",
    "faults",
    "imports",
    "outbox",
    "shortcuts",
    "web",
)
"""What is measured by name: bide alone, and what takes long."""

NAMES = (*SUITE, *MORE)
"""Each is a module of this package with a function `run(lab)`."""


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less certain")
    parser.add_argument("--server", metavar="WHICH", help="valkey, redis, or a server's path")
    parser.add_argument(
        "--only",
        metavar="WORKERS",
        default="",
        help="of executors: those whose names begin so, parted by commas",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = Console()
    console = console if console.is_terminal else Console(width=110)
    reports: dict[str, list[Report]] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with open_lab(options.quick, options.server) as lab:
        lab.only = tuple(options.only.split(","))
        about = environment(lab.server)
        console.print(
            f"{about['server']} by {about['transport']}, {about['python']}, "
            f"{'uvloop' if about['uvloop'] else 'asyncio'}, {about['cpus']} CPUs, "
            f"load {about['load']}, {about['date']}"
        )
        for name in options.names or SUITE:
            lab.empty()
            reports[name] = importlib.import_module(f"benchmarks.{name}").run(lab)
            for report in reports[name]:
                show(console, report)
            if options.json:
                told = {"environment": about, "quick": options.quick, **_told(reports)}
                if set(SUITE) & set(reports):
                    told["peers"] = [peer.about for peer in company(lab).peers.values()]
                options.json.write_text(_json(told))
    aims = [aim for made in reports.values() for report in made for aim in report.aims]
    if aims:
        show_aims(console, aims)


def _told(reports: dict[str, list[Report]]) -> dict[str, Any]:
    """The figures as JSON: by benchmark and then by table."""
    every = [report for made in reports.values() for report in made]
    return {
        "results": {
            name: {r.title: _rounded(r.rows) for r in made} for name, made in reports.items()
        },
        "notes": {report.title: report.note for report in every if report.note},
        "aims": [aim._asdict() | {"met": aim.met} for report in every for aim in report.aims],
        "points": {report.title: report.points for report in every if report.points},
    }


def _json(told: dict[str, Any]) -> str:
    """JSON that is read line by line, with each list of figures on one."""
    text = json.dumps(told, indent=1, ensure_ascii=False)
    return re.sub(r"\[[-\d.,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _rounded(rows: Rows) -> Rows:
    """Figures with as many digits as mean something."""
    return {
        name: {
            column: value if isinstance(value, int) else float(f"{value:.5g}")
            for column, value in row.items()
        }
        for name, row in rows.items()
    }


if __name__ == "__main__":
    main()
