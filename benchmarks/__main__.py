"""Run benchmarks on a server of their own: `python -m benchmarks [NAME...] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.lab import environment, open_lab
from benchmarks.report import show

NAMES = (
    "throughput",
    "executors",
    "lateness",
    "burst",
    "memory",
    "idle",
    "enqueue",
    "data",
    "events",
    "scale",
    "limits",
    "faults",
)
"""Each is a module of this package with a function `run(lab)`."""


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes, less certain")
    parser.add_argument("--server", metavar="WHICH", help="valkey, redis, or a server's path")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = Console()
    console = console if console.is_terminal else Console(width=110)
    results: dict[str, Any] = {}
    notes: dict[str, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with open_lab(options.quick, options.server) as lab:
        about = environment(lab.server)
        console.print(
            f"{about['server']} by {about['transport']}, {about['python']}, "
            f"{'uvloop' if about['uvloop'] else 'asyncio'}, {about['cpus']} CPUs, "
            f"load {about['load']}, {about['date']}"
        )
        for name in options.names or NAMES[:-3]:
            lab.empty()
            reports = importlib.import_module(f"benchmarks.{name}").run(lab)
            for report in reports:
                show(console, report)
            results[name] = {report.title: report.rows for report in reports}
            notes |= {report.title: report.note for report in reports if report.note}
            if options.json:
                told = {
                    "environment": about,
                    "quick": options.quick,
                    "results": results,
                    "notes": notes,
                }
                options.json.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
