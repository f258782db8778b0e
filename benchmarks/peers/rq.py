# /// script
# requires-python = ">=3.11"
# dependencies = ["rq>=2.12,<3", "redis[hiredis]"]
# ///
"""RQ: its Worker forks for each job, its SimpleWorker runs them in its own process.

As its documentation advises, workers are started by a program that has imported the jobs' module
before it forks.
"""

import sys

from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.worker_pool import WorkerPool

from benchmarks.peers.common import QUEUE, URL, mark, take, when

ABOUT = {
    "name": "RQ",
    "best": "RQ SimpleWorker, scheduler",
    "package": "rq",
    "acks": "when a job has ended; a job whose worker dies fails when its heartbeat is missed, and "
    "runs again only if it has retries",
    "delays": "a sorted set, which a scheduler looks at every second",
    "by_id": True,
}
_WORK = ["python", "-m", "benchmarks.peers.rq"]
WORKERS = {
    "RQ Worker, 1": {"command": [*_WORK, "fork"], "jobs": 100},
    "RQ Worker, 2": {"command": [*_WORK, "pool"], "jobs": 200},
    "RQ SimpleWorker, 1": {"command": [*_WORK, "simple"], "jobs": 400},
    "RQ SimpleWorker, scheduler": {"command": [*_WORK, "punctual"], "jobs": 400},
}


FAULTS = {
    "command": [*_WORK, "scheduler"],
    "settings": "Worker with its scheduler, defaults, 1 at once",
}

connection = Redis.from_url(URL)
queue = Queue(QUEUE, connection=connection)


def job(number):
    mark(number)


def held(number, seconds):
    take(number, seconds)


def one(task, args, at):
    if at is None:
        queue.enqueue(f"benchmarks.peers.rq.{task}", *args)
    else:
        queue.enqueue_at(when(at), f"benchmarks.peers.rq.{task}", *args)


def many(calls):
    if calls[0][2] is not None:
        raise NotImplementedError
    queue.enqueue_many(
        [Queue.prepare_data(f"benchmarks.peers.rq.{task}", args) for task, args, _ in calls]
    )


def work(kind):
    if kind == "pool":
        WorkerPool([QUEUE], connection, num_workers=2).start(logging_level="WARNING")
    elif kind == "scheduler":
        Worker([QUEUE], connection=connection).work(logging_level="WARNING", with_scheduler=True)
    else:
        worker = (Worker if kind == "fork" else SimpleWorker)([QUEUE], connection=connection)
        worker.work(logging_level="WARNING", with_scheduler=kind == "punctual")


if __name__ == "__main__":
    import benchmarks.peers.rq  # under the name by which jobs will ask for it

    benchmarks.peers.rq.work(sys.argv[1])
