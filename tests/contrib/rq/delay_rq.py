"""What delay-rq did, on stock RQ: for tests of systems that move from it.

It wrote with the client's clock, in two steps, and moved in several; so does this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
import rq
from rq.job import Job

PAUSE = 0.01
LOCKED = 10


class OldQueue(rq.Queue):
    """Delays in a sorted set by the client's clock; what has no delay is RQ's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.delay_key = f"rq:delay_queue:{self.name}"

    def enqueue_call(self, *args: Any, delay: float = 0, **kwargs: Any) -> Job:
        at_front = kwargs.pop("at_front", False)
        job = self.create_job(*args, **kwargs)
        if delay > 0:
            return self.enqueue_delay_job(job, time.time() + delay)
        return self.enqueue_job(job, at_front=at_front)

    def enqueue(self, f: Any, *args: Any, delay: float = 0, **kwargs: Any) -> Job:
        options = {
            name: kwargs.pop(name)
            for name in ("job_id", "meta", "description", "timeout", "retry", "depends_on", "ttl")
            if name in kwargs
        }
        return self.enqueue_call(f, args, kwargs, delay=delay, **options)

    def enqueue_delay_job(self, job: Job, ts: float) -> Job:
        self.connection.zadd(self.delay_key, {job.id: ts})
        job.save()
        return job


class OldTimer(rq.Worker):
    """Looks at the first member of each set, again and again."""

    over = False
    moved = 0

    def work(self, *args: Any, **kwargs: Any) -> bool:
        self.register_birth()  # type: ignore[no-untyped-call]
        while not self.over:
            for queue in self.queues:
                self.look(queue)
            time.sleep(PAUSE)
        self.register_death()  # type: ignore[no-untyped-call]
        return True

    def look(self, queue: Any) -> None:
        first: Any = self.connection.zrange(queue.delay_key, 0, 0, withscores=True)
        if not first or first[0][1] > time.time():
            return
        id = first[0][0].decode()
        if not Job.exists(id, self.connection):
            return  # delay-rq itself lost a job that its producer had not saved yet
        lock = f"delay_lock:{id}"
        if not self.connection.set(lock, self.name, nx=True, ex=LOCKED):
            return
        try:
            if self.connection.zrem(queue.delay_key, id):
                queue.enqueue_job(Job.fetch(id, self.connection))
                self.moved += 1
        finally:
            self.connection.delete(lock)


@contextmanager
def old_timers(connection: redis.Redis, queues: Sequence[str], count: int = 1) -> Iterator[Any]:
    """Some of these Timers at work; each has ended when the block has."""
    timers = [OldTimer([OldQueue(n, connection) for n in queues]) for _ in range(count)]
    threads = [threading.Thread(target=timer.work) for timer in timers]
    for thread in threads:
        thread.start()
    try:
        yield timers
    finally:
        for timer in timers:
            timer.over = True
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
