"""How late jobs start, beside how late a bare `time.sleep` wakes in the same run.

A job's lateness is taken by the job itself, as its first statement, in the worker's process: what
the claim, the reply, the decoding and the event loop cost is all in it. Worker, producer and
sleeper are processes of their own; server and processes read the same machine's clock.

`time.sleep` is the floor: nobody can wake a process more punctually than the system does. It is
measured between the jobs, in turn with them, so that whatever else the machine does meets both.

- *idle*: single jobs, each enqueued 1 to 1.3 s ahead, with silence in between; the sleeper wakes
  once in the middle of each silence, after having slept as long.
- *immediate*: single jobs due at once on an idle server, from just before `enqueue` is called; the
  floor is a push to a list that another process waits for with BLPOP.
- *stream*: 200 jobs a second, each delayed by 500 ms; the sleeper wakes 200 times a second too,
  half-way between two jobs' due times.

A job that starts before it is due would be an error: they are counted.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from benchmarks import tasks
from benchmarks.child import answer, child, tell, worker
from benchmarks.lab import Lab
from benchmarks.report import Report, Row, Rows, difference, percentiles
from benchmarks.tasks import Note, read_log

RATE = 200
JOBS = 2_000
DELAY_MS = 500
SETTLE_S = 1.0
FLOOR = "bench-floor"


def run(lab: Lab) -> list[Report]:
    """Measure single jobs and a stream of them."""
    rows: Rows = {}
    with TemporaryDirectory() as directory:
        for measure in (_idle, _immediate, _stream):
            lab.empty()
            files = [Path(directory, f"{measure.__name__}.{which}") for which in ("jobs", "floor")]
            with worker(lab.server.url, log=files[0]):
                lab.wait_workers(1)
                time.sleep(SETTLE_S)
                name, floor_name = measure(lab, files[1])
            jobs, floor = (read_log(file) for file in files)
            rows |= _compare(name, floor_name, jobs, floor)
    return [
        Report(
            "Lateness in ms: from due to the job's first statement",
            rows,
            "jobs",
            "aims: p50 at most 0.5 ms and p99 at most 1 ms above the floor; none early",
        )
    ]


def _compare(name: str, floor_name: str, jobs: list[Note], floor: list[Note]) -> Rows:
    late = percentiles(note.late_ms for note in jobs)
    late["early"] = sum(note.at_ns < note.due_ns for note in jobs)
    bare: Row = percentiles(note.late_ms for note in floor)
    gap = difference(late, bare)
    return {name: late, f"  floor of {name}: {floor_name}": bare, f"  {name}, above it": gap}


def _idle(lab: Lab, floor: Path) -> tuple[str, str]:
    """One job at a time, the enqueuer silent for more than a second before each is due."""
    queue = lab.queue()
    with child("sleep", floor) as sleeper:
        for number in range(40 if lab.quick else 120):
            delay = random.uniform(1.0, 1.3)
            due = queue.enqueue(tasks.stamp, number, delay=delay).due.timestamp()
            tell(sleeper, round((due - delay / 2) * 1e9))
            time.sleep(max(0, due + 0.05 - time.time()))
        lab.wait_completed(number + 1, 10)
    queue.close()
    return "idle, single", "time.sleep"


def _immediate(lab: Lab, floor: Path) -> tuple[str, str]:
    """Due at once: from just before the call of `enqueue` to the job's first statement."""
    queue, count = lab.queue(), 60 if lab.quick else 300
    client = redis.Redis.from_url(lab.server.url)
    with child("pop", lab.server.url, FLOOR, floor):
        time.sleep(SETTLE_S)
        for number in range(count):
            queue.enqueue(tasks.stamp_since, number, time.time_ns())
            time.sleep(random.uniform(0.05, 0.15))
            client.lpush(FLOOR, time.time_ns())
            time.sleep(random.uniform(0.05, 0.15))
        lab.wait_completed(count, 10)
    client.close()
    queue.close()
    return "immediate, single", "push to BLPOP"


def _stream(lab: Lab, floor: Path) -> tuple[str, str]:
    """An even stream from a producer of its own, the sleeper between its due times."""
    seconds, step_ns = JOBS / RATE, 10**9 // RATE
    start_ns = time.time_ns() + 10**9
    first_ns = start_ns + DELAY_MS * 10**6 + step_ns // 2
    args = (lab.server.url, start_ns, RATE, JOBS, DELAY_MS * 1000)
    with child("produce", *args) as producer, child("sleep", floor) as sleeper:
        for number in range(JOBS):
            tell(sleeper, first_ns + number * step_ns)
        answer(producer, seconds + 30)
        lab.wait_completed(JOBS, 30)
        time.sleep(SETTLE_S)
    return f"{RATE} jobs/s, delayed", "time.sleep"
