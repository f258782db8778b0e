"""What a job costs in claims and wakes as the fleet grows: 1, 20 and 200 workers that wait.

200 jobs a second, delayed by 500 ms and due at once. The best possible is one claim for each job:
more are workers that woke in vain, less are jobs that were claimed together. Every worker numbers
its claims, and the server keeps the number; wakes are hints that scripts push for sleepers. What
the same fleet does in the same time without jobs is measured before, and subtracted. The workers
of a fleet share two event loops.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.child import answer, child
from benchmarks.lab import Lab
from benchmarks.report import Aim, Report, Row, Rows, percentiles
from benchmarks.tasks import read_log

RATE = 200
FLEETS = (1, 20, 200)
DELAY_US = 500_000
SETTLE_S = 3.0
MOST = 1.5
"""How much more a job may cost the largest fleet."""

SECONDS = 20
QUICK_SECONDS = 5


def run(lab: Lab) -> list[Report]:
    """Each fleet, first without jobs."""
    rows: Rows = {}
    aims: list[Aim] = []
    for what, delay_us in (("delayed", DELAY_US), ("immediate", 0)):
        measured = [_measure(lab, count, delay_us) for count in FLEETS]
        for count, row in zip(FLEETS, measured, strict=True):
            rows[f"{count} worker{'s' * (count > 1)}, {what}"] = row
        each = [row["both"] for row in measured]
        told = f"claims and wakes per {what} job, 1 to 200 workers, × the least"
        aims.append(Aim(told, max(each) / min(each), at_most=MOST))
    title = f"Claims and wakes per job, {RATE} jobs/s to a fleet that waits"
    note = (
        "both: claims and wakes; idle: both in a second without jobs, subtracted; "
        "late: from due to the job's first statement, ms"
    )
    return [Report(title, rows, "fleet", note, aims)]


def _measure(lab: Lab, count: int, delay_us: int) -> Row:
    lab.empty()
    seconds = QUICK_SECONDS if lab.quick else SECONDS
    jobs = RATE * seconds
    with TemporaryDirectory() as directory, ExitStack() as stack:
        log = Path(directory, "jobs")
        for size in filter(None, (count - count // 2, count // 2)):
            stack.enter_context(child("fleet", lab.server.url, size, log=log))
        lab.wait_workers(count, 60)
        time.sleep(SETTLE_S)
        began, (claims, wakes) = time.monotonic(), _told(lab)
        time.sleep(seconds)
        idle_s, (idle_claims, idle_wakes) = time.monotonic() - began, _told(lab)
        claims_s, wakes_s = (idle_claims - claims) / idle_s, (idle_wakes - wakes) / idle_s
        began, (claims, wakes) = time.monotonic(), _told(lab)
        start_ns = time.time_ns() + 10**9
        with child("produce", lab.server.url, start_ns, RATE, jobs, delay_us) as producer:
            answer(producer, seconds + 30)
            lab.wait_completed(jobs, 30)
        busy_s, (all_claims, all_wakes) = time.monotonic() - began, _told(lab)
        late = percentiles(note.late_ms for note in read_log(log))
    claims_each = (all_claims - claims - claims_s * busy_s) / jobs
    wakes_each = (all_wakes - wakes - wakes_s * busy_s) / jobs
    return {
        "claims": claims_each,
        "wakes": wakes_each,
        "both": claims_each + wakes_each,
        "idle": claims_s + wakes_s,
        "late p50": late["p50"],
        "late p99": late["p99"],
    }


def _told(lab: Lab) -> tuple[int, int]:
    """Claims that were made, and hints that were pushed, so far."""
    return lab.claims(), lab.commands().get("lpush", (0, 0))[0]
