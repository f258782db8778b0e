"""Whoever dies between any two steps of what spans two queues: nobody waits for ever, none is lost.

"For every n" means: the n-th call, and all after it, are never sent; then others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from bide import Queue
from bide.client import aio, blocking
from bide.errors import BideError, ServerUnavailable
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import TEST_CLOCK
from bide.worker.relay import DependencyRelay
from tests.chaos.test_lost_replies import Line, line
from tests.chaos.verbs import enqueue_all
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.worker_pool import JOBS, WorkerPool

__all__ = ["line"]
MAIL, OTHER = keys_of("mail"), keys_of("other")
BODY = encode_body(Body("app:task"))
LEASE_US = 600_000_000


def job(id: str, *parents: str) -> Prepared:
    return Prepared(id, "+0", 5, BODY, constraints="d=-" if parents else "", parents=parents)


class Flow:
    """Two queues, and workers of both whose clock moves by hand."""

    def __init__(self, url: str, direct: redis.Redis) -> None:
        self.url, self.direct = url, direct
        self.client = blocking.Client(url, clock=TEST_CLOCK)
        self.seq = 0
        self.ran: list[str] = []

    def clear(self) -> None:
        self.direct.flushall()
        self.ran.clear()

    def pass_time(self, seconds: float) -> None:
        for keys in (MAIL, OTHER):
            self.direct.hincrby(keys["meta"], "test_offset_us", round(seconds * 1e6))

    def work(self, keys: Keys) -> bool:
        """Claim, and complete what is due; whether there is something for the post."""
        while True:
            self.seq += 1
            claim = self.client.run(worker_commands.claim(keys, "w", self.seq, 10, LEASE_US, 0))
            self.ran += [job.id for job in claim.jobs]
            settles = [Settle(job.id, job.token, "complete") for job in claim.jobs]
            if settles:
                self.client.run(worker_commands.settle(keys, settles))
            elif not claim.more:
                return claim.post

    def deliver(self, keys: Keys, steps: int = 10**6) -> int:
        """Deliver what a queue has for the other; how many calls that took, `steps` at most."""

        async def act() -> int:
            client = Mortal(self.url, clock=TEST_CLOCK)
            client.left = steps
            relay = DependencyRelay(client, lambda queues: None)
            relay.submit(keys)
            await relay.close()
            await client.close()
            return client.sent

        return asyncio.run(act())

    def settle_down(self) -> None:
        """All workers do all there is to do, for some minutes."""
        for _ in range(6):
            for keys in (MAIL, OTHER):
                if self.work(keys):
                    self.deliver(keys)
            self.pass_time(31)

    def state(self, keys: Keys, id: str) -> str | None:
        (seen,) = self.client.run(job_commands.fetch(keys, [id]))
        return seen and str(seen.state)


class Mortal(aio.AsyncClient):
    """A client of a process that dies after so many calls."""

    left = 10**6
    sent = 0

    async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        mine = commands[: self.left - self.sent]
        self.sent += len(mine)
        replies = await super().attempt_many(mine) if mine else []
        gone: list[Any] = [ServerUnavailable("It is dead.")] * (len(commands) - len(mine))
        return [*replies, *gone]

    async def run(self, command: Command[Any]) -> Any:
        (reply,) = await self.attempt_many([command])
        if isinstance(reply, BideError):
            raise reply
        return reply


@pytest.fixture
def flow(one_url: str, direct: redis.Redis) -> Iterator[Flow]:
    flow = Flow(one_url, direct)
    yield flow
    flow.client.close()


def cut(command: Command[Any], steps: int) -> Command[Any] | None:
    """The command of which no more than so many calls are sent; None for none of them."""
    if steps == 0:
        return None

    def rest(reply: list[Any]) -> Command[Any] | None:
        further = command.followup(reply) if command.followup else None
        return cut(further, steps - 1) if further is not None else None

    return command._replace(followup=rest)


@pytest.mark.parametrize("parents_end", [True, False])
def test_a_producer_that_dies_leaves_nothing_that_waits(flow: Flow, parents_end: bool) -> None:
    """Whether the parents end before its rests are looked at, or after."""
    outcomes = set()
    for steps in range(8):
        flow.clear()
        local = [f"p{i:03}" for i in range(enqueue_commands.CHUNK + 5)]
        enqueue_all(flow.client, MAIL, [job(id) for id in local])
        enqueue_all(flow.client, OTHER, [job("far")])
        placing = enqueue_commands.EnqueueFull(MAIL, job("z", *local, "{other}far"), ())
        if (begun := cut(placing.begin(), steps)) is not None:
            flow.client.run(begun._replace(parse=lambda reply: None))
        if not parents_end:
            flow.pass_time(31)
            flow.client.run(worker_commands.claim(MAIL, "looks", 1, 0, LEASE_US, 0))
        flow.settle_down()
        for name in ("mail", "other"):
            holding = assert_legal(flow.direct, name)
            assert holding.sets["blocked"] == {}
            assert {member for member in holding.edges if member[0] in "<!@?"} == set()
        assert flow.ran.count("z") <= 1
        outcomes.add((steps, flow.state(MAIL, "z")))
    assert {state for steps, state in outcomes if steps >= 4} == {"completed"}
    assert {state for steps, state in outcomes if steps < 4} == {None}


def test_a_worker_that_dies_while_it_delivers_loses_nothing(flow: Flow) -> None:
    steps = whole = 0
    while steps <= whole:
        flow.clear()
        enqueue_all(flow.client, OTHER, [job("a"), job("b")])
        enqueue_all(flow.client, MAIL, [job("z", "{other}a", "{other}b"), job("y", "{other}b")])
        assert flow.work(OTHER)
        whole = max(whole, flow.deliver(OTHER, steps))
        if steps == 0:
            whole = 10
        if steps > 3:
            whole = min(whole, steps)
        flow.work(MAIL)
        if flow.work(OTHER):
            flow.deliver(OTHER)
        flow.work(MAIL)
        assert sorted(flow.ran) == ["a", "b", "y", "z"]
        assert {m for m in assert_legal(flow.direct, "other").edges if m[0] == "@"} == set()
        steps += 1
    assert steps > 3


def test_a_worker_that_dies_while_it_asks_asks_again(flow: Flow) -> None:
    for steps in range(6):
        flow.clear()
        enqueue_all(flow.client, OTHER, [job("a")])
        enqueue_all(flow.client, MAIL, [job("z", "{other}a")])
        flow.work(OTHER)  # and nobody delivers
        flow.pass_time(61)
        assert flow.work(MAIL)
        flow.deliver(MAIL, steps)
        flow.pass_time(61)
        if flow.work(MAIL):
            flow.deliver(MAIL)
        flow.work(MAIL)
        assert flow.ran == ["a", "z"]


@pytest.mark.slow
def test_an_enqueue_across_queues_adds_its_job_once_whatever_is_lost(line: Line) -> None:
    rounds = 0
    for _ in line.each_round():
        rounds += 1
        enqueue_all(line.good, OTHER, [job("a"), job("b")])
        claim = line.good.run(worker_commands.claim(OTHER, "w", 1, 1, LEASE_US, 0))
        line.good.run(worker_commands.settle(OTHER, [Settle("a", claim.jobs[0].token, "complete")]))
        line.arm()
        (receipt,) = enqueue_all(line.bad, MAIL, [job("z", "{other}a", "{other}b")])
        assert receipt.id == "z"
        holding = assert_legal(line.direct, "mail")
        assert (list(holding.sets["blocked"]), set(holding.edges)) == (["z"], {"<z {other}b"})
        assert ">b {mail}z" in assert_legal(line.direct, "other").edges
    assert rounds > 5


@pytest.mark.slow
def test_one_that_waits_for_many_is_added_once_whatever_is_lost(line: Line) -> None:
    parents = [f"p{i:03}" for i in range(2 * enqueue_commands.CHUNK + 7)]
    for _ in line.each_round():
        enqueue_all(line.good, MAIL, [job(id) for id in parents])
        line.arm()
        (receipt,) = enqueue_all(line.bad, MAIL, [job("z", *parents)])
        assert receipt.id == "z"
        edges = assert_legal(line.direct, "mail").edges
        assert edges == {f"<z {id}" for id in parents} | {f">{id} z" for id in parents}


@pytest.mark.slow
def test_flows_survive_workers_that_are_killed(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Chains that go to and fro between two queues, under workers that die."""
    options = ("-q", "mail", "-q", "other", "--lease", "1s", "-c", "5")
    mail, other = Queue("mail", url=one_url), Queue("other", url=one_url)
    worker_pool.workers_at_work(2, one_url, *options)
    last = []
    for n in range(20):
        one = mail.enqueue(f"{JOBS}:quick", job_id=f"one-{n}")
        two = other.enqueue(f"{JOBS}:quick", job_id=f"two-{n}", depends_on=one)
        three = other.enqueue(f"{JOBS}:quick", job_id=f"three-{n}", depends_on=[one, two])
        last.append(mail.enqueue(f"{JOBS}:quick", job_id=f"last-{n}", depends_on=[two, three]))
        if n % 5 == 4:
            worker_pool.workers[-1].kill()
            worker_pool.workers_at_work(1, one_url, *options)
    eventually(lambda: all(job.refresh().state == "completed" for job in last))
    done = worker_pool.ledger.count("done")
    kinds = ("one", "two", "three", "last")
    assert set(done) == {f"{kind}-{n}" for kind in kinds for n in range(20)}
    for name in ("mail", "other"):
        assert assert_legal(direct, name).sets["blocked"] == {}
    mail.close()
    other.close()


def test_what_comes_while_the_post_is_out_is_delivered_too(flow: Flow) -> None:
    """A letter that is written when the letters before it have just been read."""
    enqueue_all(flow.client, OTHER, [job("a"), job("b")])
    enqueue_all(flow.client, MAIL, [job("z", "{other}a"), job("y", "{other}b")])
    claim = flow.client.run(worker_commands.claim(OTHER, "w", 1, 2, LEASE_US, 0))
    a, b = (Settle(job.id, job.token, "complete") for job in claim.jobs)
    flow.client.run(worker_commands.settle(OTHER, [a]))

    ended: list[Settle] = []
    postmen: list[DependencyRelay] = []

    class Meanwhile(aio.AsyncClient):
        """A client of a worker that settles and claims while its relay is on the way."""

        async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
            replies = await super().attempt_many(commands)
            if commands[0].script == "dep_resolve" and not ended:
                ended.append(b)
                await self.run(worker_commands.settle(OTHER, [b]))
                claim = await self.run(worker_commands.claim(OTHER, "w", 2, 0, LEASE_US, 0))
                assert claim.post
                postmen[0].submit(OTHER)
            return replies

    async def act() -> None:
        client = Meanwhile(flow.url, clock=TEST_CLOCK)
        postmen.append(DependencyRelay(client, lambda queues: None))
        postmen[0].submit(OTHER)
        await postmen[0].close()
        await client.close()

    asyncio.run(act())
    assert ended == [b]
    assert flow.state(MAIL, "y") == flow.state(MAIL, "z") == "waiting"
    assert {m for m in assert_legal(flow.direct, "other").edges if m[0] == "@"} == set()


def test_what_another_queue_refuses_is_told_again(flow: Flow) -> None:
    enqueue_all(flow.client, OTHER, [job("a")])
    enqueue_all(flow.client, MAIL, [job("z", "{other}a")])
    assert flow.work(OTHER)
    flow.direct.hset(MAIL["meta"], "schema", 99)  # a newer release has laid it out
    flow.deliver(OTHER)
    flow.direct.hdel(MAIL["meta"], "schema")
    assert flow.work(OTHER)
    flow.deliver(OTHER)
    flow.work(MAIL)
    assert flow.ran == ["a", "z"]
