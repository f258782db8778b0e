"""A queue's sorted set may have another key: of the class, or of the one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from rq.job import JobStatus

from bide.contrib.rq import DelayQueue, Timer
from bide.errors import UsageError
from tests.contrib.rq import jobs
from tests.contrib.rq.delay_rq import OldQueue
from tests.contrib.rq.rqs import at_work, burst, due_now, run
from tests.support.eventually import eventually

KEY = "shop:later"


class OfItsClass(DelayQueue):
    delay_key = KEY


class Computed(DelayQueue):
    @property
    def delay_key(self) -> str:  # type: ignore[override]
        return f"shop:{self.name}:later"


class SetFirst(DelayQueue):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.delay_key = KEY
        super().__init__(*args, **kwargs)


def of_its_own(name: str, connection: redis.Redis) -> DelayQueue:
    queue = DelayQueue(name, connection)
    queue.delay_key = KEY
    return queue


Make = Callable[[str, redis.Redis], DelayQueue]
every_way = pytest.mark.parametrize("make", [OfItsClass, Computed, SetFirst, of_its_own])


def test_it_is_an_attribute_of_the_queue_as_it_was_of_delay_rqs(queue: DelayQueue) -> None:
    assert vars(queue)["delay_key"] == queue.delay_key == "rq:delay_queue:mail"


@every_way
def test_all_of_it_is_under_that_key(make: Make, connection: redis.Redis) -> None:
    queue = make("mail", connection)
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60)
    made = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 4e9)
    cancelled = queue.enqueue(jobs.add, 1, delay=70)
    gated = queue.enqueue(jobs.add, 1, delay=80, depends_on=parent)
    with connection.pipeline() as pipe:
        piped = queue.enqueue(jobs.add, 1, delay=90, pipeline=pipe)
        pipe.execute()
    run(queue)
    assert burst(queue) == 0  # which opens the gate
    assert queue.delayed_jobs() == [job, cancelled, gated, piped, made]
    assert queue.cancel_delayed(cancelled)
    assert queue.reschedule(piped, 75)
    assert queue.delayed_until(cancelled) is None
    assert queue.delayed_jobs() == [job, piped, gated, made]
    assert connection.zcard(queue.delay_key) == 4
    for one in (job, gated, piped, made):
        due_now(queue, one)
    assert queue.job_ids == [job.id, gated.id, piped.id, made.id]
    fields: Any = connection.hkeys(gated.key)
    assert [name for name in fields if name.startswith(b"delay")] == [b"delay_call"]
    assert connection.keys("rq:delay_queue:*") == []
    run(queue)
    assert gated.return_value() == 2


@pytest.mark.usefixtures("no_looks")
@every_way
def test_a_timer_at_work_moves_on_time(make: Make, connection: redis.Redis) -> None:
    queue = make("mail", connection)
    with at_work(queue):
        job = queue.enqueue(jobs.add, 1, delay=0.02)
        eventually(lambda: queue.job_ids == [job.id])


def test_a_timer_takes_the_key_of_whatever_queue_it_is_given(connection: redis.Redis) -> None:
    old = OldQueue("mail", connection)
    old.delay_key = KEY
    job = old.enqueue_delay_job(old.create_job(jobs.add, (1,)), 1)
    assert burst("mail", connection=connection) == 0
    assert burst(old) == 1
    assert old.job_ids == [job.id]


@pytest.mark.usefixtures("no_looks")
def test_two_sets_of_one_name_are_two_sets(connection: redis.Redis) -> None:
    """A job that is put off from one to the other is due when the other says."""
    usual, other = DelayQueue("mail", connection), of_its_own("mail", connection)
    first = usual.enqueue(jobs.add, 1, delay=60)
    job = usual.enqueue(jobs.add, 1, delay=60)
    other.enqueue_delay_job(job, 4e9)
    assert usual.delayed_jobs() == [first]
    assert not usual.reschedule(job, 0)
    assert not usual.cancel_delayed(job)
    connection.zadd(usual.delay_key, {job.id: 1})
    assert burst(usual, other) == 0
    assert other.delayed_jobs() == [job]
    usual.enqueue_delay_job(job, 4e9)  # and back
    connection.zadd(KEY, {job.id: 1})
    assert burst(usual, other) == 0
    assert usual.delayed_jobs() == [first, job]
    assert usual.reschedule(job, 0)
    assert burst(usual, other) == 1
    run(usual)
    with at_work(usual, other):
        soon = [queue.enqueue(jobs.add, 1, delay=0.02) for queue in (usual, other)]
        eventually(lambda: sorted(usual.job_ids) == sorted(job.id for job in soon))


@pytest.mark.parametrize("key", [KEY, "rq:delay_queue:mail"])
def test_queues_that_share_a_set_leave_each_others_jobs_alone(
    connection: redis.Redis, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [DelayQueue(name, connection) for name in ("mail", "low")]
    made = []
    for queue in queues:
        queue.delay_key = key
        made.append(queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 1))
    caplog.clear()  # of the moment, which is long ago
    for queue, job in zip(queues, made, strict=True):
        assert queue.delayed_jobs() == [job]
        assert burst(queue) == 1
        assert queue.job_ids == [job.id]
    assert not caplog.records


def test_jobs_of_delay_rq_in_a_shared_set_are_their_own_queues(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """No Timer of another queue says that they are to be removed."""
    queues = [OldQueue(name, connection) for name in ("mail", "low")]
    made = []
    for queue in queues:
        queue.delay_key = KEY
        made.append(queue.enqueue_delay_job(queue.create_job(jobs.add, (1,)), 1))
    assert burst(*queues) == 2
    for queue, job in zip(queues, made, strict=True):
        assert queue.job_ids == [job.id]
    assert not caplog.records


def test_rqs_verbs_hold_there(connection: redis.Redis) -> None:
    queue = of_its_own("mail", connection)
    cancelled, deleted = (queue.enqueue(jobs.add, 1, delay=60) for _ in range(2))
    cancelled.cancel()
    deleted.delete()
    connection.zadd(KEY, {cancelled.id: 1, deleted.id: 1})
    assert burst(queue) == 0
    assert cancelled.get_status() == JobStatus.CANCELED
    assert not connection.exists(KEY)


@pytest.mark.parametrize("key", ["", None, b"bytes", 7])
def test_what_is_no_key_is_refused(connection: redis.Redis, key: Any) -> None:
    queue = DelayQueue("mail", connection)
    queue.delay_key = key
    for call in (lambda: queue.enqueue(jobs.add, 1, delay=1), lambda: Timer(queue)):
        with pytest.raises(UsageError, match=r"^delay_key must be the name of a key, as text, not"):
            call()
    assert connection.dbsize() == 0
