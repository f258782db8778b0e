"""What RQ's own verbs and ours do to a delayed job; nothing comes back, and nothing blocks."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import rq
from rq.job import Job, JobStatus

from bide.contrib.rq import DelayQueue
from bide.errors import UsageError
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import burst, due_now, run, server_now


def all_due(queue: DelayQueue) -> None:
    """As time would have it, without asking whether the jobs are still there."""
    ids: Any = queue.connection.zrange(queue.delay_key, 0, -1)
    for id in ids:
        queue.connection.zadd(queue.delay_key, {id: 0})


def test_rqs_cancel_holds(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    behind = queue.enqueue(jobs.add, 1, delay=61)
    job.cancel()
    assert queue.delayed_jobs() == [behind]
    assert not queue.reschedule(job, 0)
    assert not queue.cancel_delayed(job)
    all_due(queue)
    assert burst(queue) == 1
    assert queue.job_ids == [behind.id]
    assert job.get_status() == JobStatus.CANCELED
    assert queue.canceled_job_registry.get_job_ids() == [job.id]
    assert not queue.connection.exists(queue.delay_key)


def test_rqs_delete_holds_and_is_said(queue: DelayQueue, caplog: pytest.LogCaptureFixture) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    behind = queue.enqueue(jobs.add, 1, delay=61)
    job.delete()
    assert queue.delayed_jobs() == [behind]
    assert queue.fetch_job(job.id) is None
    all_due(queue)
    with caplog.at_level(logging.WARNING, "bide.rq"):
        assert burst(queue) == 1
    assert caplog.messages == [f"job {job.id} of mail is gone; dropped"]
    assert queue.job_ids == [behind.id]
    assert not queue.connection.exists(job.key, queue.delay_key)


def test_a_job_of_which_a_field_was_saved_after_its_end_is_gone(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    job.delete()
    queue.connection.hset(job.key, "meta", b"")  # as RQ's save_meta would
    all_due(queue)
    assert burst(queue) == 0
    assert queue.job_ids == []


def test_a_job_whose_key_is_of_another_kind_blocks_nothing(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    behind = queue.enqueue(jobs.add, 1, delay=61)
    queue.connection.set(job.key, "x")
    all_due(queue)
    assert burst(queue) == 1
    assert queue.job_ids == [behind.id]


def test_more_orphans_than_one_call_takes_block_nothing(queue: DelayQueue) -> None:
    queue.connection.zadd(queue.delay_key, {f"orphan-{i}": i for i in range(250)})
    job = queue.enqueue(jobs.add, 1, delay=60)
    due_now(queue, job)
    assert queue.job_ids == [job.id]


def test_a_job_that_was_enqueued_at_once_is_not_enqueued_again(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    rq.Queue("mail", queue.connection).enqueue_job(job)
    all_due(queue)
    assert burst(queue) == 0
    assert queue.job_ids == [job.id]
    run(queue)
    assert len(job.results()) == 1


def test_a_job_that_rqs_scheduler_has_taken_over_is_its(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    job.cancel()
    other = rq.Queue("mail", queue.connection)
    other.schedule_job(job, datetime.now(UTC) + timedelta(hours=1))
    all_due(queue)
    assert burst(queue) == 0
    assert queue.job_ids == []
    assert other.scheduled_job_registry.get_job_ids() == [job.id]


def test_a_job_that_rqs_retry_is_about_to_schedule_is_not_ours(queue: DelayQueue) -> None:
    """RQ sets its status first and the registry later."""
    job = queue.enqueue(jobs.add, 1, delay=60)
    rq.Queue("mail", queue.connection).enqueue_job(job)
    run(queue)
    job.set_status(JobStatus.SCHEDULED)
    all_due(queue)
    assert burst(queue) == 0
    assert queue.job_ids == []


def test_a_job_that_was_delayed_on_another_queue_is_the_others(queue: DelayQueue) -> None:
    other = DelayQueue("other", queue.connection)
    job = queue.enqueue(jobs.add, 1, delay=60)
    other.enqueue_delay_job(job, 4e9)
    assert queue.delayed_jobs() == []
    assert not queue.cancel_delayed(job)
    assert not queue.reschedule(job, 0)
    all_due(queue)
    assert burst(queue, other) == 0
    assert other.delayed_jobs() == [job]


def test_cancel_delayed_is_rqs_cancel_while_it_is_delayed(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    rqs = queue.enqueue(jobs.add, 1, delay=60)
    rqs.cancel()
    before = int(server_now(queue.connection))
    assert queue.cancel_delayed(job)
    after = server_now(queue.connection)
    assert job.get_status(refresh=False) == job.get_status() == JobStatus.CANCELED
    listed: Any = queue.connection.zrange("rq:canceled:mail", 0, -1, withscores=True)
    scores = dict(listed)
    assert scores[rqs.id.encode()] <= after
    assert before <= scores[job.id.encode()] <= after
    assert queue.connection.zscore(queue.delay_key, job.id) is None
    assert not queue.cancel_delayed(job)
    assert not queue.cancel_delayed("nobody")


def test_cancel_delayed_leaves_alone_what_is_no_longer_delayed(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    due_now(queue, job)
    assert not queue.cancel_delayed(job.id)
    assert job.get_status() == JobStatus.QUEUED
    job.cancel()  # RQ's own cancels also this
    assert queue.job_ids == []


def test_reschedule_moves_the_due_time_either_way(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    at = datetime(2100, 1, 1, microsecond=250, tzinfo=UTC)
    assert queue.reschedule(job, at=at)
    assert queue.delayed_until(job) == at
    before = server_now(queue.connection)
    assert queue.reschedule(job.id, timedelta(hours=1))
    after = server_now(queue.connection)
    until = queue.delayed_until(job)
    assert until is not None
    assert before + 3600 <= until.timestamp() <= after + 3600
    due_now(queue, job)
    assert not queue.reschedule(job, 5)
    assert queue.delayed_until(job) is None
    assert not queue.reschedule("nobody", 5)
    assert not queue.connection.exists(queue.delay_key)


@pytest.mark.parametrize(
    "passed", [{"delay": -60}, {"delay": "-1m"}, {"at": datetime(2001, 1, 1, tzinfo=UTC)}]
)
def test_reschedule_to_what_has_passed_means_now(queue: DelayQueue, passed: dict[str, Any]) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    assert queue.reschedule(job, **passed)
    assert burst(queue) == 1
    assert queue.job_ids == [job.id]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either a delay or at="),
        ({"delay": 1, "at": datetime.now(UTC)}, "either a delay or at="),
        ({"delay": "-soon"}, "is not a duration"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"at": 4e9}, "an aware datetime"),
    ],
)
def test_reschedule_refuses_what_cannot_be_meant(
    queue: DelayQueue, given: dict[str, Any], said: str
) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    before = queue.delayed_until(job)
    with pytest.raises(UsageError, match=said):
        queue.reschedule(job, **given)
    assert queue.delayed_until(job) == before


def test_delayed_jobs_are_listed_earliest_first_and_in_pages(queue: DelayQueue) -> None:
    made = [queue.enqueue(jobs.add, i, delay=100 - i) for i in range(5)]
    assert queue.delayed_jobs() == made[::-1]
    assert queue.delayed_jobs(1, 2) == [made[3], made[2]]
    assert queue.delayed_jobs(4) == [made[0]]
    assert queue.delayed_jobs(0, 0) == []


def test_a_job_can_be_looked_up_while_it_is_delayed(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    assert queue.fetch_job(job.id) == job
    assert job.get_position() is None
    assert Job.exists(job.id, queue.connection)


def test_purging_or_deleting_the_queue_leaves_delayed_jobs_as_rq_leaves_scheduled_ones(
    queue: DelayQueue,
) -> None:
    job = queue.enqueue(jobs.add, 1, delay=60)
    queue.empty()  # type: ignore[no-untyped-call]
    queue.delete()
    assert queue.delayed_jobs() == [job]
    due_now(queue, job)
    assert queue.job_ids == [job.id]
    assert rq.Queue.all(queue.connection) == [queue]
