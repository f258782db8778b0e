"""bide itself, started and measured as its peers are, in the environment that runs the benchmark.

Every default is on: leases that are renewed, fencing tokens, the claim's record, retention.
"""

import time
from contextlib import asynccontextmanager

from benchmarks.peers.common import QUEUE, URL, mark, take, when
from bide import AsyncQueue, Queue

ABOUT = {
    "name": "bide",
    "best": "bide async, 100",
    "package": "bide",
    "acks": "when a job has ended, under a fencing token; a child's death is known at once, a "
    "worker's when its leases end (10 s)",
    "delays": "a sorted set; a worker sleeps until the next is due",
    "by_id": True,
}


def _work(*options):
    return ["bide", "worker", "benchmarks.peers.bide", "-u", URL, "-q", QUEUE, *options]


WORKERS = {
    "bide fork, 1": {"command": _work("-x", "fork", "-c", "1"), "jobs": 200},
    "bide fork, 2": {"command": _work("-x", "fork", "-c", "2"), "jobs": 250},
    "bide process, 2": {"command": _work("-x", "process", "-c", "2"), "jobs": 20_000},
    "bide threads, 1 × 8": {"command": _work("-c", "8"), "jobs": 20_000},
    "bide threads, 2 × 8": {"command": _work("-w", "2", "-c", "8"), "jobs": 30_000},
    "bide async, 100": {"command": _work("-c", "100"), "jobs": 25_000, "job": "job_async"},
}


FAULTS = {
    "command": _work("-c", "4"),
    "settings": "defaults (a lease of 10 s), 4 at once",
}

queue = Queue(QUEUE, url=URL)


@queue.task(name="job")
def job(number):
    mark(number)


@queue.task(name="job_async")
async def job_async(number):
    mark(number)


def busy(number):
    mark(number)
    time.sleep(1)


def held(number, seconds):
    take(number, seconds)


tasks = {"job": job, "job_async": job_async, "held": held}


def one(task, args, at):
    queue.enqueue(tasks[task], *args, at=when(at))


def many(calls):
    queue.enqueue_many(
        queue.prepare(tasks[task], args)
        if at is None
        else queue.prepare(tasks[task], args, at=when(at))
        for task, args, at in calls
    )


@asynccontextmanager
async def session():
    global awaited
    awaited = AsyncQueue(QUEUE, url=URL)
    try:
        yield
    finally:
        await awaited.close()


async def aone(task, args, at):
    await awaited.enqueue(tasks[task], *args, at=when(at))
