"""`bide fsck` while jobs come and go: no false alarm, and repairs that lose nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from bide import Queue, Retention, Retry
from bide.cli.health import Found, look
from bide.client import blocking
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK
from bide.views._sync import Site
from tests.support.invariants import assert_legal
from tests.support.worker_pool import JOBS, WorkerPool
from tests.support.workload import Workload

pytestmark = pytest.mark.slow

KEYS = keys_of("mail")
JOBS_EACH, STEPS = 200, 250


@pytest.fixture
def site(one_url: str) -> Iterator[Site]:
    site = Site(one_url, None)
    yield site
    site.client.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_no_verb_leaves_anything_to_be_found(
    one_url: str, seed: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is done, and however the clock is set."""
    monkeypatch.setattr(site, "client", blocking.Client(one_url, clock=TEST_CLOCK))
    workload = Workload(one_url, "mail", seed)
    with closing(Queue("mail", url=one_url)) as queue:
        queue.enqueue("app:task")  # so that it is in the list of queues
    for step, verb in enumerate(workload.steps(STEPS)):
        assert list(look(site, (), step % 2 == 1)) == [], f"step {step}: {verb}"
    workload.close()
    site.client.close()


def test_a_parent_that_is_removed_piece_by_piece_is_no_error(one_url: str, site: Site) -> None:
    """What it was kept for, claims forget later."""
    with closing(Queue("mail", url=one_url)) as queue:
        first = queue.enqueue("app:task")
        prepared = [queue.prepare("app:task", depends_on=first) for _ in range(250)]
        queue.enqueue_many(prepared)
        (job,) = site.client.run(worker_commands.claim(KEYS, "w", 1, 1, 10_000_000, 0)).jobs
        done = worker_commands.Settle(job.id, job.token, "complete")
        site.client.run(worker_commands.settle(KEYS, [done]))
        site.client.run(worker_commands.claim(KEYS, "w", 2, 0, 10_000_000, 0))
        first.delete()
        assert queue._client._redis.zcard(queue.keys["edges"]) == 51
    assert list(look(site, (), False)) == []


class Checking(threading.Thread):
    """Repairs again and again, until it is told to stop."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self._over = threading.Event()
        self.found: list[Found] = []
        self.rounds = 0

    def run(self) -> None:
        while not self._over.is_set():
            self.found += look(self._site, (), True)
            self.rounds += 1

    def __enter__(self) -> Checking:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def queue(one_url: str, worker_pool: WorkerPool) -> Iterator[Queue]:
    """A queue that two workers serve, and that keeps little."""
    with closing(Queue("mail", url=one_url)) as queue:
        queue.configure(retention=Retention(count=20))
        worker_pool.workers_at_work(2, one_url, "-q", "mail", "-c", "5")
        yield queue


def test_jobs_that_move_are_no_error(queue: Queue, site: Site, worker_pool: WorkerPool) -> None:
    with Checking(site) as checking:
        for i in range(JOBS_EACH):
            queue.enqueue_call(f"{JOBS}:quick", delay=i % 10 / 10, priority=i % 10, retry=Retry(1))
        lines = worker_pool.ledger.wait("done", JOBS_EACH)
    assert len(lines) == JOBS_EACH
    assert checking.rounds > 2
    assert checking.found == []


def test_what_is_broken_under_way_is_repaired_and_runs_once(
    queue: Queue,
    site: Site,
    worker_pool: WorkerPool,
    direct: redis.Redis,
) -> None:
    with Checking(site) as checking:
        for i in range(JOBS_EACH):
            job = queue.enqueue_call(f"{JOBS}:quick", delay=0.5)
            if i % 3 == 0:
                direct.zrem(KEYS.names["due"][4], job.id)
            elif i % 3 == 1:
                direct.zadd(KEYS["completed"], {job.id: time.time_ns() // 1000})  # no retention yet
        worker_pool.ledger.wait("done", JOBS_EACH)
    assert set(worker_pool.ledger.count("done").values()) == {1}
    assert {each.finding.kind for each in checking.found} >= {"unlisted", "sets"}
    assert list(look(site, (), False)) == []
    assert_legal(direct, "mail")
