"""bide itself, started and measured as its peers are, in the environment that runs the benchmark.

Every default is on: leases that are renewed, fencing tokens, the claim's record, retention.
"""

import time

from benchmarks.peers.common import QUEUE, URL, mark, take
from bide import Queue

ABOUT = {
    "package": "bide",
    "acks": "when a job has ended, under a fencing token; a child's death is known at once, a "
    "worker's when its leases end (10 s)",
    "delays": "a sorted set; a worker sleeps until the next is due",
}


def _work(*options):
    return ["bide", "worker", "benchmarks.peers.bide", "-u", URL, "-q", QUEUE, *options]


WORKERS = {
    "bide fork, 1": {"command": _work("-x", "fork", "-c", "1"), "jobs": 200},
    "bide fork, 2": {"command": _work("-x", "fork", "-c", "2"), "jobs": 250},
    "bide process, 2": {"command": _work("-x", "process", "-c", "2"), "jobs": 20_000},
    "bide threads, 1 × 8": {"command": _work("-c", "8"), "jobs": 20_000},
    "bide threads, 2 × 8": {"command": _work("-w", "2", "-c", "8"), "jobs": 30_000},
    "bide async, 100": {"command": _work("-c", "100"), "jobs": 25_000},
}


FAULTS = {
    "command": _work("-c", "4"),
    "settings": "defaults (a lease of 10 s), 4 at once",
}

queue = Queue(QUEUE, url=URL)


def job(number):
    mark(number)


async def job_async(number):
    mark(number)


def busy(number):
    mark(number)
    time.sleep(1)


def enqueue(numbers, worker):
    task = job_async if "async" in worker else job
    for i in range(0, len(numbers), 500):
        queue.enqueue_many([queue.prepare(task, (n,)) for n in numbers[i : i + 500]])


def held(number, seconds):
    take(number, seconds)


def hold(delays, seconds):
    queue.enqueue_many(
        [queue.prepare(held, (n, seconds), delay=delay) for n, delay in delays.items()]
    )
