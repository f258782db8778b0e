"""Stopping a worker: at the first signal what runs may finish; at the second it is given back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide import Queue, Retry, Worker
from bide.client import aio
from bide.protocol.commands.queues import WorkerReport
from bide.protocol.keys import keys_of
from bide.worker import heartbeat
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import Holding, assert_legal
from tests.support.proxy import Proxy
from tests.support.server_state import members
from tests.support.worker_pool import JOBS, WorkerPool

KEYS = keys_of("mail")
KINDS = ("held", "held_in_thread")
PATIENT = ("-q", "mail", "--grace", "1h")
"""Of a worker that is to end by a second signal, and not by the end of its grace."""


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def forgotten(direct: redis.Redis, name: str) -> bool:
    """Whether the server knows nothing of a worker any more."""
    fields: Any = [*direct.hkeys(KEYS["claims"]), *direct.hkeys(keys_of(None)["workers"])]
    known = [*members(direct, KEYS["keep"]), *members(direct, KEYS["park"])]
    known += [field.decode() for field in fields]
    return not any(other.startswith(f"{name}.") for other in known)


@pytest.mark.slow
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_at_the_first_signal_what_runs_finishes_and_nothing_begins(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool, sig: int
) -> None:
    worker = worker_pool.worker(one_url, "-q", "mail", "-c", "2")
    running = {queue.enqueue(f"{JOBS}:{kind}", "gate").id for kind in KINDS}
    worker_pool.ledger.wait("begun", 2)
    waiting = {queue.enqueue(f"{JOBS}:quick").id for _ in range(5)}
    worker.process.send_signal(sig)
    worker.says("is stopping: 2 jobs may finish")
    worker_pool.open_gate("gate")
    assert worker.wait() == 0
    assert worker_pool.ledger.count("done").keys() == running
    assert worker_pool.ledger.count("begun").keys() == running
    holding = assert_legal(direct, "mail")
    assert holding.sets["completed"].keys() == running
    assert holding.due.keys() == waiting
    assert forgotten(direct, worker.name)


def test_at_the_second_signal_what_runs_is_given_back_without_using_an_attempt(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    first = worker_pool.worker(one_url, *PATIENT)
    jobs = [queue.enqueue(f"{JOBS}:{kind}", "gate") for kind in KINDS]
    worker_pool.ledger.wait("begun", 2)
    first.terminate()
    first.says("may finish")
    first.terminate()
    assert first.wait() == 0
    holding = assert_legal(direct, "mail")
    assert holding.due.keys() == {job.id for job in jobs}
    assert {(r.attempt, r.strikes, r.crashes) for r in holding.records.values()} == {(0, 0, 0)}
    worker_pool.open_gate("gate")
    second = worker_pool.worker(one_url, "-q", "mail", "--burst")
    assert second.wait() == 0
    runs = [(line.id, line.attempt) for line in worker_pool.ledger.lines("begun")]
    assert sorted(runs) == sorted([(job.id, 1) for job in jobs] * 2)
    assert assert_legal(direct, "mail").total("completed") == 2
    assert [line.pid for line in worker_pool.ledger.lines("done")] == [second.pid] * 2


@pytest.mark.slow
def test_a_second_attempt_that_is_given_back_is_the_second_again(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    first = worker_pool.worker(one_url, *PATIENT)
    job = queue.enqueue(f"{JOBS}:fails_then_held", "gate", retry=Retry(5, "fixed", base=0))
    worker_pool.ledger.wait("begun", 2)
    first.terminate()
    first.says("may finish")
    first.terminate()
    assert first.wait() == 0
    worker_pool.open_gate("gate")
    assert worker_pool.worker(one_url, "-q", "mail", "--burst").wait() == 0
    assert [line.attempt for line in worker_pool.ledger.lines("begun")] == [1, 2, 2]
    assert job.refresh().state == "completed"


@pytest.mark.slow
def test_at_the_end_of_its_grace_a_worker_gives_back_what_still_runs(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    worker = worker_pool.worker(one_url, "-q", "mail", "--grace", "500ms")
    jobs = [queue.enqueue(f"{JOBS}:{kind}", "gate") for kind in KINDS]
    worker_pool.ledger.wait("begun", 2)
    worker.terminate()
    assert worker.wait() == 0
    assert "releases 2 running jobs" in worker.log
    assert assert_legal(direct, "mail").due.keys() == {job.id for job in jobs}


@pytest.mark.slow
def test_a_job_that_is_deaf_to_being_cancelled_does_not_keep_the_process(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    worker = worker_pool.worker(one_url, *PATIENT)
    job = queue.enqueue(f"{JOBS}:stubborn", "gate")
    worker_pool.ledger.wait("begun", 1)
    worker.terminate()
    worker.says("may finish")
    worker.terminate()
    assert worker.wait() == 0
    assert assert_legal(direct, "mail").due.keys() == {job.id}


def test_a_process_that_a_job_forks_does_not_take_a_signal_for_the_workers(
    one_url: str, queue: Queue, worker_pool: WorkerPool
) -> None:
    worker = worker_pool.worker(one_url, "-q", "mail")
    assert queue.enqueue(f"{JOBS}:forks").wait(90) == -signal.SIGTERM
    worker.terminate()
    assert worker.wait() == 0


def test_a_burst_ends_when_nothing_is_due(
    one_url: str, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    due = {queue.enqueue(f"{JOBS}:quick").id for _ in range(10)}
    later = queue.enqueue(f"{JOBS}:quick", delay=60)
    worker = worker_pool.worker(one_url, "-q", "mail", "--burst", "-c", "3")
    assert worker.wait() == 0
    holding = assert_legal(direct, "mail")
    assert holding.sets["completed"].keys() == due
    assert holding.due.keys() == {later.id}
    assert forgotten(direct, worker.name)


def test_a_sign_of_life_that_is_late_does_not_arrive_behind_the_goodbye(
    proxy: Proxy, direct: redis.Redis
) -> None:
    proxy.delay_request(b'"host"', 0.3)
    """Over its own connection, that is: who it is of has been forgotten by then."""
    Worker("mail", url=proxy.url, name="w1").run(burst=True)
    proxy.wait()
    assert forgotten(direct, "w1")


def test_a_sign_of_life_that_failed_is_sent_again_soon(
    proxy: Proxy, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 3600.0)
    monkeypatch.setattr(heartbeat, "AGAIN", 0.01)
    proxy.lose_every_reply(1)

    async def until_heard() -> None:
        client = aio.AsyncClient(proxy.url, retry_for=0)
        beats = 0

        def about(skew: float | None) -> WorkerReport:
            nonlocal beats
            beats += 1
            if beats == 3:
                proxy.behave()
            return WorkerReport("host")

        beating = heartbeat.Heartbeat(
            *(client, keys_of(None), [], "w1.a", about),
            stop=lambda: None,
            pause=lambda paused: None,
        )
        async with asyncio.timeout(30):
            while not beating.accepted_at:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        await beating.close(leaves=False)
        await client.close()

    asyncio.run(until_heard())
    assert not forgotten(direct, "w1")


def test_a_heartbeat_that_fails_is_logged_and_others_follow(
    one_url: str,
    direct: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the error is: without heartbeats, nobody could see or stop the worker."""
    monkeypatch.setattr(heartbeat, "EVERY", 0.01)
    again = asyncio.Event()
    skews: list[float | None] = []

    def about(skew: float | None) -> WorkerReport:
        skews.append(skew)
        if len(skews) == 1:
            raise RuntimeError("changed size during iteration")
        if len(skews) == 3:
            again.set()
        return WorkerReport("host")

    async def until_heard() -> None:
        client = aio.AsyncClient(one_url, retry_for=0)
        beating = heartbeat.Heartbeat(
            *(client, keys_of(None), [], "w1.a", about),
            stop=lambda: None,
            pause=lambda paused: None,
        )
        async with asyncio.timeout(PATIENCE):
            await again.wait()
        await beating.close(leaves=False)
        await client.close()

    asyncio.run(until_heard())
    assert not forgotten(direct, "w1")
    (record,) = [one for one in caplog.records if "A heartbeat failed" in one.getMessage()]
    assert "changed size during iteration" in str(record.exc_info)


@pytest.mark.slow
def test_jobs_of_a_claim_whose_reply_was_lost_are_given_back_at_the_stop(
    proxy: Proxy, queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """The worker does not know what it holds; it asks again before it leaves."""
    (worker,) = worker_pool.workers_at_work(1, proxy.url, "-q", "mail")
    proxy.lose_replies_with(f"{JOBS}:quick".encode())
    # Delayed, so that a timer, not a message, has it claimed.
    job = queue.enqueue(f"{JOBS}:quick", delay=0.3)

    def held() -> Holding | None:
        holding = assert_legal(direct, "mail")
        return holding if holding.where(job.id) == "active" else None

    eventually(held)
    worker.terminate()
    worker.says(" is stopping: ")
    proxy.behave()
    assert worker.wait() == 0
    assert worker_pool.ledger.lines() == []
    holding = assert_legal(direct, "mail")
    assert holding.where(job.id) == "due"
    record = holding.records[job.id]
    assert (record.attempt, record.strikes, record.crashes) == (0, 0, 0)
