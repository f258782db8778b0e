"""A worker and a producer on a line that keeps losing messages: each job runs exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import redis

from bide import Queue, Retry
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.worker_pool import WorkerPool

pytestmark = pytest.mark.slow

JOBS = 150


@pytest.fixture
def queue(proxy: Proxy) -> Iterator[Queue]:
    """A producer that has reached its server before the trouble begins."""
    queue = Queue("mail", url=proxy.url)
    queue.counts()
    yield queue
    queue.close()


@pytest.mark.parametrize("k", [5, 7])
def test_every_kth_reply_lost(
    proxy: Proxy, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool, k: int
) -> None:
    (worker,) = worker_pool.workers_at_work(1, proxy.url, "-q", "mail", "-c", "8")
    proxy.lose_every_reply(k)
    _all_run_once(proxy, queue, direct, worker_pool)
    assert "was refused" not in worker.log


def test_requests_and_replies_lost_at_random(
    proxy: Proxy, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    workers = worker_pool.workers_at_work(2, proxy.url, "-q", "mail", "-c", "8")
    proxy.lose_at_random(0.06, seed)
    _all_run_once(proxy, queue, direct, worker_pool)
    assert all("was refused" not in worker.log for worker in workers)


def test_a_claim_whose_reply_hangs_is_made_again_and_its_jobs_run_once(
    one_url: str, proxy: Proxy, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """A half-open line: the worker holds jobs that it does not know of, until it asks again."""
    queue = Queue("mail", url=one_url)
    worker, other = (worker_pool.worker(url, "-q", "mail") for url in (proxy.url, one_url))
    for process in (worker, other):
        process.says(" serves ")
    other.freeze()
    proxy.hang_reply_with(b"quick")
    ids = {queue.enqueue("tests.support.ledger_jobs:quick").id for _ in range(5)}
    eventually(lambda: proxy.lost)
    taken = assert_legal(direct, "mail").sets["active"].keys()
    assert taken
    other.thaw()
    worker.says("no reply within")
    eventually(lambda: assert_legal(direct, "mail").sets["completed"].keys() == ids)
    assert worker_pool.ledger.count("begun") == dict.fromkeys(ids, 1)
    begun = worker_pool.ledger.lines("begun")
    assert {line.pid for line in begun if line.id in taken} == {worker.pid}
    assert assert_legal(direct, "mail").total("reclaimed") == 0
    queue.close()


def test_a_worker_that_is_refused_for_a_while_goes_on(
    one_url: str, proxy: Proxy, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    (worker,) = worker_pool.workers_at_work(1, proxy.url, "-q", "mail")
    running = queue.enqueue("tests.support.ledger_jobs:held", "gate")
    worker_pool.ledger.wait("begun", 1)
    proxy.refuse()
    waiting = queue.enqueue("tests.support.ledger_jobs:quick")
    worker_pool.open_gate("gate")
    worker.says("Trying again until it works")
    proxy.accept()
    ids = {running.id, waiting.id}
    eventually(lambda: assert_legal(direct, "mail").sets["completed"].keys() == ids)
    assert worker_pool.ledger.count("begun") == dict.fromkeys(ids, 1)
    queue.close()


def _all_run_once(proxy: Proxy, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool) -> None:
    """Enqueue jobs of several kinds over the bad line; each attempt runs once, and none is lost."""
    kinds = [
        queue.prepare("tests.support.ledger_jobs:quick"),
        queue.prepare("tests.support.ledger_jobs:quick", delay=0.2),
        queue.prepare(
            "tests.support.ledger_jobs:fails_until", [2], retry=Retry(3, "fixed", base=0.05)
        ),
    ]
    jobs = [kinds[i % 3]._replace(id=f"job-{i:03}") for i in range(JOBS)]
    for i in range(0, JOBS, 30):
        queue.enqueue_many(jobs[i : i + 30])
    eventually(lambda: worker_pool.ledger.count("done").keys() >= {job.id for job in jobs})
    lost = proxy.lost
    proxy.behave()
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == JOBS)
    runs = [(line.id, line.attempt) for line in worker_pool.ledger.lines("begun")]
    again = [job.id for i, job in enumerate(jobs) if i % 3 == 2]
    assert sorted(runs) == sorted([(job.id, 1) for job in jobs] + [(id, 2) for id in again])
    assert worker_pool.ledger.count("done") == dict.fromkeys((job.id for job in jobs), 1)
    assert lost > 2
    for worker in worker_pool.workers:
        worker.terminate()
    assert [worker.wait() for worker in worker_pool.workers] == [0] * len(worker_pool.workers)
