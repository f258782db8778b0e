# /// script
# requires-python = ">=3.11"
# dependencies = ["huey>=3.5,<4", "redis[hiredis]"]
# ///
"""Huey: threads in one process, each of which waits at the queue itself."""

from huey import RedisHuey

from benchmarks.peers.common import QUEUE, URL, mark, take, when

ABOUT = {
    "name": "Huey",
    "best": "Huey, 8 threads",
    "package": "huey",
    "acks": "never: a job that a worker takes off the list is lost with the worker",
    "delays": "a sorted set, which a scheduler looks at every second",
    "by_id": False,
}
WORKERS = {
    "Huey, 8 threads": {
        "command": [
            *("huey_consumer", "benchmarks.peers.huey.huey", "--quiet", "--no-periodic"),
            *("--workers", "8", "--worker-type", "thread"),
        ],
        "jobs": 6_000,
    },
}

FAULTS = {
    "command": [
        *("huey_consumer", "benchmarks.peers.huey.huey", "--quiet"),
        *("--workers", "4", "--worker-type", "thread"),
    ],
    "settings": "defaults, 4 threads",
}

huey = RedisHuey(QUEUE, url=URL, results=False)


@huey.task()
def job(number):
    mark(number)


@huey.task()
def held(number, seconds):
    take(number, seconds)


tasks = {"job": job, "held": held}


def one(task, args, at):
    if at is None:
        tasks[task](*args)
    else:
        tasks[task].schedule(args, eta=when(at))
