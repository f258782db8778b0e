"""Jobs that delay-rq delayed, and its Timers: each runs once, whoever moves it."""

from __future__ import annotations

import contextlib
import logging
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import redis
import rq
from rq.job import Job, JobStatus

import bide.contrib.rq.timer
from bide.contrib.rq import DelayQueue
from tests.contrib.rq import jobs
from tests.contrib.rq.delay_rq import OldQueue, old_timers
from tests.contrib.rq.rqs import at_work, burst, due_now, run, server_now
from tests.contrib.rq.test_timer import calls
from tests.support.eventually import eventually


@pytest.fixture
def old(queue: DelayQueue) -> OldQueue:
    """The same queue, as delay-rq has it."""
    return OldQueue("mail", queue.connection)


def past(old: OldQueue, *args: Any, ts: float = 1, **options: Any) -> Job:
    """A job of delay-rq's that is due since long."""
    return old.enqueue_delay_job(old.create_job(jobs.add, args, **options), ts)


@pytest.mark.slow
def test_all_that_delay_rq_delayed_are_moved_and_run_once(
    queue: DelayQueue, old: OldQueue, caplog: pytest.LogCaptureFixture
) -> None:
    made = [past(old, number, ts=number) for number in range(250)]
    later = old.enqueue(jobs.add, 1, delay=3600)
    with caplog.at_level(logging.INFO, "bide.rq"):
        assert burst(queue) == 250
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert queue.job_ids == [job.id for job in made]
    run(queue)
    assert [job.return_value() for job in made] == [number + 1 for number in range(250)]
    assert {len(job.results()) for job in made} == {1}
    assert queue.delayed_jobs() == [later]


def test_what_is_taken_over_looks_as_if_it_were_enqueued_then(
    queue: DelayQueue, old: OldQueue
) -> None:
    options: dict[str, Any] = {"timeout": 77, "meta": {"by": "test"}, "ttl": 60}
    job = past(old, 1, description="one", retry=rq.Retry(2), **options)
    assert queue.connection.hget(job.key, "status") == b"queued"
    assert not queue.connection.hexists(job.key, "enqueued_at")
    before = server_now(queue.connection)
    assert burst(queue) == 1
    plain = rq.Queue("mail", queue.connection).enqueue_call(
        jobs.add, (1,), description="one", retry=rq.Retry(2), **options
    )
    moved, own = (queue.connection.hgetall(each.key) for each in (job, plain))
    assert moved.keys() == own.keys()
    assert {name for name in own if own[name] != moved[name]} <= {b"created_at", b"enqueued_at"}
    at = Job.fetch(job.id, queue.connection).enqueued_at
    assert at is not None
    assert before <= at.timestamp() <= server_now(queue.connection)
    assert 58 <= queue.connection.ttl(job.key) <= 60


def test_their_timer_moves_ours(queue: DelayQueue) -> None:
    made = [queue.enqueue(jobs.add, n, delay="1ms", ttl=1000) for n in range(20)]
    other = queue.enqueue(jobs.add, 1, delay=3600)
    with old_timers(queue.connection, ["mail"]):
        eventually(lambda: queue.count == 20)
    run(queue)
    assert [job.return_value() for job in made] == [n + 1 for n in range(20)]
    assert queue.delayed_jobs() == [other]
    assert burst(queue) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_old_and_new_timers_over_old_and_new_jobs_lose_none_and_run_none_twice(
    one_queue: DelayQueue, seed: int
) -> None:
    """Old producers and Timers give way to new ones while both are at work, and back again."""
    lots = random.Random(seed)
    connection = one_queue.connection
    old = OldQueue("mail", connection)
    worker = rq.SimpleWorker([one_queue], connection=connection)
    made: list[str] = []

    def produce(share: float) -> None:
        """Some jobs, of which this share is the new producers'."""
        for _ in range(60):
            kind: Any = one_queue if lots.random() < share else old
            options = {"job_id": f"again-{len(made)}"} if lots.random() < 0.2 else {}
            delay = lots.uniform(0.0001, 0.4)
            made.append(kind.enqueue(jobs.write_down, "ledger", delay=delay, **options).id)
            if lots.random() < 0.05:
                for client in connection.client_list(_type="normal"):
                    if client["cmd"] == "evalsha":  # a Timer's, which loses a reply
                        with contextlib.suppress(redis.ConnectionError):
                            connection.client_kill_filter(_id=client["id"])
        worker.work(burst=True)

    with contextlib.ExitStack() as new:
        with old_timers(connection, ["mail"], 2) as before:
            produce(0)
            produce(0.5)
            new.enter_context(at_work(one_queue))
            new.enter_context(at_work(one_queue))
            produce(0.5)
            produce(1)
        produce(0.5)
        with old_timers(connection, ["mail"], 2):
            produce(0.5)
            new.close()
            produce(1)
            eventually(lambda: not connection.exists(one_queue.delay_key))
    worker.work(burst=True)
    ledger = connection.hgetall("ledger")
    assert {id: ledger.get(id.encode()) for id in made} == dict.fromkeys(made, b"1")
    assert sum(timer.moved for timer in before)
    assert connection.llen(one_queue.key) == 0


def test_an_id_that_is_used_again_by_either_is_not_lost(queue: DelayQueue, old: OldQueue) -> None:
    """The hash of the job that had it before is still there, with its enqueued_at."""
    for number, kind in enumerate((old, queue, old, old, queue, queue, old)):
        job = kind.enqueue(jobs.write_down, "ledger", delay=0.0001, job_id="daily")
        if number % 2:  # by either Timer
            eventually(lambda: burst(queue))
        else:
            with old_timers(queue.connection, ["mail"]):
                eventually(lambda: queue.job_ids == ["daily"])
        run(queue)
        assert queue.connection.hget("ledger", "daily") == str(number + 1).encode()
        assert job.get_status() == JobStatus.FINISHED


def test_a_job_of_theirs_that_was_enqueued_at_once_is_not_enqueued_again(
    queue: DelayQueue, old: OldQueue
) -> None:
    job = past(old, 1)
    rq.Queue("mail", queue.connection).enqueue_job(job)
    assert burst(queue) == 0
    assert queue.job_ids == [job.id]


def test_their_cancelled_and_deleted_jobs_are_dropped(queue: DelayQueue, old: OldQueue) -> None:
    cancelled, deleted, behind = past(old, 1), past(old, 1), past(old, 1, ts=2)
    cancelled.cancel()
    deleted.delete()
    assert burst(queue) == 1
    assert queue.job_ids == [behind.id]
    assert not queue.connection.exists(queue.delay_key)


def test_a_member_whose_job_is_not_saved_yet_is_not_dropped(
    queue: DelayQueue, old: OldQueue
) -> None:
    """delay-rq adds the member first; a Timer may look in between."""
    job = old.create_job(jobs.add, (1,))
    now = server_now(queue.connection)
    queue.connection.zadd(queue.delay_key, {job.id: now - 1, "gone": now - 3600})
    assert burst(queue) == 0
    assert queue.connection.zrange(queue.delay_key, 0, -1) == [job.id.encode()]
    job.save()
    assert burst(queue) == 1
    assert queue.job_ids == [job.id]


def strangers(queue: DelayQueue, count: int, score: float = 1) -> list[str]:
    """Members of the set that nobody delayed: their jobs have run, or are another queue's."""
    other = rq.Queue("other", queue.connection)
    for number in range(count):
        name = f"stranger-{number:04}"
        job = other.create_job(jobs.add, (number,), job_id=name)
        job.save()
        queue.connection.zadd(queue.delay_key, {name: score})
    return [f"stranger-{number:04}" for number in range(count)]


def test_what_neither_has_delayed_stays_and_is_told_once(
    queue: DelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    finished = queue.enqueue(jobs.add, 1)
    run(queue)
    names = [*strangers(queue, 4), finished.id]
    queue.connection.zadd(queue.delay_key, {finished.id: 2})
    before = {name: queue.connection.hgetall(f"rq:job:{name}") for name in names}
    behind = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 3)
    with caplog.at_level(logging.INFO, "bide.rq"), at_work(queue) as timer:
        eventually(lambda: queue.job_ids == [behind.id])
        timer._look()
        job = queue.enqueue(jobs.add, 1, delay="1ms")
        eventually(lambda: queue.job_ids == [behind.id, job.id])
    told = [text for text in caplog.messages if " stay: " in text]
    assert len(told) == 1
    assert " and 2 more members of rq:delay_queue:mail stay: neither bide nor delay-rq" in told[0]
    assert queue.connection.zcard(queue.delay_key) == len(names)
    assert {name: queue.connection.hgetall(f"rq:job:{name}") for name in names} == before
    assert queue.delayed_jobs() == []
    assert not queue.reschedule(finished, 5)
    assert not queue.cancel_delayed(finished)


@pytest.mark.parametrize("count", [99, 100, 350])
def test_what_stays_holds_up_nothing_behind_it_or_beside_it(
    queue: DelayQueue, old: OldQueue, count: int
) -> None:
    names = strangers(queue, count)
    beside = [past(old, 1, job_id=f"{name}-{n}") for name in names for n in range(2)]
    behind = [past(old, number, ts=2) for number in range(50)]
    before = [past(old, number, ts=0.5) for number in range(2)]  # so a call ends between `beside`
    made = sorted(job.id for job in (*beside, *behind, *before))
    assert burst(queue) == len(made)
    assert sorted(queue.job_ids) == made
    assert queue.connection.zrange(queue.delay_key, 0, -1) == [name.encode() for name in names]


def test_what_stays_is_not_read_again_and_again(queue: DelayQueue) -> None:
    """A Timer that has left more than one call reads goes on behind them."""
    strangers(queue, 350)
    with at_work(queue):
        first = queue.enqueue(jobs.add, 1, delay="1ms")
        eventually(lambda: queue.job_ids == [first.id])
        before = calls(queue.connection)
        for number in range(20):
            queue.enqueue(jobs.add, 1, delay=0.01)
            eventually(partial(has, queue, 2 + number))
        assert calls(queue.connection) - before < 4 * 20  # to read all takes four calls each time


def has(queue: DelayQueue, count: int) -> bool:
    return queue.count == count


@pytest.mark.parametrize("is_woken", [True, False])
def test_what_is_due_before_all_that_stays_is_found(
    queue: DelayQueue, is_woken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.contrib.rq.timer, "LONGEST_SLEEP", 3600.0 if is_woken else 0.2)
    strangers(queue, 350)
    with at_work(queue):
        first = queue.enqueue(jobs.add, 1, delay="1ms")
        eventually(lambda: queue.job_ids == [first.id])  # so it has read all that stays
        job = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 4e9)
        if is_woken:
            assert queue.reschedule(job, at=datetime(1970, 1, 1, tzinfo=UTC))
        else:
            queue.connection.zadd(queue.delay_key, {job.id: 0})
        eventually(lambda: queue.job_ids == [first.id, job.id])


@pytest.mark.usefixtures("no_looks")
def test_a_job_is_announced_though_what_stays_is_due_before_it(queue: DelayQueue) -> None:
    strangers(queue, 3)
    with at_work(queue):
        for _ in range(3):
            job = queue.enqueue(jobs.add, 1, delay=0.02)
            eventually(lambda: job.id in queue.job_ids)  # noqa: B023


def test_a_timer_looks_by_itself_while_delay_rq_adds_jobs(
    queue: DelayQueue, old: OldQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their queue sends no wake-up messages."""
    monkeypatch.setattr(bide.contrib.rq.timer, "LONGEST_SLEEP", 3600.0)
    first = past(old, 1)
    with at_work(queue):
        eventually(lambda: queue.job_ids == [first.id])
        second = old.enqueue(jobs.add, 1, delay=0.05)
        eventually(lambda: queue.job_ids == [first.id, second.id])


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_of_theirs_waits_for_the_jobs_that_it_depends_on(
    queue: DelayQueue, old: OldQueue, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """RQ looks at them when it enqueues the job, which their Timer had it do."""
    parent, failing = queue.enqueue(jobs.add, 1), queue.enqueue(jobs.fail)
    gone = queue.enqueue(jobs.add, 1)
    job = past(old, 1, depends_on=rq.job.Dependency([parent, failing, gone], allowed))
    single = past(old, 1, depends_on=parent, ts=2)
    gone.delete()
    with caplog.at_level(logging.INFO, "bide.rq"):
        assert burst(queue) == 0
    assert f"job {job.id} of mail is due, and waits for other jobs" in caplog.messages
    assert queue.delayed_jobs() == [job, single]
    run(queue)
    burst(queue)
    assert queue.job_ids == ([job.id, single.id] if allowed else [single.id])


def test_our_verbs_hold_for_what_delay_rq_has_delayed(queue: DelayQueue, old: OldQueue) -> None:
    first, second, third = (old.enqueue(jobs.add, n, delay=60 + n) for n in range(3))
    assert queue.delayed_jobs() == [first, second, third]
    until = queue.delayed_until(second)
    assert until is not None
    assert timedelta(seconds=50) < until - datetime.now(UTC) < timedelta(seconds=70)
    assert queue.cancel_delayed(second)
    assert second.get_status() == JobStatus.CANCELED
    assert queue.canceled_job_registry.get_job_ids() == [second.id]
    assert queue.reschedule(third, "2h")
    due_now(queue, first)
    assert queue.job_ids == [first.id]
    assert queue.delayed_jobs() == [third]
