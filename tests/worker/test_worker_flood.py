"""Jobs that end faster than their outcomes travel: what a worker holds stays what it has slots for.

What it holds is what would run again if it was killed.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from bide import Queue
from tests.support import jobs
from tests.support.workers import at_work

MANY = 3_000
SLOTS = 4
AHEAD = {"async": 124, "thread": 124, "process": SLOTS * 50}
"""Jobs that may wait for a slot, while jobs are quick."""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async", "thread", "process"])
@pytest.mark.parametrize("kind", ["raise", "arguments", "unreadable"])
def test_a_flood_of_failing_jobs_takes_no_more_than_the_slots(
    queue: Queue, raw: redis.Redis, executor: Any, kind: str
) -> None:
    task = jobs.fail_async if executor == "async" else jobs.fail
    name = f"{jobs.__name__}:{task.__name__}"  # so that the arguments are not checked here
    args = () if kind == "arguments" else ("down",)
    for _ in range(MANY // 500):
        queue.enqueue_many([queue.prepare(name, args) for _ in range(500)])
    if kind == "unreadable":
        stored: Any = raw.hkeys(queue.keys["jobs"])
        raw.hset(queue.keys["jobs"], mapping=dict.fromkeys(stored, b"{unreadable"))
    most = 0
    with at_work(queue, concurrency=SLOTS, executor=executor):
        until = time.monotonic() + 60
        while queue.counts().failed < MANY:
            held: Any = raw.zcard(queue.keys["active"])
            most = max(most, held)
            assert time.monotonic() < until
    assert 0 < most <= SLOTS + AHEAD[executor]
