"""What jobs cost that have to do with each other, in commands a job; and those beside them.

Enqueued together, and then claimed and settled by the hundred in one round trip each, as a busy
worker does it, with no worker's timing in between. The bounds are as those in `test_counts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from bide import Queue, Unique, batch, debounce, fan_in, throttle
from bide.model.ids import new_id
from bide.model.job import Claimed
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from tests.cost.test_counts import Meter, told
from tests.support import jobs

COUNT = 1_000
LEASE = 10_000_000
TASK = "app:send"


def work(queue: Queue, most: int = 100) -> int:
    """Claim and settle until nothing is due; how many jobs that were."""
    done, seq, held = 0, 0, list[Claimed]()
    worker = new_id()
    while True:
        settles = [Settle(job.id, job.token, "complete", "", b"") for job in held]
        calls: list[Any] = [worker_commands.settle(queue.keys, settles)] if settles else []
        seq += 1
        claim = worker_commands.claim(queue.keys, worker, seq, most, LEASE, 0, 2)
        *_, got = queue._client.run_many([*calls, claim])
        held = got.jobs
        done += len(held)
        if not held:
            return done


def many(queue: Queue, **options: Any) -> list[Prepared]:
    return [queue.prepare(TASK, (n,), **options) for n in range(COUNT)]


def of_own_groups(queue: Queue) -> list[Prepared]:
    return [queue.prepare(TASK, (n,), group=f"g{n}") for n in range(COUNT)]


def of_ten_groups(queue: Queue) -> list[Prepared]:
    return [queue.prepare(TASK, (n,), group=f"g{n % 10}") for n in range(COUNT)]


def of_one_wide_group(queue: Queue) -> list[Prepared]:
    return many(queue, group="g", group_concurrency=COUNT)


def in_chains(queue: Queue) -> list[Prepared]:
    """Each second waits for the one before it."""
    found: list[Prepared] = []
    for n in range(COUNT // 2):
        first = queue.prepare(TASK, (n,))
        found += [first, queue.prepare(TASK, (n,), depends_on=first)]
    return found


def fanned_in(queue: Queue) -> list[Prepared]:
    """Ten at a time are waited for by one."""
    found: list[Prepared] = []
    for _ in range(COUNT // 10):
        parents = [queue.prepare(TASK, (n,)) for n in range(9)]
        found += fan_in(parents, completed=queue.prepare(TASK, (0,)))
    return found


CASES: dict[str, tuple[Callable[[Queue], Sequence[Prepared]], int, float, float]] = {
    "plain": (many, COUNT, 1.05, 0.55),
    "that expire": (lambda q: many(q, expires="1h"), COUNT, 4.2, 0.6),
    "unique": (lambda q: many(q, unique=Unique()), COUNT, 22, 0.6),
    "kept out": (lambda q: many(q, unique=Unique(key=1)), 1, 10.5, 0),
    "pushed": (lambda q: many(q, unique=debounce("1h")), 0, 18, 0),
    "throttled": (lambda q: many(q, unique=throttle("1/1h")), 1, 19, 0),
    "batched": (lambda q: many(q, unique=batch("1h", max_size=100)), 10, 15, 0),
    "of a group of its own": (of_own_groups, COUNT, 9.5, 9.7),
    "of ten groups": (of_ten_groups, COUNT, 4.9, 18),
    "of one wide group": (of_one_wide_group, COUNT, 4.4, 22),
    "that waits, or is waited for": (in_chains, COUNT, 5.4, 8.6),
    "of ten, of which one waits for nine": (fanned_in, COUNT, 3.8, 9),
}
"""How they are made, how many run now; commands to enqueue one, and to claim and settle one, or 0
where few run."""


@pytest.fixture
def queue(url: str) -> Any:
    queue = Queue("mail", url=url)
    queue.enqueue(jobs.add, 1)  # connects, loads the script, registers the queue
    work(queue)
    yield queue
    queue.close()


@pytest.fixture
def direct(url: str) -> Any:
    with redis.Redis.from_url(url) as direct:
        yield direct


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_job(queue: Queue, direct: redis.Redis, kind: str) -> None:
    make, runs, to_add, to_run = CASES[kind]
    made = make(queue)
    meter = Meter(direct)
    queue.enqueue_many(made)
    added = told(f"commands to enqueue one {kind}", meter.read().total() / COUNT, to_add)
    meter = Meter(direct)
    assert work(queue) == runs
    if to_run:
        assert told(f"commands to run one {kind}", meter.read().total() / COUNT, to_run)
    assert added


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"rate": "1000000/s", "burst": 1000}, 0.6), ({"concurrency": 1000}, 0.6)],
    ids=["rate", "concurrency"],
)
def test_a_job_of_a_limited_queue(
    queue: Queue, direct: redis.Redis, limits: dict[str, Any], most: float
) -> None:
    queue.configure(**limits)
    queue.enqueue_many(many(queue))
    meter = Meter(direct)
    assert work(queue) == COUNT
    assert told(f"commands to run one under {limits}", meter.read().total() / COUNT, most)


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 3.7), ({"group": "g"}, 6.6), ({"unique": Unique()}, 12.2)],
    ids=["plain", "of a group", "unique"],
)
def test_a_firing(queue: Queue, direct: redis.Redis, options: dict[str, Any], most: float) -> None:
    """And, of a hundred schedules, none that is not due costs anything."""
    for n in range(100):
        queue.schedules.upsert(f"later-{n}", TASK, (n,), every="1h")
    queue.schedules.upsert("now", TASK, (1,), every="10s", missed="all", **options)
    page = queue._client.run(schedule_commands.read_schedules(queue.keys, ["now"]))
    (first,) = page.schedules[0].times
    record = direct.hget(queue.keys["schedule"], "now")
    assert isinstance(record, bytes)
    back = first - 1_000 * 10_000_000  # as if nobody had looked since
    seen = page.schedules[0].seen_us
    record = record.replace(b" %d " % seen, b" %d " % (back - 1)).replace(
        b": %d" % first, b": %d" % back
    )
    direct.hset(queue.keys["schedule"], "now", record)
    direct.zadd(queue.keys["schedules"], {"now": back})
    meter = Meter(direct)
    seq = 0
    while queue.schedules.fetch("now").fired < 1_000:
        seq += 1
        queue._client.run(worker_commands.claim(queue.keys, "w2", seq, 0, LEASE, 1, 0))
    assert told("commands a firing", meter.read().total() / 1_000, most)
    assert seq == 50
