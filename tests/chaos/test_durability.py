"""A producer that waits for a replica, or for the disk: what was confirmed survives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis

from bide import (
    AsyncDelayQueue,
    AsyncQueue,
    DelayQueue,
    DurabilityTimeout,
    DurabilityUnavailable,
    Queue,
    batch,
    testing,
)
from bide.embedded import Server
from bide.model import options
from bide.protocol.commands.enqueue import add_dependencies
from bide.protocol.keys import keys_of
from tests.chaos.replicas import Pair, pair
from tests.conftest import BINARIES, SERVERS
from tests.support.cluster import cluster
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.sentinel import sentinel

TASK = "shop:send"
KEYS = keys_of("mail")


@pytest.fixture(scope="module", params=SERVERS)
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair(BINARIES[request.param]) as two:
        yield two


@pytest.fixture
def two(servers: Pair) -> Pair:
    servers.direct.flushall()
    return servers


@contextmanager
def frozen(two: Pair) -> Iterator[None]:
    """While the replica receives nothing; nobody waits long for it."""
    two.freeze()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(options, "CONFIRM_MS", 300)
            yield
    finally:
        two.thaw()


@pytest.fixture
def queue(two: Pair) -> Iterator[Queue]:
    queue = Queue("mail", url=two.primary.url)
    yield queue
    queue.close()


@pytest.fixture
def alone(tmp_server: Callable[..., Server]) -> Iterator[redis.Redis]:
    """A server without a replica and without an append-only file."""
    with redis.Redis.from_url(tmp_server().url) as client:
        yield client


def answer() -> int:
    return 42


def url_of(client: redis.Redis) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


# -- a replica


def test_the_receipt_says_that_a_replica_has_it(two: Pair, queue: Queue) -> None:
    job = queue.enqueue(TASK, durability="replica")
    assert job.confirmed == "replica"
    assert two.behind.hexists(KEYS["jobs"], job.id)


def test_without_being_asked_for_it_is_local(queue: Queue) -> None:
    assert queue.enqueue(TASK).confirmed == "local"
    assert queue.jobs("waiting")[0].confirmed is None


def test_unconfirmed_names_the_id_and_a_repeat_is_safe(two: Pair, queue: Queue) -> None:
    with frozen(two):
        with pytest.raises(
            DurabilityTimeout, match="Repeating with its id is safe: order-7"
        ) as caught:
            queue.enqueue(TASK, job_id="order-7", durability="replica")
        assert caught.value.job_ids == ("order-7",)
        assert queue.fetch("order-7").state == "waiting"
    job = queue.enqueue(TASK, job_id="order-7", durability="replica")
    assert (job.created, job.confirmed) == (False, "replica")
    assert queue.counts().waiting == 1


def test_a_repeat_over_a_fresh_connection_is_not_confirmed_by_nothing(two: Pair) -> None:
    """It finds its id and would have written nothing, and WAIT counts what its connection wrote."""
    with_it = Queue("mail", url=two.primary.url)
    with_it.enqueue(TASK, job_id="a", durability="replica")
    with_it.close()
    fresh = Queue("mail", url=two.primary.url)
    with frozen(two), pytest.raises(DurabilityTimeout):
        fresh.enqueue(TASK, job_id="a", durability="replica")
    fresh.close()
    assert_legal(two.direct, "mail")


def test_a_repeat_of_what_was_batched_is_not_confirmed_by_nothing(two: Pair) -> None:
    """Its answer is remembered, and it adds no item."""
    unique = batch("1h", key="k")
    for id in ("a", "b", "b"):
        with closing(Queue("mail", url=two.primary.url)) as queue:
            queue.enqueue(TASK, 1, job_id=id, unique=unique, durability="replica")
    fresh = Queue("mail", url=two.primary.url)
    with closing(fresh), frozen(two), pytest.raises(DurabilityTimeout):
        fresh.enqueue(TASK, 1, job_id="b", unique=unique, durability="replica")
    assert_legal(two.direct, "mail")


def test_a_repeat_of_the_last_step_is_not_confirmed_by_nothing(two: Pair, queue: Queue) -> None:
    """A job with a parent in another queue is added in steps."""
    with closing(Queue("other", url=two.primary.url)) as other:
        parent = other.enqueue(TASK, delay=60)
    child = queue.enqueue(TASK, depends_on=parent, durability="replica")
    last = add_dependencies(KEYS, child.id, [], True, list, ("replica",))
    fresh = Queue("mail", url=two.primary.url)
    with closing(fresh), frozen(two), pytest.raises(DurabilityTimeout):
        fresh._run(last)


def test_a_lost_confirmation_is_asked_for_again(two: Pair) -> None:
    with Proxy(two.primary.url) as proxy:
        queue = Queue("mail", url=proxy.url)
        queue.enqueue(TASK, durability="replica")
        proxy.lose_reply(2)
        job = queue.enqueue(TASK, job_id="a", durability="replica")
        queue.close()
    assert (job.created, job.confirmed) == (False, "replica")
    assert proxy.lost == 1


def test_many_wait_once_for_what_any_of_them_wants(two: Pair, queue: Queue) -> None:
    jobs = [queue.prepare(TASK, durability="replica"), *(queue.prepare(TASK) for _ in range(600))]
    assert [job.confirmed for job in queue.enqueue_many(jobs)] == ["replica"] + ["local"] * 600
    again = queue.enqueue_many(jobs, durability="replica")
    assert {job.confirmed for job in again} == {"replica"}


def test_a_task_may_ask_for_all_its_jobs(queue: Queue) -> None:
    with testing.isolated_registry():
        charge = queue.task(durability="replica")(answer)
        assert charge.enqueue().confirmed == "replica"
        assert charge.options(durability="local").enqueue().confirmed == "local"


@pytest.mark.anyio
async def test_on_an_event_loop_only_those_wait_who_asked(two: Pair) -> None:
    queue = AsyncQueue("mail", url=two.primary.url)
    two.freeze()
    waiting = [asyncio.create_task(queue.enqueue(TASK, durability="replica")) for _ in range(3)]
    others = await asyncio.gather(*(queue.enqueue(TASK) for _ in range(3)))
    assert not any(task.done() for task in waiting)
    assert {job.confirmed for job in others} == {"local"}
    two.thaw()
    assert {(await task).confirmed for task in waiting} == {"replica"}
    await queue.close()


def test_data_too(two: Pair) -> None:
    pile = DelayQueue("data", url=two.primary.url)
    assert pile.push(1, durability="replica").confirmed == "replica"
    assert [one.confirmed for one in pile.push_many([1, 2])] == ["local"] * 2
    pile.close()


def test_what_was_confirmed_outlives_a_failover() -> None:
    """The replica may be behind; what it has confirmed it has."""
    with pair() as two:
        queue = Queue("mail", url=two.primary.url)
        kept = [queue.enqueue(TASK, i, durability="replica").id for i in range(200)]
        two.fail_over()
        queue.close()
        holding = assert_legal(two.behind, "mail")
        assert set(kept) <= holding.due.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_what_was_confirmed_is_there_when_its_master_has_died(kind: str) -> None:
    """The wait goes to the node that the script went to, wherever that is."""
    start: Any = cluster if kind == "cluster" else sentinel
    with start() as nodes:
        queue = Queue("mail", url=nodes.url)
        jobs = [queue.enqueue(TASK, i, durability="replica") for i in range(50)]
        assert {job.confirmed for job in jobs} == {"replica"}
        master = nodes.owner(KEYS["meta"]) if kind == "cluster" else nodes.master
        nodes.kill(master)
        nodes.fail_over(master) if kind == "cluster" else nodes.fail_over()
        found = queue.fetch_many([job.id for job in jobs])
        assert all(found)
        queue.close()


# -- what a server cannot do


def test_without_a_replica_it_is_refused_and_nothing_is_written(alone: redis.Redis) -> None:
    queue, pile = Queue("mail", url=url_of(alone)), DelayQueue("data", url=url_of(alone))
    with pytest.raises(DurabilityUnavailable, match="no replica is connected"):
        queue.enqueue(TASK, durability="replica")
    with pytest.raises(DurabilityUnavailable, match="no replica"):
        queue.enqueue_many([queue.prepare(TASK) for _ in range(600)], durability="replica")
    with pytest.raises(DurabilityUnavailable, match="no replica"):
        pile.push(1, durability="replica")
    assert alone.keys() == []
    assert "cmdstat_wait" not in alone.info("commandstats"), "nobody waited for what is not there"
    assert queue.enqueue(TASK).created
    pile.close()
    queue.close()


@pytest.mark.anyio
async def test_nor_on_an_event_loop(alone: redis.Redis) -> None:
    queue, pile = AsyncQueue("mail", url=url_of(alone)), AsyncDelayQueue("d", url=url_of(alone))
    with pytest.raises(DurabilityUnavailable):
        await queue.enqueue(TASK, durability="replica")
    with pytest.raises(DurabilityUnavailable):
        await pile.push(1, durability="replica")
    assert alone.keys() == []
    assert "cmdstat_wait" not in alone.info("commandstats")
    await pile.close()
    await queue.close()


def test_a_queue_is_known_by_its_first_durable_job(two: Pair, queue: Queue) -> None:
    queue.enqueue(TASK, durability="replica")
    assert two.direct.hkeys(keys_of(None)["queues"]) == [b"mail"]


@pytest.mark.parametrize("without", ["wait", "info"])
def test_what_its_user_may_not_do_is_refused(two: Pair, without: str) -> None:
    two.direct.acl_setuser(
        "shop",
        enabled=True,
        passwords=["+x"],
        keys=["*"],
        channels=["*"],
        commands=["+@all", f"-{without}"],
    )
    queue = Queue("mail", url=two.primary.url.replace("://", "://shop:x@"))
    with pytest.raises(
        DurabilityUnavailable, match=rf"the permission \+{without}, which `bide acl`"
    ):
        queue.enqueue(TASK, durability="replica")
    assert two.direct.keys() == []
    queue.close()


@pytest.mark.slow
def test_a_replica_that_has_gone_is_missed(two: Pair, queue: Queue) -> None:
    """Though it was there a moment ago: the script looks each time before it writes."""
    assert queue.enqueue(TASK, job_id="a", durability="replica").confirmed == "replica"
    two.behind.replicaof("NO", "ONE")
    eventually(lambda: two.direct.info("replication")["connected_slaves"] == 0)
    try:
        for _ in range(2):
            with pytest.raises(DurabilityUnavailable):
                queue.enqueue(TASK, job_id="b", durability="replica")
        assert two.direct.hkeys(KEYS["jobs"]) == [b"a"]
    finally:
        two.connect()


# -- the disk


def fsyncs(name: str) -> bool:
    """Whether the server has WAITAOF."""
    return name == "valkey"


@pytest.mark.parametrize("name", SERVERS)
def test_the_disk(name: str, tmp_server: Callable[..., Server]) -> None:
    server = tmp_server(binary=BINARIES[name], persist=True)
    queue = Queue("mail", url=server.url)
    direct = redis.Redis.from_url(server.url)
    if fsyncs(name):
        assert queue.enqueue(TASK, durability="fsync").confirmed == "fsync"
        direct.config_set("appendonly", "no")
        refusal, count = "appendonly yes", 1
    else:
        refusal, count = "no WAITAOF", 0
    with pytest.raises(DurabilityUnavailable, match=refusal):
        queue.enqueue(TASK, durability="fsync")
    assert queue.counts().waiting == count
    queue.close()
    direct.close()


def test_a_disk_that_is_left_to_the_system_does_not_confirm(
    tmp_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CONFIRM_MS", 300)
    server = tmp_server(binary=BINARIES["valkey"], persist=True, extra=("--appendfsync", "no"))
    queue = Queue("mail", url=server.url)
    with pytest.raises(DurabilityTimeout, match="appendfsync"):
        queue.enqueue(TASK, durability="fsync")
    queue.close()


def test_what_the_disk_has_outlives_a_kill(tmp_server: Callable[..., Server]) -> None:
    server = tmp_server(binary=BINARIES["valkey"], persist=True)
    queue = Queue("mail", url=server.url)
    kept = {queue.enqueue(TASK, durability="fsync").id for _ in range(3)}
    server.kill()
    server.restart()
    assert {job.id for job in queue.jobs("waiting")} == kept
    queue.close()


# -- tests of users'


@pytest.mark.parametrize("eager", [False, True])
def test_a_test_of_a_users_own_needs_no_replica(eager: bool) -> None:
    """Its server is gone with it, whoever waits; the receipt says so."""
    queue = Queue("mail")
    with testing.eager() if eager else testing.start():
        assert queue.enqueue(answer, durability="replica").confirmed == "local"
