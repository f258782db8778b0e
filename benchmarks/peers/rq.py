# /// script
# requires-python = ">=3.11"
# dependencies = ["rq>=2.12,<3", "redis[hiredis]"]
# ///
"""RQ: its Worker forks for each job, its SimpleWorker runs them in its own process.

As its documentation advises, workers are started by a program that has imported the jobs' module
before it forks.
"""

import sys
from datetime import timedelta

from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.worker_pool import WorkerPool

from benchmarks.peers.common import QUEUE, URL, mark, take

ABOUT = {
    "package": "rq",
    "acks": "when a job has ended; one whose worker dies fails when its heartbeat is missed, and "
    "runs again only if it has retries",
    "delays": "a sorted set, which a scheduler looks at every second",
}
_WORK = ["python", "-m", "benchmarks.peers.rq"]
WORKERS = {
    "RQ Worker, 1": {"command": [*_WORK, "fork"], "jobs": 100},
    "RQ Worker, 2": {"command": [*_WORK, "pool"], "jobs": 200},
    "RQ SimpleWorker, 1": {"command": [*_WORK, "simple"], "jobs": 400},
}


FAULTS = {
    "command": [*_WORK, "scheduler"],
    "settings": "Worker with its scheduler, defaults, 1 at once",
}

connection = Redis.from_url(URL)
queue = Queue(QUEUE, connection=connection)


def job(number):
    mark(number)


def enqueue(numbers, worker):
    queue.enqueue_many([Queue.prepare_data("benchmarks.peers.rq.job", (n,)) for n in numbers])


def held(number, seconds):
    take(number, seconds)


def hold(delays, seconds):
    for number, delay in delays.items():
        if delay:
            queue.enqueue_in(timedelta(seconds=delay), "benchmarks.peers.rq.held", number, seconds)
        else:
            queue.enqueue("benchmarks.peers.rq.held", number, seconds)


def work(kind):
    if kind == "pool":
        WorkerPool([QUEUE], connection, num_workers=2).start(logging_level="WARNING")
    elif kind == "scheduler":
        Worker([QUEUE], connection=connection).work(logging_level="WARNING", with_scheduler=True)
    else:
        worker = {"fork": Worker, "simple": SimpleWorker}[kind]
        worker([QUEUE], connection=connection).work(logging_level="WARNING")


if __name__ == "__main__":
    import benchmarks.peers.rq  # under the name by which jobs will ask for it

    benchmarks.peers.rq.work(sys.argv[1])
