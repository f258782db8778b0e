"""An idle worker's next claim waits behind its wake-up call, and takes the job with the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide import Queue, State
from bide.client.pubsub import WakeCall
from bide.protocol.commands.queues import worker_pause
from bide.protocol.keys import keys_of
from tests.support import jobs
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.workers import at_work, eventually


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Queue]:
    """The queue of a worker behind the proxy."""
    queue = Queue("mail", url=proxy.url)
    yield queue
    queue.close()


@pytest.fixture
def producer(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[WakeCall]:
    """The blocking calls of all workers of the test."""
    made: list[WakeCall] = []
    make = WakeCall.__init__

    def noted(self: WakeCall, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    monkeypatch.setattr(WakeCall, "__init__", noted)
    return made


def waiting(calls: list[WakeCall]) -> int:
    """How many claims wait behind these calls."""
    return sum(call._behind for call in calls if call._is_blocked)


def idle(calls: list[WakeCall], count: int = 1) -> None:
    eventually(lambda: waiting(calls) == count)


def test_a_job_starts_without_another_request(
    proxy: Proxy, through: Queue, producer: Queue, calls: list[WakeCall]
) -> None:
    with at_work(through, concurrency=1):
        assert producer.enqueue(jobs.add, 1).wait(60) == 1
        idle(calls)
        assert through.counts().waiting == 0, "and so the proxy has delivered the claim"
        proxy.swallow("requests")
        producer.enqueue(jobs.note_start)
        jobs.wait_seen(1)
        proxy.hear()
        proxy.reset()


def test_if_the_reply_is_lost_the_claim_is_repeated(
    proxy: Proxy, through: Queue, producer: Queue, direct: redis.Redis, calls: list[WakeCall]
) -> None:
    with at_work(through):
        idle(calls)
        proxy.lose_reply_with(b"add")
        job = producer.enqueue(jobs.add, 1)
        assert job.wait(60) == 1
        assert proxy.lost == 1
    assert job.refresh().attempt == 1
    assert assert_legal(direct, "mail").total("reclaimed") == 0


def test_a_worker_that_stops_returns_what_its_claim_has_taken(
    proxy: Proxy, through: Queue, producer: Queue, direct: redis.Redis, calls: list[WakeCall]
) -> None:
    with at_work(through) as one:
        idle(calls)
        proxy.hold()
        job = producer.enqueue(jobs.add, 1)
        eventually(lambda: job.refresh().status is State.ACTIVE)
        one.stop()
        eventually(lambda: not waiting(calls))
        proxy.deliver()
    assert job.refresh().status is State.WAITING
    assert job.attempt == 0
    assert assert_legal(direct, "mail").total("reclaimed") == 0
    with at_work(producer):
        assert job.wait(60) == 1


def test_a_paused_worker_has_none(queue: Queue, calls: list[WakeCall]) -> None:
    def ask(paused: bool) -> None:
        assert queue._client.run(worker_pause(keys_of(None), [one.name], paused)) == ["ok"]

    with at_work(queue) as one:
        idle(calls)
        eventually(lambda: queue.workers())
        ask(True)
        eventually(lambda: not waiting(calls))
        job = queue.enqueue(jobs.add, 1)
        ask(False)
        assert job.wait(60) == 1
        idle(calls)


def test_a_worker_without_a_free_slot_leaves_the_job_to_another(
    queue: Queue, calls: list[WakeCall]
) -> None:
    """Both queues' claims waited while it was idle."""
    second = Queue("second", url=queue.url)
    with at_work(queue, second, concurrency=1, name="busy"):
        idle(calls, 2)
        blocking = queue.enqueue(jobs.wait_thread)
        eventually(lambda: blocking.refresh().status is State.ACTIVE)
        job = second.enqueue(jobs.add, 1)
        with at_work(second, name="other"):
            assert job.wait(60) == 1
            assert blocking.refresh().status is State.ACTIVE
        assert blocking.wait(60) == "waited"
    assert job.refresh().attempt == 1
    second.close()


def test_a_claim_is_sent_behind_a_call_that_blocks_already(
    queue: Queue, calls: list[WakeCall]
) -> None:
    """While a delayed job is about to be due, no claim waits."""
    with at_work(queue):
        idle(calls)
        assert queue.enqueue(jobs.add, 1, delay="80ms").wait(60) == 1
        idle(calls)
        job = queue.enqueue(jobs.add, 2)
        assert job.wait(60) == 2
        idle(calls)
    assert job.refresh().attempt == 1
