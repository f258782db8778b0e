"""Measures the CPU time of `import bide` and `bide --help`, beside `import redis`.

Each is a process of its own, with the bytecode written; its CPU time is measured by itself, and the
processes take turns. OpenTelemetry is hidden: redis-py imports it where it is installed, and few
programs have it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.lab import Lab
from benchmarks.report import Aim, Report, Row
from benchmarks.rounds import in_turn

QUICK_S, THOROUGH_S = 10, 30
MOST_OF_REDIS, HELP_MS = 1.5, 400

WHAT = {
    "import redis": "import redis",
    "import bide": "import bide",
    "from bide import Worker": "from bide import Worker",
    "bide --help": "from bide.cli.main import group; group(['--help'], standalone_mode=False)",
}
_TIMED = """
import sys, time
sys.modules["opentelemetry"] = None
{}
print(time.process_time() * 1e3, file=sys.stderr)
"""


def run(lab: Lab) -> list[Report]:
    """Each in turn, many times; the median of each."""
    with tempfile.TemporaryDirectory() as bytecode:
        measures = {name: partial(_time, code, Path(bytecode)) for name, code in WHAT.items()}
        for measure in measures.values():
            measure()  # writes the bytecode
        rounds = in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    took = {name: median(row["CPU ms"] for row in rows) for name, rows in rounds.items()}
    redis_ms = took["import redis"]
    rows = {
        name: {"CPU ms": ms, "of redis": ms / redis_ms, "times": len(rounds[name])}
        for name, ms in took.items()
    }
    aims = [
        Aim("import bide, of import redis", took["import bide"] / redis_ms, at_most=MOST_OF_REDIS),
        Aim("bide --help, CPU ms", took["bide --help"], at_most=HELP_MS),
    ]
    note = "CPU time of the process from its start, Python's own included; medians"
    return [Report("What an import costs", rows, "", note, aims)]


def _time(code: str, bytecode: Path) -> Row:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _TIMED.format(code)]
    done = subprocess.run(
        command,
        env=environ | {"PYTHONPYCACHEPREFIX": str(bytecode)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {"CPU ms": float(done.stderr.split()[-1])}
