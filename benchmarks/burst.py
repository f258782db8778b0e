"""10,000 jobs due at one instant: when the first one starts, and when all have been settled.

The jobs are delayed, so nothing can be prepared: the worker knows the instant and nothing else.
The first start is taken by the first job itself, as its first statement; the end is the server's
record of the last completion. In each round a `time.sleep` to another instant, half a second
before, shows how punctually the machine wakes anybody.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import tasks
from benchmarks.child import child, tell, worker
from benchmarks.lab import Lab
from benchmarks.report import Report, Row, Rows, median, spread
from benchmarks.tasks import read_log

JOBS = 10_000
AHEAD_S = 2.0
LONGEST_S = 60


def run(lab: Lab) -> list[Report]:
    """Several bursts, one after another, to one worker started by the command line."""
    rounds: list[Row] = []
    with TemporaryDirectory() as directory:
        jobs, floor = Path(directory, "jobs"), Path(directory, "floor")
        lab.empty()
        with worker(lab.server.url, log=jobs), child("sleep", floor) as sleeper:
            lab.wait_workers(1)
            for number in range(5 if lab.quick else 15):
                at = datetime.fromtimestamp(time.time() + AHEAD_S, UTC)
                tell(sleeper, round((at.timestamp() - 0.5) * 1e9))
                finished_ms = _burst(lab, number, at)
                started, slept = read_log(jobs)[-1], read_log(floor)[-1]
                if started.number != number or started.at_ns < started.due_ns:
                    raise RuntimeError(f"a job ran early or out of order: {started}")
                rounds.append(
                    {
                        "first start, ms": started.late_ms,
                        "floor: time.sleep, ms": slept.late_ms,
                        "all settled, ms": finished_ms,
                        "jobs/s": JOBS / finished_ms * 1000,
                    }
                )
    rows: Rows = {
        column: {"median": value} | spread(rounds, column)
        for column, value in median(rounds).items()
    }
    return [Report(f"{JOBS:,} jobs due at one instant, {len(rounds)} times", rows, "after due")]


def _burst(lab: Lab, number: int, at: datetime) -> float:
    """Let the jobs fall due together; milliseconds until the last has been settled."""
    queue = lab.queue()
    prepared = [queue.prepare(tasks.stamp, (number,), at=at)]
    prepared += [queue.prepare(tasks.nothing, (n,), at=at) for n in range(JOBS - 1)]
    queue.enqueue_many(prepared)
    queue.close()
    if time.time() >= at.timestamp() - 0.2:
        raise RuntimeError("enqueueing took too long for the jobs to be delayed")
    time.sleep(max(0, at.timestamp() + 0.1 - time.time()))
    lab.wait_completed((number + 1) * JOBS, LONGEST_S)
    return (lab.last_finish_us() - at.timestamp() * 1e6) / 1e3
