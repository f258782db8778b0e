# /// script
# requires-python = ">=3.11"
# dependencies = ["dramatiq[redis]>=2.2,<3", "redis[hiredis]"]
# ///
"""Dramatiq: threads in several processes; its defaults are eight, in one per processor."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.common import QUEUE, URL, mark

ABOUT = {
    "package": "dramatiq",
    "acks": "when a job has ended; of a worker that dies, jobs run again when its heartbeat is "
    "missed for a minute",
    "delays": "in the memory of the worker that has taken the message",
}


def _work(processes):
    return [
        *("dramatiq", "benchmarks.peers.dramatiq", "--queues", QUEUE),
        *("--processes", str(processes), "--threads", "8"),
    ]


WORKERS = {
    "Dramatiq, 1 × 8": {"command": _work(1), "jobs": 2_000},
    "Dramatiq, 2 × 8": {"command": _work(2), "jobs": 3_500},
}

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor(queue_name=QUEUE)
def job(number):
    mark(number)


def enqueue(numbers, worker):
    for number in numbers:
        job.send(number)
