"""The executors themselves: many commands in one round trip, scripts that are not there, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from bide.errors import BideError, ScriptBug, ServerRefused, ServerUnavailable
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SERVER_CLOCK, TEST_CLOCK, load, names
from tests.support.probe import BODY, LEASE, SECOND, Executor, Probe, open_executor


@pytest.fixture
def unreachable(kind: str) -> Iterator[Executor]:
    """A client of a server that is not there."""
    executor = open_executor(kind, "unix:///nonexistent/bide.sock")
    yield executor
    executor.end()


def test_results_come_in_the_order_of_the_commands(q: Probe) -> None:
    """And the commands run in it, where the server knows their scripts."""
    for name in names():
        q.raw.script_load(load(name, TEST_CLOCK).text)
    receipts, counts, words, listing = q.executor.run_many(
        [
            enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)]),
            job_commands.counts(q.keys),
            job_commands.cancel(q.keys, ["a"]),
            job_commands.listing(q.keys, "cancelled", 0, 10),
        ]
    )
    assert receipts[0].created
    assert counts.waiting == 1
    assert words == ["ok"]
    assert listing == ["a"]


def test_no_commands_are_no_round_trip(unreachable: Executor) -> None:
    assert unreachable.run_many([]) == []


def test_queues_may_be_mixed_in_one_round_trip(q: Probe) -> None:
    other = keys_of("other")
    q.executor.run_many(
        [
            enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)]),
            enqueue_commands.enqueue(other, [Prepared("b", "+0", 5, BODY)]),
        ]
    )
    mine, theirs = q.executor.run_many(
        [job_commands.listing(keys, "waiting", 0, 10) for keys in (q.keys, other)]
    )
    assert (mine, theirs) == (["a"], ["b"])


def test_scripts_are_loaded_when_the_server_does_not_know_them(q: Probe) -> None:
    q.raw.script_flush()
    assert q.add("a")[0].created
    assert q.taken() == ["a"]


def test_and_again_when_it_has_forgotten_them_in_the_middle_of_its_life(q: Probe) -> None:
    """A fail-over to a fresh server, or SCRIPT FLUSH: nothing is run twice for it."""
    q.add("a", "b")
    q.taken(count=1)
    q.raw.script_flush()
    receipts, claim, counts = q.executor.run_many(
        [
            enqueue_commands.enqueue(q.keys, [Prepared("c", "+0", 5, BODY)]),
            worker_commands.claim(q.keys, "w1", 2, 1, round(LEASE * SECOND), 0),
            job_commands.counts(q.keys),
        ]
    )
    assert receipts[0].created
    assert [job.id for job in claim.jobs] == ["b"]
    assert (counts.waiting, counts.active) == (1, 2)


def test_only_what_is_missing_is_sent_again(q: Probe) -> None:
    q.raw.script_flush()
    q.add("a")
    assert q.taken() == ["a"], "claim is missing, enqueue is not"
    assert q.holding().where("a") == "active"


def test_a_command_that_fails_leaves_the_others_alone(q: Probe) -> None:
    bad = job_commands.reschedule(q.keys, ["a"], "nonsense")
    good = enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)])
    error, receipts = q.executor.attempt_many([bad, good])
    assert isinstance(error, ScriptBug)
    assert receipts[0].created
    with pytest.raises(ScriptBug, match="BADARG reschedule at"):
        q.executor.run_many([job_commands.counts(q.keys), bad])


def test_an_error_of_the_server_is_one_of_ours_and_says_what_it_said(
    q: Probe, raw: redis.Redis
) -> None:
    raw.set(q.keys["jobs"], "not a hash")
    q.legal = False
    with pytest.raises(ServerRefused, match=r"WRONGTYPE.*BIDE_PREFIX"):
        q.add("a")


def test_a_server_that_was_never_reached_is_an_error_at_once(unreachable: Executor) -> None:
    with pytest.raises(ServerUnavailable, match=r"unix:///nonexistent.*BIDE_URL") as caught:
        unreachable.run(job_commands.counts(keys_of("mail")))
    assert isinstance(caught.value, BideError)
    assert isinstance(caught.value, ConnectionError)


def test_a_client_that_was_closed_opens_again(q: Probe) -> None:
    q.add("a")
    q.executor.close()
    assert q.taken() == ["a"]


def test_a_connection_that_was_cut_is_replaced(q: Probe) -> None:
    q.add("a")
    q.raw.client_kill_filter(_type="normal", skipme=True)
    assert q.taken() == ["a"]


def test_with_the_servers_own_clock_everything_is_as_with_the_tests(
    kind: str, url: str, raw: redis.Redis
) -> None:
    executor = open_executor(kind, url, clock=SERVER_CLOCK)
    q = Probe(executor, raw)
    q.move(-3600)
    seconds, micros = raw.time()
    (receipt,) = q.add("a")
    assert receipt.due_us >= seconds * SECOND + micros, "the offset is for tests only"
    (job,) = q.claim().jobs
    assert q.settle(job, "complete", data=b"1") == "ok"
    q.check()
    executor.end()


def test_whoever_listens_hears_what_is_said_from_then_on(kind: str, q: Probe) -> None:
    """Else a wait would miss the end of a job that ends just then."""
    channel = q.keys["waiters"]

    def heard() -> int:
        ((_, count),) = q.raw.pubsub_numsub(channel)
        return int(count)

    async def listen() -> list[int]:
        counts = []
        for _ in range(50):
            async with q.executor.client.waiting_for(channel, "x"):
                counts.append(heard())
            while heard():  # noqa: ASYNC110 - until the server has noticed
                await asyncio.sleep(0)
        return counts

    if kind == "aio":
        assert q.executor.await_(listen()) == [1] * 50
        return
    for _ in range(50):
        with q.executor.client.waiting_for(channel, "x"):
            assert heard() == 1
        while heard():
            pass
