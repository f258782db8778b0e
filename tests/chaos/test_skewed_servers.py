"""True servers whose clocks are wrong: set forward and back, and failed over to a node that errs.

Workers are processes, as ever, and live through it. Their leases are short; what they hold, a gate
holds, so that the test says when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from bide import Queue
from bide.embedded import Server
from tests.chaos.replicas import Pair, pair
from tests.conftest import BINARIES
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.skewed import Clock
from tests.support.worker_pool import JOBS, WorkerPool, WorkerProcess

pytestmark = pytest.mark.slow

HOUR = 3600.0
LEASE = 2.0
OPTIONS = ("-q", "mail", "--lease", f"{LEASE}s")


class Scene:
    """A queue on a server with a clock of its own, and workers that reach it over a line."""

    def __init__(self, server: Server, clock: Clock, worker_pool: WorkerPool, proxy: Proxy) -> None:
        self.clock = clock
        self.worker_pool = worker_pool
        self.proxy = proxy
        self.queue = Queue("mail", url=proxy.url)
        self.direct = redis.Redis.from_url(server.url)

    def set_clock(self, seconds: float) -> None:
        """The server's clock is set; some servers look at it only now and then."""
        self.clock.set(seconds)
        eventually(lambda: abs(self.server_ahead() - seconds) < 5)

    def server_ahead(self) -> float:
        """Seconds by which the server's clock is ahead of this machine's."""
        whole, us = self.direct.time()
        return whole + us / 1e6 - time.time()

    def workers(self, count: int) -> list[WorkerProcess]:
        return self.worker_pool.workers_at_work(count, self.proxy.url, *OPTIONS)

    def hold(self, *gates: str) -> None:
        """Have jobs run, each until its gate is opened."""
        for gate in gates:
            self.queue.enqueue(f"{JOBS}:held", gate, job_id=gate)
        self.worker_pool.ledger.wait("begun", len(gates))

    def run_one(self, id: str, delay: float = 0) -> None:
        """A job runs, and not before it is due by the server's clock."""
        self.queue.enqueue(f"{JOBS}:quick", delay=delay, job_id=id)
        eventually(lambda: self.worker_pool.ledger.lines("done", id))

    def check(self, completed: set[str]) -> None:
        """Each ran once, none early by the server's clock, and all is as it should be.

        Some ran again where the machine did not run a worker, or the server, for most of a lease.
        """
        eventually(lambda: self.queue.counts().completed == len(completed))
        begun = self.worker_pool.ledger.count("begun")
        assert begun.keys() == completed
        assert begun.total() - len(completed) <= len(self.worker_pool.witness.starved(LEASE))
        for line in self.worker_pool.ledger.lines("begun"):
            assert line.due_us <= line.token, f"{line.id} began before it was due"
        holding = assert_legal(self.direct, "mail")
        assert holding.sets["completed"].keys() == completed


BINARY = next(iter(BINARIES.values()))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("skew"), "server", BINARY)


@pytest.fixture(scope="module")
def server(clock: Clock) -> Iterator[Server]:
    with Server.start(tcp=True, binary=clock.binary) as server:
        yield server


@pytest.fixture
def scene(server: Server, clock: Clock, worker_pool: WorkerPool) -> Iterator[Scene]:
    with Proxy(server.url) as proxy:
        worker_pool.beside.append(lambda: [server.pid])
        scene = Scene(server, clock, worker_pool, proxy)
        scene.set_clock(0)
        scene.direct.flushall()
        yield scene
        scene.set_clock(0)
        scene.queue.close()
        scene.direct.close()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_is_set_takes_no_job_from_who_lives_and_strands_none(
    scene: Scene, jump: float
) -> None:
    workers = scene.workers(2)
    scene.hold("a", "b")
    scene.queue.enqueue(f"{JOBS}:quick", job_id="inside", delay=HOUR / 2)
    scene.set_clock(jump)
    scene.run_one("now")
    scene.run_one("soon", delay=0.3)
    scene.run_one("later", delay=LEASE + 1)  # meanwhile leases would have ended
    for gate in ("a", "b"):
        scene.worker_pool.open_gate(gate)
    ran = {"a", "b", "now", "soon", "later"}
    if jump > 0:
        ran.add("inside")
        assert scene.queue.counts().gap == pytest.approx(jump, abs=60)
    scene.check(ran)
    for worker in workers:
        worker.terminate()
        assert worker.wait() == 0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_what_a_dead_worker_held_comes_back_though_the_clock_was_set(
    scene: Scene, jump: float
) -> None:
    (dead,) = scene.workers(1)
    scene.hold("a")
    dead.kill()
    scene.set_clock(jump)
    scene.workers(1)
    scene.worker_pool.open_gate("a")
    scene.worker_pool.ledger.wait("done", 1)  # after a lease, and not after the hour
    first, *again = scene.worker_pool.ledger.lines("begun", "a")
    assert first.token < again[0].token
    assert len(again) - 1 <= len(scene.worker_pool.witness.starved(LEASE)), "once, unless starved"
    eventually(lambda: scene.queue.counts().completed == 1)
    assert_legal(scene.direct, "mail")


@pytest.fixture
def two(clock: Clock) -> Iterator[Pair]:
    """A server whose clock is right, and a replica whose clock is not."""
    with pair(BINARY, other=clock.binary) as two:
        yield two
        clock.set(0)


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_failover_to_a_node_whose_clock_is_wrong(
    two: Pair, clock: Clock, worker_pool: WorkerPool, skew: float
) -> None:
    """What was held goes on, what was due runs, what is not due waits by the new clock."""
    with Proxy(two.primary.url) as proxy:
        worker_pool.beside.append(lambda: [two.primary.pid, two.replica.pid])
        scene = Scene(two.replica, clock, worker_pool, proxy)
        workers = scene.workers(2)
        scene.hold("a", "b")
        scene.queue.enqueue(f"{JOBS}:quick", job_id="inside", delay=HOUR / 2)
        kept = scene.queue.enqueue(f"{JOBS}:held", "c", job_id="c", durability="replica")
        assert kept.confirmed == "replica"
        worker_pool.ledger.wait("begun", 3)
        eventually(lambda: caught_up(two))
        clock.set(skew)
        proxy.refuse()
        two.fail_over()
        proxy.point_at(two.replica.url)
        proxy.accept()
        eventually(lambda: abs(scene.server_ahead() - skew) < 5)
        scene.run_one("now")
        scene.run_one("later", delay=LEASE + 1)
        for gate in ("a", "b", "c"):
            worker_pool.open_gate(gate)
        scene.check({"a", "b", "c", "now", "later"} | ({"inside"} if skew > 0 else set()))
        for worker in workers:
            worker.terminate()
            assert worker.wait() == 0
        scene.queue.close()
        scene.direct.close()


def caught_up(two: Pair) -> bool:
    """Whether the replica has all that the server has."""
    told = two.direct.info("replication")
    return bool(told["slave0"]["offset"] == told["master_repl_offset"])
