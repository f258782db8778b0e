"""Slots move, masters change, die and hang under load: no error reaches the user, no job is lost.

What a failover may lose is what was acknowledged and not yet passed on to a replica. A Cluster that
is asked to fail over, and a slot that moves, lose nothing at all, and run nothing twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Set

import pytest

from bide.client.blocking import Client
from bide.client.execute import RETRY_FOR as OF_CLIENTS
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of
from tests.servers.conftest import Servers
from tests.servers.producers import Producers
from tests.support.cluster import Cluster
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import assert_legal
from tests.support.nodes import Node
from tests.support.plain import client_of
from tests.support.sentinel import Sentinels
from tests.support.worker_pool import WorkerPool

QUEUES = ("mail", "other")
"""On two different masters, at first."""
WORKER = ("-q", "mail", "-q", "other", "-c", "20", "--lease", "5s")
STEADY = (*WORKER[:-1], "60s")
"""Where each job is to run once: a lease that no busy machine costs a worker."""

Start = Callable[..., Producers]


def ends_well(
    servers: Servers,
    worker_pool: WorkerPool,
    load: Producers,
    lost: Set[str] = frozenset(),
    outage: float = 0.0,
) -> None:
    """After some more load: nobody saw an error, all jobs ran but some that may be lost.

    If there was no master for longer than the clients' `retry_for` (`outage`, in seconds), these
    may have given calls up: on a busy machine, servers take so long to agree on another.
    """
    load.go_on()
    acknowledged = load.stop()
    assert load.errors == []
    assert outage > OF_CLIENTS or load.given_up == []
    eventually(lambda: acknowledged - lost <= worker_pool.ledger.count("done").keys())
    with contextlib.closing(client_of(servers.url)) as client:
        for name in QUEUES:
            assert_legal(client, name)


def master_of(servers: Servers, queue: str) -> Node:
    if isinstance(servers, Sentinels):
        return servers.master
    return servers.owner(keys_of(queue)["meta"])


@pytest.mark.slow
def test_slots_move_under_load(nodes: Cluster, worker_pool: WorkerPool, producers: Start) -> None:
    worker_pool.workers_at_work(2, nodes.url, *STEADY)
    load = producers(nodes.url, *QUEUES)
    everywhere = keys_of(None)
    keys = [*(keys_of(name)["meta"] for name in QUEUES), *everywhere.names["workers"]]
    assert len({nodes.owner(key) for key in keys}) > 1
    for i in range(6):
        load.go_on()
        for key in keys:
            masters = nodes.masters
            here = masters.index(nodes.owner(key))
            move = nodes.migrate_whole if i % 3 == 2 else nodes.migrate_slot
            move(key, to=masters[(here + 1 + i % 2) % len(masters)])
    ends_well(nodes, worker_pool, load)
    assert set(worker_pool.ledger.count("begun").values()) == {1}


def test_a_cluster_that_is_asked_to_fail_over_loses_nothing(
    nodes: Cluster, worker_pool: WorkerPool, producers: Start
) -> None:
    worker_pool.workers_at_work(2, nodes.url, *STEADY)
    load = producers(nodes.url, *QUEUES)
    for _ in range(3):
        load.go_on()
        nodes.fail_over(master_of(nodes, "mail"))
    ends_well(nodes, worker_pool, load)
    assert set(worker_pool.ledger.count("begun").values()) == {1}


@pytest.mark.slow
def test_sentinels_that_are_asked_to_fail_over(
    trio: Sentinels, worker_pool: WorkerPool, producers: Start
) -> None:
    """The old master goes on for up to a second, and what it took then is lost."""
    worker_pool.workers_at_work(2, trio.url, *WORKER)
    load = producers(trio.url, *QUEUES)
    load.go_on()
    before = set(load.acknowledged)
    trio.master.passed_on()
    trio.fail_over()
    load.go_on()
    ends_well(trio, worker_pool, load, lost=set(load.acknowledged) - before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "regain"),
    [(Node.kill, Node.restart), (Node.freeze, Node.thaw)],
    ids=["killed", "frozen"],
)
def test_a_master_is_lost(
    servers: Servers,
    worker_pool: WorkerPool,
    producers: Start,
    lose: Callable[[Node], None],
    regain: Callable[[Node], None],
) -> None:
    """Of one that is frozen, connections stay open, and time-outs are all that is heard."""
    worker_pool.workers_at_work(2, servers.url, *WORKER)
    load = producers(servers.url, *QUEUES)
    load.go_on()
    before = set(load.acknowledged)
    master = master_of(servers, "mail")
    master.passed_on()
    lost_at = time.monotonic()
    lose(master)
    try:
        servers.fail_over(master) if isinstance(servers, Cluster) else servers.fail_over()
        outage = time.monotonic() - lost_at
        ends_well(servers, worker_pool, load, set(load.acknowledged) - before, outage)
    finally:
        regain(master)
    servers.settled()


@pytest.mark.slow
def test_a_node_that_hangs_delays_no_call_to_another(nodes: Cluster) -> None:
    client = Client(nodes.url, reply_timeout=2 * PATIENCE)
    hangs = master_of(nodes, "mail")
    other = next(q for q in map(str, range(100)) if master_of(nodes, q) is not hangs)
    keys = [keys_of("mail"), keys_of(other)]
    client.run_many(
        [verb(each) for verb in (job_commands.pause, job_commands.resume) for each in keys]
    )
    watch = master_of(nodes, other).client
    hangs.freeze()
    calls = threading.Thread(
        target=client.attempt_many, args=([job_commands.pause(k) for k in keys],)
    )
    calls.start()
    try:
        eventually(lambda: watch.hget(keys[1]["meta"], "paused"))
    finally:
        hangs.thaw()
        calls.join()
        client.close()
    nodes.settled()
