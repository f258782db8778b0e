"""Every option of RQ's enqueue means with a delay what it means without."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
import rq
from rq import Callback, Repeat, Retry
from rq.decorators import job as job_decorator
from rq.exceptions import DuplicateJobError
from rq.job import Dependency, Job, JobStatus
from rq.serializers import JSONSerializer

from bide.contrib.rq import DelayQueue
from bide.errors import UsageError
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import burst, due, due_now, run, server_now


def stored(queue: DelayQueue, job: Job) -> Job:
    return Job.fetch(job.id, queue.connection)


def test_a_delayed_job_waits_in_the_sorted_set_and_nowhere_else(queue: DelayQueue) -> None:
    before = server_now(queue.connection)
    job = queue.enqueue(jobs.add, 1, b=2, delay=1.5)
    after = server_now(queue.connection)
    assert queue.delay_key == "rq:delay_queue:mail"
    assert queue.connection.zcard("rq:delay_queue:mail") == 1
    assert before + 1.5 <= (due(queue, job) or 0) <= after + 1.5
    assert job.get_status() == JobStatus.SCHEDULED
    assert job.origin == stored(queue, job).origin == "mail"
    assert queue.job_ids == []
    assert queue.scheduled_job_registry.get_job_ids() == []
    assert stored(queue, job).enqueued_at is None
    assert rq.Queue.all(queue.connection) == [queue]
    assert burst(queue) == 0


def test_fractions_of_a_second_are_kept_to_the_microsecond(queue: DelayQueue) -> None:
    job = queue.create_job(jobs.add, args=(1,))
    queue.enqueue_delay_job(job, 4_000_000_000.123457)
    assert due(queue, job) == 4_000_000_000.123457
    until = queue.delayed_until(job)
    assert until is not None
    assert until.timestamp() == 4_000_000_000.123457


@pytest.mark.parametrize("delay", [timedelta(minutes=30), "30m", 1800, 1800.0])
def test_a_delay_is_whatever_bide_takes(queue: DelayQueue, delay: Any) -> None:
    before = server_now(queue.connection)
    job = queue.enqueue(jobs.add, 1, delay=delay)
    after = server_now(queue.connection)
    assert before + 1800 <= (due(queue, job) or 0) <= after + 1800


@pytest.mark.parametrize("delay", [0, None, 0.0, "0s", timedelta(0), -1, "-1h", timedelta(-2)])
def test_no_delay_is_rqs_own_enqueue(queue: DelayQueue, delay: Any) -> None:
    job = queue.enqueue(jobs.add, 1, delay=delay)
    other = queue.enqueue_call(jobs.add, args=(1,), delay=delay)
    assert queue.job_ids == [job.id, other.id]
    assert job.get_status() == JobStatus.QUEUED
    assert not queue.connection.exists(queue.delay_key)
    assert not queue.connection.hexists(job.key, "delay_front")


@pytest.mark.parametrize("delay", ["-soon", "soon", float("nan"), float("inf"), True, 1e12, []])
def test_a_delay_that_cannot_be_meant_changes_nothing(queue: DelayQueue, delay: Any) -> None:
    with pytest.raises(UsageError, match=r"^[^.]*delay.*[.?]$"):
        queue.enqueue(jobs.add, 1, delay=delay)
    assert queue.connection.dbsize() == 0


@pytest.mark.parametrize("ts", [-1, float("nan"), 4_000_000_000_000, "1", None, True])
def test_a_moment_that_cannot_be_meant_changes_nothing(queue: DelayQueue, ts: Any) -> None:
    job = queue.create_job(jobs.add, args=(1,))
    with pytest.raises(UsageError, match="ts must be seconds since the epoch"):
        queue.enqueue_delay_job(job, ts)
    assert queue.connection.dbsize() == 0


def test_a_function_may_have_an_argument_of_that_name(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.wait_for, kwargs={"delay": 7}, delay=60)
    due_now(queue, job)
    run(queue)
    assert job.return_value() == 7


def test_a_job_that_is_moved_looks_as_if_it_were_enqueued_then(queue: DelayQueue) -> None:
    delayed = queue.enqueue(jobs.add, 1, delay=60)
    due_now(queue, delayed)
    plain = queue.enqueue(jobs.add, 1)
    assert queue.job_ids == [delayed.id, plain.id]
    moved, own = (queue.connection.hgetall(job.key) for job in (delayed, plain))
    assert moved.keys() - {b"delay_call"} == own.keys()
    assert {name for name in own if own[name] != moved[name]} <= {b"created_at", b"enqueued_at"}
    assert queue.connection.ttl(delayed.key) == queue.connection.ttl(plain.key) == -1


def test_a_job_runs_with_its_arguments_and_its_options(queue: DelayQueue) -> None:
    job = queue.enqueue(
        jobs.add,
        1,
        b=2,
        delay=60,
        job_timeout="2m",
        result_ttl=77,
        failure_ttl=88,
        description="one and two",
        job_id="sum",
        meta={"by": "test"},
        on_success=Callback(jobs.on_success, timeout=5),
        on_failure=Callback(jobs.on_failure),
        on_stopped=Callback(jobs.on_stopped),
    )
    for seen in (job, stored(queue, job)):
        assert (seen.timeout, seen.result_ttl, seen.failure_ttl) == (120, 77, 88)
        assert (seen.description, seen.id, seen.meta) == ("one and two", "sum", {"by": "test"})
        assert seen.success_callback is jobs.on_success
        assert seen.success_callback_timeout == 5
        assert seen.failure_callback is jobs.on_failure
        assert seen.stopped_callback is jobs.on_stopped
    due_now(queue, job)
    run(queue)
    assert job.get_status() == JobStatus.FINISHED
    assert job.return_value() == 3
    assert queue.connection.get("success:sum") == b"3"
    assert 0 < queue.connection.ttl(job.key) <= 77


def test_enqueue_call_takes_the_same(queue: DelayQueue) -> None:
    job = queue.enqueue_call(
        jobs.add, args=(1,), kwargs={"b": 5}, timeout=33, meta={"a": 1}, job_id="five", delay="1m"
    )
    assert (job.timeout, job.meta, job.id) == (33, {"a": 1}, "five")
    due_now(queue, job)
    run(queue)
    assert job.return_value() == 6


def test_the_queues_own_timeout_is_the_jobs(connection: redis.Redis) -> None:
    queue = DelayQueue("mail", connection, default_timeout=44)
    assert stored(queue, queue.enqueue(jobs.add, 1, delay=60)).timeout == 44
    made = Job.create(jobs.add, args=(1,), connection=connection)
    assert stored(queue, queue.enqueue_delay_job(made, 4e9)).timeout == 44


def test_ttl_counts_from_the_move(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60, ttl=30)
    assert queue.connection.ttl(job.key) == -1
    assert stored(queue, job).ttl == 30
    due_now(queue, job)
    assert 28 <= queue.connection.ttl(job.key) <= 30


def test_at_front_is_at_the_front_when_moved(queue: DelayQueue) -> None:
    first = queue.enqueue(jobs.add, 1)
    back = queue.enqueue(jobs.add, 1, delay=60)
    front = queue.enqueue(jobs.add, 1, delay=60, at_front=True)
    due_now(queue, back)
    due_now(queue, front)
    assert queue.job_ids == [front.id, first.id, back.id]
    assert stored(queue, front).enqueue_at_front is None


def test_retry_is_rqs(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.fail, delay=60, retry=Retry(max=2, interval=[0, 60]))
    due_now(queue, job)
    run(queue)
    assert job.get_status() == JobStatus.SCHEDULED
    assert stored(queue, job).retries_left == 0
    assert queue.scheduled_job_registry.get_job_ids() == [job.id]
    assert queue.delayed_jobs() == []


def test_repeat_is_rqs(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60, repeat=Repeat(times=2, interval=0))
    due_now(queue, job)
    run(queue)
    assert len(job.results()) == 3
    assert stored(queue, job).repeats_left == 0


def test_a_failure_is_rqs(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.fail, delay=60, on_failure=Callback(jobs.on_failure))
    due_now(queue, job)
    run(queue)
    assert queue.failed_job_registry.get_job_ids() == [job.id]
    assert queue.connection.get(f"failure:{job.id}") == b"it was to fail"
    stored(queue, job).requeue()
    assert queue.job_ids == [job.id]


def test_a_pipeline_sends_it_with_the_rest_or_not_at_all(queue: DelayQueue) -> None:
    with queue.connection.pipeline() as pipe:
        first = queue.enqueue(jobs.add, 1, delay=60, pipeline=pipe)
        second = queue.enqueue_call(jobs.add, args=(2,), delay=30, pipeline=pipe)
        made = queue.create_job(jobs.add, args=(3,))
        third = queue.enqueue_delay_job(made, 4e9, pipeline=pipe)
        now = queue.enqueue(jobs.add, 1, pipeline=pipe)
        assert queue.connection.dbsize() == 0
        pipe.execute()
    assert [job.id for job in queue.delayed_jobs()] == [second.id, first.id, third.id]
    assert queue.job_ids == [now.id]


def test_a_unique_id_is_refused_while_its_job_is_there(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, delay=60, job_id="one", unique=True)
    due_before = queue.delayed_until("one")
    for again in (jobs.add, "tests.contrib.rq.jobs.add"):
        with pytest.raises(DuplicateJobError, match="'one' already exists"):
            queue.enqueue(again, 2, delay=5, job_id="one", unique=True)
    with pytest.raises(DuplicateJobError):
        queue.enqueue(jobs.add, 2, job_id="one", unique=True)
    assert queue.delayed_until("one") == due_before
    assert Job.fetch("one", queue.connection).args == (1,)


def test_unique_asks_for_what_rq_asks(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    with pytest.raises(ValueError, match="requires an explicit job_id"):
        queue.enqueue(jobs.add, 1, delay=60, unique=True)
    with pytest.raises(ValueError, match="not supported with job dependencies"):
        queue.enqueue(jobs.add, 1, delay=60, unique=True, job_id="one", depends_on=parent)
    made = queue.create_job(jobs.add, args=(1,))
    with pytest.raises(ValueError, match="requires an explicit job_id"):
        queue._delaying(60).enqueue_job(made, unique=True)
    assert queue.delayed_jobs() == []


def test_the_same_id_again_is_the_same_job_with_a_new_due_time(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, delay=3600, job_id="one")
    job = queue.enqueue(jobs.add, 2, delay=60, job_id="one")
    assert queue.connection.zcard(queue.delay_key) == 1
    due_now(queue, job)
    assert burst(queue) == 0
    run(queue)
    assert job.return_value() == 3


def test_the_id_of_a_job_that_is_about_to_expire_may_be_used_again(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, job_id="one", ttl=50, result_ttl=60, at_front=True)
    run(queue)
    assert queue.connection.ttl("rq:job:one") > 0
    job = queue.enqueue(jobs.add, 2, delay=3600, job_id="one")
    assert queue.connection.ttl(job.key) == -1
    assert stored(queue, job).enqueued_at is None
    due_now(queue, job)
    assert queue.connection.ttl(job.key) == -1
    run(queue)
    assert job.return_value() == 3


def test_a_job_that_has_run_may_be_delayed_again(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1)
    run(queue)
    job = stored(queue, job)
    assert job.enqueued_at is not None
    queue.enqueue_delay_job(job, 0)
    assert job.get_status() == JobStatus.SCHEDULED
    assert burst(queue) == 1
    run(queue)
    assert len(job.results()) == 2


def test_a_moment_that_is_past_is_due_at_once(queue: DelayQueue) -> None:
    job = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 0)
    assert burst(queue) == 1
    assert queue.job_ids == [job.id]


def test_enqueue_at_and_enqueue_in_are_rqs_own(queue: DelayQueue) -> None:
    job = queue.enqueue_in(timedelta(seconds=1), jobs.wait_for, delay=3)
    assert queue.scheduled_job_registry.get_job_ids() == [job.id]
    assert not queue.connection.exists(queue.delay_key)
    assert job.kwargs == {"delay": 3}
    run(queue)


def test_a_queue_that_is_not_async_delays_as_its_enqueue_in_does(connection: redis.Redis) -> None:
    queue = DelayQueue("mail", connection, is_async=False)
    job = queue.enqueue(jobs.add, 1, delay=60)
    assert job.get_status() == JobStatus.SCHEDULED
    due_now(queue, job)
    assert queue.job_ids == [job.id]
    assert queue.enqueue(jobs.add, 1).return_value() == 2


def test_other_serializers_and_names(connection: redis.Redis) -> None:
    queue = DelayQueue("mé {1}:*", connection, serializer=JSONSerializer)
    job = queue.enqueue(jobs.add, 1, delay=60, meta={"ü": 1})
    assert [one.meta for one in queue.delayed_jobs()] == [{"ü": 1}]
    due_now(queue, job)
    worker = rq.SimpleWorker([queue], connection=connection, serializer=JSONSerializer)
    worker.work(burst=True)
    assert job.return_value() == 2


def test_rqs_decorator_takes_the_class(connection: redis.Redis) -> None:
    queue = DelayQueue("mail", connection)
    enqueued = job_decorator(queue, connection=connection)(jobs.add).enqueue(1)
    assert queue.job_ids == [enqueued.id]
    same = DelayQueue.from_queue_key("rq:queue:mail", connection=connection)
    assert isinstance(same, DelayQueue)
    assert same.delay_key == queue.delay_key


def test_a_dependency_that_is_named_at_front(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    run(queue)
    other = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(
        jobs.add, 1, delay=60, depends_on=Dependency([parent], enqueue_at_front=True)
    )
    due_now(queue, job)
    assert queue.job_ids == [job.id, other.id]
