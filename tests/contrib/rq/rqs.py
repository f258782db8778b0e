"""What tests of delayed RQ jobs do again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import rq
from rq.job import Job

from bide.contrib.rq import DelayQueue, Timer
from bide.contrib.rq.queue import WAKEUPS
from tests.support.eventually import PATIENCE, eventually


def like_rq(url: str) -> redis.Redis:
    """A connection as users of RQ make it."""
    return redis.Redis.from_url(url)


def burst(*queues: rq.Queue | str, **options: Any) -> int:
    """Move what is due now; how many that were."""
    return Timer(list(queues), **options).work(burst=True)


def due_now(queue: DelayQueue, job: Job) -> None:
    """Have a delayed job due at once, and moved."""
    assert queue.reschedule(job, 0)
    burst(queue)


def run(*queues: rq.Queue) -> None:
    """RQ's worker, in this process, until the lists are empty."""
    rq.SimpleWorker(list(queues), connection=queues[0].connection).work(burst=True)


def server_now(connection: redis.Redis) -> float:
    seconds, us = connection.time()
    return float(seconds) + us / 1e6


def due(queue: DelayQueue, job: Job) -> float | None:
    """The score in the sorted set, in seconds."""
    return queue.connection.zscore(queue.delay_key, job.id)


@contextmanager
def at_work(first: rq.Queue, *others: rq.Queue | str, **options: Any) -> Iterator[Timer]:
    """A Timer at work in a thread, which gets wake-up messages; it has ended when the block has."""
    timer = Timer([first, *others], **options)
    thread = threading.Thread(target=timer.work)
    before = hearing(first)
    thread.start()
    try:
        eventually(lambda: hearing(first) > before)
        yield timer
    finally:
        timer.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def hearing(queue: rq.Queue) -> int:
    """How many Timers listen for a queue's wake-up messages."""
    ((_, count),) = queue.connection.pubsub_numsub(f"{WAKEUPS}{queue.name}")
    return int(count)
