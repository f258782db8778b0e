"""A lost reply, and what others do before the repeat: the repeat takes nothing back from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
import redis

from bide import Queue
from bide.client import aio
from bide.errors import ServerUnavailable
from bide.model.limits import Retention
from bide.model.payload.body import Body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK, load, names
from tests.chaos.conftest import Connect, Executor
from tests.chaos.verbs import enqueue_all
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy

QUEUE = "mail"
KEYS = keys_of(QUEUE)
LEASE = 10.0


class Scene:
    """A client with a bad line and one with a good one, under a clock that can be moved."""

    def __init__(self, proxy: Proxy, direct: redis.Redis, bad: Executor, good: Executor) -> None:
        self.proxy, self.direct, self.bad, self.good = proxy, direct, bad, good
        for name in names():
            direct.script_load(load(name, TEST_CLOCK).text)
        bad.run(job_commands.counts(KEYS))  # connected: the next reply is that of the next call

    def lose_next_reply(self, then: Callable[[], object]) -> None:
        """The next reply is lost; `then` happens before its client notices."""
        self.proxy.lose_reply(1, then=then)

    def pass_time(self, seconds: float) -> None:
        self.direct.hset(KEYS["meta"], "test_offset_us", round(seconds * 1e6))

    def add(self, count: int = 1) -> list[str]:
        jobs = [enqueue_commands.prepare(Body("app:task")) for _ in range(count)]
        return [receipt.id for receipt in enqueue_all(self.good, KEYS, jobs)]

    def claim(
        self, client: Executor, worker: str, seq: int = 1, count: int = 5
    ) -> worker_commands.Claim:
        return client.run(worker_commands.claim(KEYS, worker, seq, count, round(LEASE * 1e6), 0))

    def move(self, id: str, when: str) -> None:
        self.good.run(job_commands.reschedule(KEYS, [id], when))

    def settle(self, client: Executor, settle: Settle) -> str:
        return client.run(worker_commands.settle(KEYS, [settle]))[0]


@pytest.fixture
def scene(proxy: Proxy, direct: redis.Redis, one_url: str, connect: Connect) -> Scene:
    bad, good = (connect(url, clock=TEST_CLOCK) for url in (proxy.url, one_url))
    return Scene(proxy, direct, bad, good)


@pytest.mark.parametrize(("outcome", "when"), [("retry", "+0"), ("snooze", "+0"), ("release", "")])
def test_a_repeated_settle_is_ok_though_the_job_was_claimed_again(
    scene: Scene, outcome: worker_commands.Outcome, when: str
) -> None:
    (id,) = scene.add()
    (first,) = scene.claim(scene.bad, "w1").jobs
    others: list[worker_commands.Claim] = []
    scene.lose_next_reply(then=lambda: others.append(scene.claim(scene.good, "w2")))
    assert scene.settle(scene.bad, Settle(id, first.token, outcome, when)) == "ok"
    assert scene.proxy.lost == 1
    (second,) = others[0].jobs
    assert second.id == id
    assert second.token > first.token
    holding = assert_legal(scene.direct, QUEUE)
    assert holding.where(id) == "active"
    assert holding.records[id].token == second.token
    assert scene.settle(scene.good, Settle(id, second.token, "complete")) == "ok"
    assert assert_legal(scene.direct, QUEUE).total("completed") == 1


def test_a_repeated_claim_does_not_return_what_another_took_since(scene: Scene) -> None:
    ids = scene.add(3)

    def lease_ends() -> None:
        scene.pass_time(LEASE + 1)
        others.append(scene.claim(scene.good, "w2", count=2))

    others: list[worker_commands.Claim] = []
    scene.lose_next_reply(then=lease_ends)
    repeat = scene.claim(scene.bad, "w1")
    (other,) = others
    assert len(other.jobs) == 2
    assert {job.id for job in (*other.jobs, *repeat.jobs)} <= set(ids)
    assert not {job.id for job in other.jobs} & {job.id for job in repeat.jobs}
    holding = assert_legal(scene.direct, QUEUE)
    for job in (*other.jobs, *repeat.jobs):
        assert holding.records[job.id].token == job.token
        assert scene.settle(scene.good, Settle(job.id, job.token, "complete")) == "ok"


def test_a_repeated_claim_renews_the_leases_of_what_it_took(scene: Scene) -> None:
    (id,) = scene.add()
    scene.lose_next_reply(then=lambda: scene.pass_time(LEASE - 1))
    (job,) = scene.claim(scene.bad, "w1").jobs
    scene.pass_time(LEASE + 1)
    assert scene.claim(scene.good, "w2").jobs == []
    assert scene.settle(scene.bad, Settle(id, job.token, "complete")) == "ok"


def test_a_late_settle_after_another_took_the_job_is_lost_and_changes_nothing(scene: Scene) -> None:
    (id,) = scene.add()
    (first,) = scene.claim(scene.bad, "w1").jobs
    scene.pass_time(LEASE + 1)
    (second,) = scene.claim(scene.good, "w2").jobs
    for outcome in ("complete", "fail", "release"):
        assert scene.settle(scene.bad, Settle(id, first.token, outcome, "", b"1")) == "lost"
    tokens = [(id, first.token)]
    assert scene.bad.run(worker_commands.extend(KEYS, 10**9, tokens)) == ["lost"]
    holding = assert_legal(scene.direct, QUEUE)
    assert holding.records[id].token == second.token
    assert holding.sets["active"][id] - second.token == round(LEASE * 1e6)


def test_one_attempt_has_one_outcome(scene: Scene) -> None:
    """The first that is applied; another under the same token is refused, its repeat is not."""
    (id,) = scene.add()
    (job,) = scene.claim(scene.bad, "w1").jobs
    words = [
        scene.settle(scene.bad, Settle(id, job.token, outcome, "+0", b"1"))
        for outcome in ("complete", "retry", "fail", "complete")
    ]
    assert words == ["ok", "lost", "lost", "ok"]
    holding = assert_legal(scene.direct, QUEUE)
    assert holding.where(id) == "completed"
    assert [holding.total(name) for name in ("completed", "retried", "failed")] == [1, 0, 0]


def test_an_older_claim_that_arrives_late_takes_nothing(scene: Scene) -> None:
    scene.add(2)
    scene.claim(scene.bad, "w1", seq=1, count=1)
    scene.claim(scene.bad, "w1", seq=2, count=1)
    (waiting,) = scene.add()
    late = scene.claim(scene.good, "w1", seq=1)
    assert late.stale
    assert assert_legal(scene.direct, QUEUE).where(waiting) == "due"


def test_a_copy_of_a_claim_that_arrives_late_takes_nothing(scene: Scene) -> None:
    """Its worker has had the answer from the repeat: what the copy took, nobody would know of."""
    (id,) = scene.add()
    (job,) = scene.claim(scene.bad, "w1").jobs
    scene.settle(scene.bad, Settle(id, job.token, "complete"))
    (waiting,) = scene.add()
    late = scene.claim(scene.good, "w1")
    assert late.jobs == []
    assert assert_legal(scene.direct, QUEUE).where(waiting) == "due"


def test_what_has_just_finished_is_remembered_though_retention_keeps_none(scene: Scene) -> None:
    """Or a repeat would be told of a job that is gone."""
    scene.add(2)
    first, second = scene.claim(scene.bad, "w1").jobs
    scene.good.run(job_commands.configure(KEYS, Retention(count=0)))
    settles = [
        worker_commands.settle(KEYS, [Settle(j.id, j.token, "complete")]) for j in (first, second)
    ]
    scene.lose_next_reply(then=lambda: scene.good.run(settles[1]))
    assert scene.bad.run(settles[0]) == ["ok"]
    assert assert_legal(scene.direct, QUEUE).where(first.id) == "completed"
    scene.pass_time(60)
    (third,) = scene.add()
    (job,) = scene.claim(scene.good, "w2").jobs
    scene.good.run(worker_commands.settle(KEYS, [Settle(third, job.token, "complete")]))
    assert assert_legal(scene.direct, QUEUE).sets["completed"].keys() == {third}


def test_a_repeated_retry_runs_nothing_twice_though_the_job_has_run_meanwhile(scene: Scene) -> None:
    (id,) = scene.add()
    (job,) = scene.claim(scene.bad, "w1").jobs
    scene.settle(scene.bad, Settle(id, job.token, "fail"))

    def runs() -> None:
        (again,) = scene.claim(scene.good, "w2").jobs
        scene.settle(scene.good, Settle(id, again.token, "complete"))

    scene.lose_next_reply(then=runs)
    (moved,) = scene.bad.run(job_commands.retry(KEYS, [id], "+0"))
    assert scene.proxy.lost == 1
    assert moved.result == "ok"
    holding = assert_legal(scene.direct, QUEUE)
    assert holding.where(id) == "completed"
    assert [holding.total(name) for name in ("failed", "completed")] == [1, 1]


def test_a_repeated_request_to_end_does_not_reach_the_attempt_after_it(scene: Scene) -> None:
    """The job ended as it was asked to, and was cancelled by that."""
    (id,) = scene.add()
    (job,) = scene.claim(scene.good, "w1").jobs
    scene.lose_next_reply(
        then=lambda: scene.settle(scene.good, Settle(id, job.token, "retry", "+0"))
    )
    assert scene.bad.run(job_commands.cancel(KEYS, [id])) == ["cancelled"]
    holding = assert_legal(scene.direct, QUEUE)
    assert (holding.where(id), holding.asked) == ("cancelled", {})
    assert holding.total("cancelled") == 1


@pytest.mark.parametrize("when", ["promote", "+0", "=1"])
def test_a_job_that_was_made_due_is_no_refusal_though_it_has_begun(scene: Scene, when: str) -> None:
    (id,) = scene.add()
    scene.move(id, "+3600000000")
    scene.lose_next_reply(then=lambda: scene.claim(scene.good, "w2"))
    (moved,) = scene.bad.run(
        job_commands.promote(KEYS, [id])
        if when == "promote"
        else job_commands.reschedule(KEYS, [id], when)
    )
    assert moved.result == "ok"
    assert assert_legal(scene.direct, QUEUE).where(id) == "active"
    (moved,) = scene.bad.run(job_commands.promote(KEYS, [id]))
    assert moved.result == "active", "nothing was lost this time"


def test_a_job_that_is_postponed_and_runs_is_refused_also_by_a_repeat(scene: Scene) -> None:
    (id,) = scene.add()

    def runs() -> None:
        scene.move(id, "+0")
        scene.claim(scene.good, "w2")

    scene.lose_next_reply(then=runs)
    (moved,) = scene.bad.run(job_commands.reschedule(KEYS, [id], "+3600000000"))
    assert moved.result == "active"


def test_what_a_repeat_finds_deleted_was_deleted(scene: Scene) -> None:
    ids = scene.add(2)
    scene.lose_next_reply(then=lambda: None)
    assert scene.bad.run(job_commands.delete(KEYS, ids)) == ["ok", "ok"]
    assert scene.bad.run(job_commands.delete(KEYS, ids)) == ["gone", "gone"]
    with closing(Queue(QUEUE, url=scene.proxy.url)) as queue:
        queue.schedules.upsert("nightly", "app:task", every="1h")
    scene.lose_next_reply(then=lambda: None)
    remove = schedule_commands.remove_schedules(KEYS, ["nightly"])
    assert scene.bad.run(remove) == ["ok"]
    assert scene.proxy.lost == 1
    assert scene.bad.run(remove) == ["gone"]


def test_a_settle_of_a_job_that_was_deleted_meanwhile_is_no_error(scene: Scene) -> None:
    (id,) = scene.add()
    (job,) = scene.claim(scene.bad, "w1").jobs
    scene.lose_next_reply(then=lambda: scene.good.run(job_commands.delete(KEYS, [id])))
    assert scene.settle(scene.bad, Settle(id, job.token, "complete")) == "gone"
    assert assert_legal(scene.direct, QUEUE).hashes["jobs"] == {}


def test_a_repeated_enqueue_adds_nothing_though_the_job_has_run_meanwhile(scene: Scene) -> None:
    prepared = enqueue_commands.prepare(Body("app:task"))

    def runs() -> None:
        (job,) = scene.claim(scene.good, "w2").jobs
        scene.settle(scene.good, Settle(job.id, job.token, "complete"))

    scene.lose_next_reply(then=runs)
    (receipt,) = scene.bad.run(enqueue_commands.enqueue(KEYS, [prepared]))
    assert not receipt.created
    holding = assert_legal(scene.direct, QUEUE)
    assert holding.where(prepared.id) == "completed"
    assert holding.due == {}


def test_a_line_that_goes_silent_is_given_up_and_the_call_repeated(
    proxy: Proxy, direct: redis.Redis, connect: Connect
) -> None:
    client = connect(proxy.url, reply_timeout=0.1)
    client.run(job_commands.counts(KEYS))
    job, other = (enqueue_commands.prepare(Body("app:task")) for _ in range(2))
    proxy.hang_reply(1)
    (receipt,) = client.run(enqueue_commands.enqueue(KEYS, [job]))
    assert proxy.lost == 1
    assert receipt.id == job.id
    assert client.run(enqueue_commands.enqueue(KEYS, [other]))[0].id == other.id
    assert assert_legal(direct, QUEUE).due.keys() == {job.id, other.id}


def test_a_server_that_stays_silent_is_an_error_after_the_patience(
    proxy: Proxy, direct: redis.Redis, connect: Connect
) -> None:
    client = connect(proxy.url, reply_timeout=0.1, retry_for=0.3)
    first, job = (enqueue_commands.prepare(Body("app:task")) for _ in range(2))

    def add(prepared: enqueue_commands.Prepared) -> str | None:
        """Its id; None where a busy machine takes longer than `retry_for`."""
        with suppress(ServerUnavailable):
            return client.run(enqueue_commands.enqueue(KEYS, [prepared]))[0].id
        return None

    assert eventually(lambda: add(first)) == first.id
    proxy.hold()
    with pytest.raises(ServerUnavailable):
        client.run(enqueue_commands.enqueue(KEYS, [job]))
    proxy.deliver()
    assert eventually(lambda: add(job)) == job.id
    assert assert_legal(direct, QUEUE).due.keys() == {first.id, job.id}


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_no_reply_for_the_next_to_read(
    proxy: Proxy, direct: redis.Redis
) -> None:
    client = aio.AsyncClient(proxy.url)
    await client.run(job_commands.counts(KEYS))
    job = enqueue_commands.prepare(Body("app:task"))
    proxy.hold()
    seen = proxy.replies
    call = asyncio.create_task(client.run(job_commands.cancel(KEYS, ["nobody"])))
    while proxy.replies == seen:  # noqa: ASYNC110 - until the answer is under way
        await asyncio.sleep(0.001)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    proxy.deliver()
    (receipt,) = await client.run(enqueue_commands.enqueue(KEYS, [job]))
    assert receipt.id == job.id
    assert receipt.created
    await client.close()
    assert assert_legal(direct, QUEUE).due.keys() == {job.id}
