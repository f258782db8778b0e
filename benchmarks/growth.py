"""Whether a worker and a producer grow with the jobs that pass through them.

A producer adds a million jobs one by one, and a worker runs them as they come. Each notes at even
steps how much memory is its own: the pages that no other process shares (/proc; Linux). The slope
is that of the straight line which fits the second half best (least squares); in the first half
caches, pools and the interpreter's own tables come to their size.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.child import answer, child
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Aim, Report, Row, Rows
from benchmarks.tasks import LOG, Log, read_log
from bide import Queue

JOBS = 1_000_000
QUICK_JOBS = JOBS // 5
STEPS = 200
MOST_BYTES = 1
"""Per job."""

_STEP: Final = "BIDE_BENCH_STEP"
_OWN: Final = ("Private_Clean:", "Private_Dirty:")


def run(lab: Lab) -> list[Report]:
    """Produce and work at the same time."""
    jobs = QUICK_JOBS if lab.quick else JOBS
    os.environ[_STEP] = str(jobs // STEPS)
    url = lab.server.url
    with TemporaryDirectory() as directory:
        logs = {name: Path(directory, name) for name in ("worker", "producer")}
        options = ("-u", url, "-q", QUEUE, "-c", 100)
        with child("bide", "worker", __name__, *options, log=logs["worker"]):
            lab.wait_workers(1)
            with child(f"{__name__}.produce", url, jobs, log=logs["producer"]) as producer:
                answer(producer, 3_600)
            lab.wait_completed(jobs, 600)
        rows: Rows = {name: _row(log) for name, log in logs.items()}
    aims = [
        Aim(f"bytes per job that a {name} grows by", row["bytes/job"], at_most=MOST_BYTES)
        for name, row in rows.items()
    ]
    title = f"Memory of a process through which {jobs:,} jobs pass"
    return [Report(title, rows, "process", "bytes/job: the slope over the second half", aims)]


def _row(log: Path) -> Row:
    notes = read_log(log)
    if len(notes) != STEPS:
        raise RuntimeError(f"memory was noted {len(notes)} times, not {STEPS}")
    notes = notes[STEPS // 2 :]
    line = statistics.linear_regression([n.number for n in notes], [n.at_ns for n in notes])
    return {
        "bytes/job": line.slope,
        "MB at half": notes[0].at_ns / 1e6,
        "MB at the end": notes[-1].at_ns / 1e6,
        "samples": len(notes),
    }


# ----------------------------------------------------------------------------- inside the children

_step = int(os.environ.get(_STEP, 1))
_log = Log(os.environ[LOG]) if LOG in os.environ else None
_jobs = 0


async def pass_through(number: int) -> None:
    """Be one of the jobs; at each step, note the process's memory."""
    _count()


def produce(url: str, count: str) -> None:
    """Enqueue so many jobs, one by one."""
    queue = Queue(QUEUE, url=url)
    for number in range(int(count)):
        queue.enqueue(pass_through, number)
        _count()
    print("{}")


def _count() -> None:
    global _jobs
    _jobs += 1
    if _jobs % _step == 0:
        assert _log is not None
        _log.note(_jobs, 0, _own_bytes())


def _own_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_OWN))
