"""Claims per job as the fleet grows.

100 jobs a second to 1, 5 and 20 workers that are idle but for these, delayed by 500 ms and due at
once. The best possible is one claim for each job: more are workers that woke in vain, less are jobs
that were claimed together. Every worker numbers its claims, and the server keeps the number: their
sum is what is counted. The workers of a fleet share two event loops.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.child import answer, child
from benchmarks.lab import Lab
from benchmarks.report import Report, Row, Rows, percentiles
from benchmarks.tasks import read_log

RATE = 100
FLEETS = (1, 5, 20)
DELAY_US = 500_000
SETTLE_S = 2.0


def run(lab: Lab) -> list[Report]:
    """Each size of a fleet, with delayed jobs and immediate ones."""
    rows: Rows = {}
    for count in FLEETS:
        for what, delay_us in (("delayed", DELAY_US), ("immediate", 0)):
            name = f"{count} worker{'s' * (count > 1)}, {what}"
            rows[name] = _fleet(lab, count, delay_us, seconds=4 if lab.quick else 20)
    title = f"{RATE} jobs/s to a fleet that waits"
    return [Report(title, rows, "fleet", "late: from due to the job's first statement, ms")]


def _fleet(lab: Lab, count: int, delay_us: int, seconds: int) -> Row:
    lab.empty()
    jobs = RATE * seconds
    with TemporaryDirectory() as directory, ExitStack() as stack:
        log = Path(directory, "jobs")
        for size in filter(None, (count - count // 2, count // 2)):
            stack.enter_context(child("fleet", lab.server.url, size, log=log))
        lab.wait_workers(count)
        time.sleep(SETTLE_S)
        claims = lab.claims()
        start_ns = time.time_ns() + 10**9
        with child("produce", lab.server.url, start_ns, RATE, jobs, delay_us) as producer:
            answer(producer, seconds + 30)
            lab.wait_completed(jobs, 30)
        claims = lab.claims() - claims
        late = percentiles(note.late_ms for note in read_log(log))
    return {
        "claims per job": claims / jobs,
        "late p50": late["p50"],
        "late p99": late["p99"],
        "late max": late["max"],
        "jobs": jobs,
    }
