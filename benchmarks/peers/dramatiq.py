# /// script
# requires-python = ">=3.11"
# dependencies = ["dramatiq[redis]>=2.2,<3", "redis[hiredis]"]
# ///
"""Dramatiq: threads in several processes; its defaults are eight, in one per processor.

By default a process prefetches two messages a thread, and sleeps for a moment whenever it has these
and asks for more. With `dramatiq_queue_prefetch`, a variable that its reference names, it is
several times as fast; so both are measured, and the faster is what bide is held against.
"""

import math
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.common import QUEUE, URL, mark, take

ABOUT = {
    "name": "Dramatiq",
    "best": "Dramatiq, 2 × 8",
    "package": "dramatiq",
    "acks": "when a job has ended; jobs of a worker that dies run again when its heartbeat is "
    "missed for a minute",
    "delays": "the memory of the worker that has taken the message",
    "by_id": False,
}


def _work(processes, prefetch):
    return [
        *("env", f"dramatiq_queue_prefetch={prefetch}"),
        *("dramatiq", "benchmarks.peers.dramatiq", "--queues", QUEUE),
        *("--processes", str(processes), "--threads", "8"),
    ]


WORKERS = {
    "Dramatiq, 1 × 8": {"command": _work(1, 256), "jobs": 8_000},
    "Dramatiq, 2 × 8": {"command": _work(2, 256), "jobs": 12_000},
    "Dramatiq, 2 × 8, default": {"command": _work(2, 0), "jobs": 4_000},
}

FAULTS = {
    "command": [
        *("dramatiq", "benchmarks.peers.dramatiq", "--queues", QUEUE),
        *("--processes", "1", "--threads", "4"),
    ],
    "settings": "defaults, 4 threads",
}

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def job(number):
    mark(number)


@dramatiq.actor(queue_name=QUEUE)
def held(number, seconds):
    take(number, seconds)


def one(task, args, at):
    delay = None if at is None else max(0, math.ceil((at - time.time()) * 1000))
    broker.get_actor(task).send_with_options(args=args, delay=delay)
