"""The server goes away and comes back, or not: workers go on, and end when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from bide import Queue
from bide.embedded import Server
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.worker_pool import JOBS, WorkerPool

pytestmark = pytest.mark.slow


@pytest.fixture
def durable(tmp_server: Callable[..., Server]) -> Server:
    """A server that keeps its data when it is killed."""
    return tmp_server(persist=True)


@pytest.fixture
def at(durable: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(durable.url) as client:
        yield client


@pytest.fixture
def queue(durable: Server) -> Iterator[Queue]:
    queue = Queue("mail", url=durable.url)
    yield queue
    queue.close()


def test_a_worker_goes_on_when_the_server_is_back(
    durable: Server, queue: Queue, at: redis.Redis, worker_pool: WorkerPool
) -> None:
    """What runs ends while nobody is there to be told; what waits begins when somebody is."""
    worker = worker_pool.worker(durable.url, "-q", "mail", "-c", "4")
    running = [queue.enqueue(f"{JOBS}:held", "gate").id for _ in range(4)]
    worker_pool.ledger.wait("begun", 4)
    waiting = [queue.enqueue(f"{JOBS}:quick").id for _ in range(6)]
    delayed = queue.enqueue(f"{JOBS}:quick", delay=0.5)
    durable.kill()
    worker_pool.open_gate("gate")
    worker_pool.ledger.wait("done", 4)
    worker.says("Trying again until it works")
    durable.restart()
    everything = {*running, *waiting, delayed.id}
    eventually(lambda: assert_legal(at, "mail").sets["completed"].keys() == everything)
    assert worker_pool.ledger.count("begun") == dict.fromkeys(everything, 1)
    assert "was refused" not in worker.log
    late = min(line.token - line.due_us for line in worker_pool.ledger.lines("begun", delayed.id))
    assert late >= 0
    worker.terminate()
    assert worker.wait() == 0


def test_a_server_killed_again_and_again_loses_no_job_and_runs_none_twice(
    durable: Server, queue: Queue, at: redis.Redis, worker_pool: WorkerPool
) -> None:
    workers = worker_pool.workers_at_work(2, durable.url, "-q", "mail", "-c", "5")
    ids = [f"job-{i:03}" for i in range(200)]
    for i, id in enumerate(ids):
        queue.enqueue(f"{JOBS}:quick", job_id=id, delay=(i % 5) / 10)
        if i % 50 == 25:
            durable.kill()
            durable.restart()
    eventually(lambda: assert_legal(at, "mail").sets["completed"].keys() == set(ids))
    assert worker_pool.ledger.count("begun") == dict.fromkeys(ids, 1)
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0, 0]


def test_a_worker_says_at_once_that_an_outage_has_another_reason(
    durable: Server, at: redis.Redis, worker_pool: WorkerPool
) -> None:
    """First the line is down; when it is up again, the server wants a password."""
    with Proxy(durable.url) as line:
        (worker,) = worker_pool.workers_at_work(1, line.url, "-q", "mail")
        line.refuse()
        worker.says("Trying again until it works")
        at.config_set("requirepass", "secret")
        line.accept()
        worker.says("refuses access")
        worker.kill()
    at.config_set("requirepass", "")


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_worker_ends_within_its_grace_though_the_server_is_down(
    durable: Server, queue: Queue, worker_pool: WorkerPool, busy: bool
) -> None:
    (worker,) = worker_pool.workers_at_work(1, durable.url, "-q", "mail", "--grace", "1s")
    if busy:
        queue.enqueue(f"{JOBS}:held", "gate")
        queue.enqueue(f"{JOBS}:held_in_thread", "gate")
        worker_pool.ledger.wait("begun", 2)
    durable.kill()
    with worker_pool.witness.within(1 + 3):
        worker.terminate()
        assert worker.wait() == 0


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_worker_ends_soon_after_its_grace_though_the_line_is_silent(
    one_url: str, proxy: Proxy, direct: redis.Redis, worker_pool: WorkerPool, busy: bool
) -> None:
    """No reply, and no sign of that: nobody waits for the time-outs of the calls under way."""
    queue = Queue("mail", url=one_url)
    (worker,) = worker_pool.workers_at_work(1, proxy.url, "-q", "mail", "--grace", "1s")
    queue.enqueue(f"{JOBS}:quick")
    eventually(lambda: assert_legal(direct, "mail").sets["completed"])
    if busy:
        queue.enqueue(f"{JOBS}:held", "gate")
        worker_pool.ledger.wait("begun", 2)
    queue.close()
    proxy.hold()
    with worker_pool.witness.within(1 + 3):
        worker.terminate()
        worker.says(" is stopping: ")
        worker_pool.open_gate("gate")
        assert worker.wait() == 0
