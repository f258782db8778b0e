"""What a job costs, in counts that no busy machine changes: commands, round trips, bytes, wakes.

Each bound is what it was when it was written down, as printed by these tests, with the little room
that a change of the server's version or of a batch's boundary takes. One that is exceeded is a
regression of everybody's every job: make it cheap again, or move the bound and say why.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from bide import DelayQueue, Queue
from bide.client import aio
from bide.client import blocking as sync
from bide.protocol.commands.enqueue import CHUNK
from tests.support import jobs
from tests.support.workers import MODULES, at_work, burst, claims

JOBS = 1_000
SCRIPTS = "evalsha"
OURS = {"info", "config", "flushall", "select", "hello", "client", "ping"}
"""What only the tests send, or a connection once."""
LOOK_EVERY = 2.0
"""Seconds after which a worker looks by itself, at the soonest."""


class Meter:
    """Commands that a server has been given, by clients and by scripts."""

    def __init__(self, direct: redis.Redis) -> None:
        self._direct = direct
        self._before = self._read()

    def _read(self) -> Counter[str]:
        stats: Any = self._direct.info("commandstats")
        found = ((name.removeprefix("cmdstat_"), one["calls"]) for name, one in stats.items())
        return Counter({name: n for name, n in found if name.split("|")[0] not in OURS})

    def read(self) -> Counter[str]:
        """Since the meter was made."""
        return self._read() - self._before


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=url)
    queue.enqueue(jobs.add, 1)  # connects, loads the script, registers the queue
    queue.purge()
    yield queue
    queue.close()


@pytest.fixture
def direct(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as direct:
        yield direct


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Round trips: of blocking clients, of clients on an event loop."""
    made: Counter[str] = Counter()
    blocking, begun = sync.Client.attempt_many, sync.Client.begin
    awaited = aio.AsyncClient.attempt_many

    def counted(self: sync.Client, commands: Any) -> Any:
        made["blocking"] += 1
        return blocking(self, commands)

    def counted_ahead(self: sync.Client, commands: Any, behind: Any = None) -> Any:
        made["blocking"] += 1
        return begun(self, commands, behind)

    async def counted_too(self: aio.AsyncClient, commands: Any) -> Any:
        made["awaited"] += 1
        return await awaited(self, commands)

    monkeypatch.setattr(sync.Client, "attempt_many", counted)
    monkeypatch.setattr(sync.Client, "begin", counted_ahead)
    monkeypatch.setattr(aio.AsyncClient, "attempt_many", counted_too)
    return made


def told(what: str, count: float, most: float) -> bool:
    print(f"{what}: {count:.3f} (at most {most:g})")
    return count <= most


def test_an_enqueue_is_one_script_in_one_trip(
    queue: Queue, direct: redis.Redis, trips: Counter[str]
) -> None:
    meter = Meter(direct)
    for n in range(100):
        queue.enqueue(jobs.add, n, delay=60)
    used = meter.read()
    assert (used[SCRIPTS], trips["blocking"]) == (100, 100)
    assert told("commands an enqueue", used.total() / 100, 8)


def test_many_share_scripts_and_a_trip(
    queue: Queue, direct: redis.Redis, trips: Counter[str]
) -> None:
    prepared = [queue.prepare(jobs.add, (n,), delay=60) for n in range(JOBS)]
    meter = Meter(direct)
    queue.enqueue_many(prepared)
    used = meter.read()
    assert (used[SCRIPTS], trips["blocking"]) == (JOBS / CHUNK, 1)
    assert told("commands a job", used.total() / JOBS, 1.05)


@pytest.mark.slow
def test_a_busy_worker_makes_a_trip_a_batch(
    queue: Queue, direct: redis.Redis, trips: Counter[str]
) -> None:
    queue.enqueue_many([queue.prepare(jobs.add, (n,)) for n in range(JOBS)])
    meter, before = Meter(direct), trips["awaited"]
    assert burst(queue, concurrency=100) == JOBS
    used = meter.read()
    assert told("trips a job", (trips["awaited"] - before) / JOBS, 0.03)
    assert told("scripts a job", used[SCRIPTS] / JOBS, 0.06)
    assert told("commands a job", used.total() / JOBS, 1.2)


def test_an_item_pushed_and_popped(url: str, direct: redis.Redis, trips: Counter[str]) -> None:
    with closing(DelayQueue("pile", url=url)) as pile:
        pile.push({"n": 0})
        pile.pop(num=1)
        meter, before = Meter(direct), trips["blocking"]
        for n in range(100):
            pile.push({"n": n})
        assert len(pile.pop(num=100)) == 100
        used = meter.read()
    assert told("trips an item", (trips["blocking"] - before) / 100, 1.02)
    assert told("commands an item", used.total() / 100, 7.5)


def test_a_delayed_job_takes_few_bytes(queue: Queue, direct: redis.Redis) -> None:
    rng = random.Random(0)

    def used() -> int:
        info: Any = direct.info("memory")
        return int(info["used_memory"])

    count, before = 20_000, used()
    for _ in range(count // 500):
        delays = [rng.uniform(3600, 86_400) for _ in range(500)]
        queue.enqueue_many([queue.prepare("app:send", (42,), delay=delay) for delay in delays])
    info: Any = direct.info("server")
    is_valkey = info.get("server_name") == "valkey"
    assert told("bytes a delayed job", (used() - before) / count, 170 if is_valkey else 265)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_a_job_wakes_one_worker(queue: Queue, direct: redis.Redis, workers: int) -> None:
    """Whatever else waits sleeps on; what idle workers do by themselves is the rest."""
    count = 100
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(at_work(queue, modules=MODULES))
        began, before = time.monotonic(), claims(direct, queue)
        for n in range(count):
            assert queue.enqueue(jobs.add, n).wait(60) == n
        made = claims(direct, queue) - before
        looks = workers * (time.monotonic() - began) / LOOK_EVERY
    assert told("claims a job", (made - looks) / count, 1.3)
