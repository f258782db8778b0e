# /// script
# requires-python = ">=3.11"
# dependencies = ["celery[redis]>=5.6,<6", "redis[hiredis]"]
# ///
"""Celery: its default pool, of processes that are forked once.

As its guide to optimizing advises for short tasks, each process prefetches many (128), and results
that nobody reads are ignored; nothing is said between workers, and no rates are limited.
"""

from functools import cache

from celery import Celery

from benchmarks.peers.common import QUEUE, URL, mark, take, when

ABOUT = {
    "name": "Celery",
    "best": "Celery prefork, 2",
    "package": "celery",
    "acks": "before a job runs (acks_late is off): a job whose process dies is lost; what was "
    "prefetched comes back after an hour",
    "delays": "the memory of the worker that has taken the message",
    "by_id": False,
}
WORKERS = {
    "Celery prefork, 2": {
        "command": [
            *("celery", "-A", "benchmarks.peers.celery", "worker", "-P", "prefork", "-c", "2"),
            *("--loglevel", "WARNING", "-Q", QUEUE),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
        "jobs": 1_500,
    },
}

FAULTS = {
    "command": ["celery", "-A", "benchmarks.peers.celery", "worker", "-c", "4", "-Q", QUEUE],
    "settings": "defaults (acks early) except prefetching (128), prefork, 4 at once",
}

app = Celery("bench", broker=URL.replace("unix://", "redis+socket://"))
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
)


@app.task(name="job")
def job(number):
    mark(number)


@cache
def _producer():
    return app.producer_pool.acquire()


def one(task, args, at):
    app.tasks[task].apply_async(args, eta=when(at), producer=_producer())


@app.task(name="held")
def held(number, seconds):
    take(number, seconds)
