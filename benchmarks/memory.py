"""What a delayed job takes in the server's memory, enqueued as users do it.

The difference in `used_memory` between an empty server and one with 100,000 jobs, a job of its
own delay each, on every server that is here. The floor is a sorted set of the same ids and due
times and nothing else: no task, no arguments, no protection from a repeated enqueue.
"""

from __future__ import annotations

import random

from benchmarks.lab import QUEUE, Lab, binaries
from benchmarks.report import Report, Row, Rows
from bide import Queue
from bide.embedded import Server

JOBS = 100_000
CHUNK = 500
TASK = "app:send"
LONGEST_S = 24 * 3600


def run(lab: Lab) -> list[Report]:
    """Load each server once: allocators are deterministic, rounds would tell nothing more."""
    rows: Rows = {}
    for binary in binaries(lab.chosen).values():
        with Server.start(binary=binary) as server:
            rows[f"{server.flavour} {server.version}"] = _load(Lab(server, lab.quick, None))
    return [Report(f'Memory per delayed job, {JOBS:,} of "{TASK}" with the argument 42', rows)]


def _load(lab: Lab) -> Row:
    rng, queue = random.Random(0), Queue(QUEUE, url=lab.server.url)
    queue.enqueue(TASK, 42, delay=60)  # loads the script
    lab.empty()
    empty = lab.memory()
    ids: dict[str, float] = {}
    for _ in range(JOBS // CHUNK):
        jobs = [
            queue.prepare(TASK, (42,), delay=rng.uniform(3600, LONGEST_S)) for _ in range(CHUNK)
        ]
        for job in queue.enqueue_many(jobs):
            ids[job.id] = round(job.due.timestamp() * 1e6)
    queue.close()
    used = lab.memory() - empty
    lab.empty()
    empty = lab.memory()
    items = list(ids.items())
    for i in range(0, JOBS, CHUNK):
        lab.client.zadd("floor", dict(items[i : i + CHUNK]))
    return {
        "bytes": used / JOBS,
        "floor: sorted set": (lab.memory() - empty) / JOBS,
        "id": len(jobs[0].id),
        "body": len(jobs[0].body),
    }
