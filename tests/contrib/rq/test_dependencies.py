"""A delay of a job that depends on others counts from when these are done."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import redis
import rq
from redis import WatchError
from rq.job import Dependency, Job, JobStatus
from rq.registry import CanceledJobRegistry, DeferredJobRegistry

from bide.contrib.rq import DelayQueue
from bide.errors import BideError
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, burst, due, due_now, run, server_now
from tests.support.eventually import eventually

GATE = "rq:queue:delay_gate"


def waiting(queue: DelayQueue) -> list[str]:
    """The ids of delayed jobs that wait for others, of whatever queue."""
    assert queue.deferred_job_registry.get_job_ids() == []
    return DeferredJobRegistry("delay_gate", queue.connection).get_job_ids()


def held(job: Job, how: str) -> Job:
    """A job as enqueue has returned it, as RQ's own fetch does now, or as the queue's does."""
    if how == "enqueued":
        return job
    if how == "fetched":
        return Job.fetch(job.id, job.connection)
    found = DelayQueue("mail", job.connection).fetch_job(job.id)
    assert found is not None
    return found


def test_the_delay_counts_from_when_the_dependencies_are_met(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    assert job.get_status() == JobStatus.DEFERRED
    assert waiting(queue) == [job.id]
    assert burst(queue) == 0
    assert queue.delayed_jobs() == []
    run(queue)  # of the parent; its unmodified worker frees the job
    assert queue.connection.lrange(GATE, 0, -1) == [job.id.encode()]
    before = server_now(queue.connection)
    assert burst(queue) == 0
    assert before + 60 <= (due(queue, job) or 0) <= server_now(queue.connection) + 60
    assert job.get_status() == JobStatus.SCHEDULED
    assert Job.fetch(job.id, queue.connection).origin == "mail"
    assert Job.fetch(job.id, queue.connection).enqueued_at is None
    assert waiting(queue) == []
    due_now(queue, job)
    run(queue)
    assert job.return_value() == 2
    assert not queue.connection.exists(GATE, "rq:deferred:delay_gate", queue.delay_key)
    fields: Any = queue.connection.hkeys(job.key)
    assert not [name for name in fields if name.startswith(b"delay") and name != b"delay_call"]


@pytest.mark.parametrize("spoilt", ["inf", "-inf", "nan", "1e300", "soon"])
def test_a_delay_that_another_program_has_spoilt_holds_up_no_other_job(
    queue: DelayQueue, spoilt: str
) -> None:
    parent = queue.enqueue(jobs.add, 1)
    odd, job = (queue.enqueue(jobs.add, 1, delay=60, depends_on=parent) for _ in range(2))
    queue.connection.hset(odd.key, "delay_us", spoilt)
    run(queue)
    burst(queue)
    assert queue.connection.lrange(GATE, 0, -1) == []
    assert job.get_status() == JobStatus.SCHEDULED
    assert job.id in [each.id for each in queue.delayed_jobs()]


def test_the_worker_may_read_other_queues_than_the_jobs(queue: DelayQueue) -> None:
    parent = rq.Queue("plain", queue.connection).enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=[parent.id])
    run(rq.Queue("plain", queue.connection))
    burst("another", connection=queue.connection)  # any Timer opens the gate
    assert queue.delayed_jobs() == [job]


def test_dependencies_that_are_met_already_do_not_hold_it_up(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    run(queue)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    assert queue.delayed_jobs() == [job]


def test_all_dependencies_must_be_met(queue: DelayQueue) -> None:
    first, second = queue.enqueue(jobs.add, 1), queue.enqueue(jobs.add, 1, delay=60)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=[first, second])
    run(queue)
    burst(queue)
    assert job.get_status() == JobStatus.DEFERRED
    due_now(queue, second)
    run(queue)
    burst(queue)
    assert queue.delayed_jobs() == [job]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_dependency_that_fails_frees_it_only_where_that_is_allowed(
    queue: DelayQueue, allowed: bool
) -> None:
    parent = queue.enqueue(jobs.fail)
    after = Dependency([parent], allow_failure=allowed)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=after)
    run(queue)
    burst(queue)
    assert queue.delayed_jobs() == ([job] if allowed else [])


def test_its_options_are_kept_and_ttl_counts_from_the_move(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(
        jobs.add, 1, delay=60, depends_on=parent, ttl=30, meta={"a": 1}, at_front=True, job_id="x"
    )
    assert job.ttl == 30
    assert queue.connection.ttl(job.key) == -1
    run(queue)
    assert queue.connection.ttl(job.key) == -1
    burst(queue)
    assert queue.connection.ttl(job.key) == -1
    other = queue.enqueue(jobs.add, 1)
    due_now(queue, job)
    assert 28 <= queue.connection.ttl(job.key) <= 30
    assert 0 < queue.connection.ttl(job.dependencies_key) <= 30
    assert queue.job_ids == [job.id, other.id]
    again = Job.fetch(job.id, queue.connection)
    assert (again.ttl, again.meta) == (30, {"a": 1})


def test_the_id_of_a_job_that_is_about_to_expire_may_be_used_again(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, job_id="one", ttl=50, result_ttl=60)
    run(queue)
    assert queue.connection.ttl("rq:job:one") > 0
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 2, delay=3600, job_id="one", depends_on=parent)
    assert queue.connection.ttl(job.key) == -1
    run(queue)
    burst(queue)
    assert queue.connection.ttl(job.key) == -1
    assert queue.delayed_jobs() == [job]


@pytest.mark.parametrize("how", ["enqueued", "fetched", "found"])
def test_rqs_cancel_and_delete_hold_while_it_waits_for_others(queue: DelayQueue, how: str) -> None:
    parent = queue.enqueue(jobs.add, 1)
    cancelled = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    deleted = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    behind = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    held(cancelled, how).cancel()
    held(deleted, how).delete()
    assert waiting(queue) == [behind.id]
    run(queue)
    burst(queue)
    assert queue.delayed_jobs() == [behind]
    assert cancelled.get_status() == JobStatus.CANCELED
    assert CanceledJobRegistry("delay_gate", queue.connection).get_job_ids() == [cancelled.id]
    assert queue.connection.keys("rq:deferred:*") == []


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_rqs_cancel_and_delete_hold_at_the_gate(
    queue: DelayQueue, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    behind = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    run(queue)
    getattr(job, verb)()
    assert queue.connection.lrange(GATE, 0, -1) == [behind.id.encode()]
    queue.connection.lpush(GATE, job.id)  # as a worker does that had read it before
    caplog.clear()
    with caplog.at_level(logging.WARNING, "bide.rq"):
        burst(queue)
    assert caplog.messages == [f"job {job.id} does not wait for a delay; dropped"]
    assert queue.delayed_jobs() == [behind]
    assert not queue.connection.exists(GATE)


def test_it_can_be_looked_up_while_it_waits(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    found = queue.fetch_job(job.id)
    assert found is not None
    assert found.origin == job.origin == Job.fetch(job.id, queue.connection).origin == "delay_gate"
    assert DelayQueue("other", queue.connection).fetch_job(job.id) is None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["enqueued", "fetched", "found"])
@pytest.mark.parametrize("read", ["before", "at the gate"])
@pytest.mark.parametrize("saved", ["before", "at the gate", "delayed", "moved"])
def test_a_save_by_whoever_holds_it_changes_no_delay(
    queue: DelayQueue, how: str, read: str, saved: str
) -> None:
    """RQ's save writes back origin and status as they were when the job was read."""
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent, ttl=1000)
    holder = held(job, how)

    def save_at(moment: str) -> None:
        nonlocal holder
        if read == moment and how != "enqueued":
            holder = held(job, how)
        if saved == moment:
            holder.meta["by"] = "its holder"
            holder.save()

    save_at("before")
    run(queue)
    save_at("at the gate")
    burst(queue)
    save_at("delayed")
    assert queue.job_ids == []
    assert queue.connection.ttl(job.key) == -1
    assert queue.delayed_jobs() == [job]
    assert queue.fetch_job(job.id) == job
    assert 59 < (due(queue, job) or 0) - server_now(queue.connection) <= 60
    due_now(queue, job)
    assert queue.job_ids == [job.id]
    assert Job.fetch(job.id, queue.connection).origin == "mail"
    assert 0 < queue.connection.ttl(job.key) <= 1000
    save_at("moved")
    run(queue)
    assert job.return_value() == 2
    assert job.get_meta() == {"by": "its holder"}


def test_what_was_saved_late_can_be_cancelled_and_is_then_its_queues(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    run(queue)
    burst(queue)
    job.save()
    assert queue.cancel_delayed(job.id)
    assert Job.fetch(job.id, queue.connection).origin == "mail"
    assert queue.canceled_job_registry.get_job_ids() == [job.id]


def test_an_id_that_is_used_again_for_one_that_waits_for_others_is_not_early(
    queue: DelayQueue,
) -> None:
    queue.enqueue(jobs.add, 1, delay=60, job_id="one")
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent, job_id="one")
    queue.connection.zadd(queue.delay_key, {job.id: 0})
    assert burst(queue) == 0
    run(queue)
    burst(queue)
    assert queue.delayed_jobs() == [job]


def test_a_job_at_the_gate_that_was_enqueued_at_once_runs_once(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    run(queue)
    rq.Queue("mail", queue.connection)._enqueue_job(job)
    burst(queue)
    assert queue.delayed_jobs() == []
    assert queue.job_ids == [job.id]


def test_a_pipeline_holds_it_until_it_is_sent(queue: DelayQueue) -> None:
    done, open_ = queue.enqueue(jobs.add, 1), queue.enqueue(jobs.add, 1)
    done.set_status(JobStatus.FINISHED)
    made = []
    for parent in (done, open_):
        with queue.connection.pipeline() as pipe:
            job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent, pipeline=pipe)
            assert not queue.connection.exists(job.key)
            pipe.execute()
        made.append(job)
    assert queue.delayed_jobs() == made[:1]
    assert made[1].get_status() == JobStatus.DEFERRED


def test_a_pipeline_of_the_caller_reports_a_dependency_that_changed(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    with queue.connection.pipeline() as pipe:
        job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent, pipeline=pipe)
        parent.set_status(JobStatus.FINISHED)
        with pytest.raises(WatchError):
            pipe.execute()
    assert not queue.connection.exists(job.key)


def test_a_dependency_that_ends_meanwhile_is_seen(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = queue.enqueue(jobs.add, 1)
    setup = rq.Queue.setup_dependencies
    looked: list[str] = []

    def end_behind_its_back(self: rq.Queue, job: Job, **kwargs: Any) -> Job:
        setup(self, job, **kwargs)
        if not looked:
            parent.set_status(JobStatus.FINISHED)
        looked.append(job.get_status(refresh=False))
        return job

    monkeypatch.setattr(DelayQueue, "setup_dependencies", end_behind_its_back)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent, ttl=30)
    assert looked == [JobStatus.DEFERRED, JobStatus.QUEUED]
    assert queue.delayed_jobs() == [job]
    assert waiting(queue) == []


def test_what_stands_at_the_gate_by_mistake_is_dropped(queue: DelayQueue) -> None:
    plain = rq.Queue("delay_gate", queue.connection).enqueue(jobs.add, 1)
    queue.connection.rpush(GATE, *[f"stray-{i}" for i in range(150)])
    queue.connection.set("rq:job:stray-0", "no job")
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    run(queue)
    burst(queue)
    assert not queue.connection.exists(GATE)
    assert queue.delayed_jobs() == [job]
    assert plain.get_status() == JobStatus.QUEUED


def test_a_timer_at_work_opens_the_gate_and_moves_on_time(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=0.02, depends_on=parent)
    with at_work(queue), at_work(queue):
        run(queue)
        eventually(partial(stands, queue, job))
    run(queue)
    assert job.return_value() == 2


@pytest.mark.slow
def test_a_queue_whose_key_another_program_uses_holds_up_no_other(
    queue: DelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    bad = DelayQueue("bad", queue.connection)
    queue.connection.set(bad.delay_key, "no set")
    parent = queue.enqueue(jobs.add, 1)
    stay = [bad.enqueue(jobs.add, 1, delay=60, depends_on=parent) for _ in range(120)]
    run(queue)
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
    run(queue)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "bide.rq"):
        burst(queue)
    assert caplog.messages == [
        "120 due jobs cannot be moved: another program uses the key rq:delay_queue:bad; "
        "delete that key"
    ]
    assert queue.delayed_jobs() == [job]
    with at_work(queue):
        before = opened(queue)
        parent = queue.enqueue(jobs.add, 1)
        other = queue.enqueue(jobs.add, 1, delay=60, depends_on=parent)
        run(queue)
        eventually(lambda: queue.delayed_jobs() == [job, other])
        assert opened(queue) - before < 50  # it is not in a hot loop
        queue.connection.delete(bad.delay_key)
        eventually(lambda: len(bad.delayed_jobs()) == len(stay))
    assert not queue.connection.exists(GATE)


def opened(queue: DelayQueue) -> int:
    """How often a gate was waited at."""
    stats: Any = queue.connection.info("commandstats")
    return int(stats.get("cmdstat_blmove", {}).get("calls", 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "permission", ["HMGET", "HSET", "ZADD", "HDEL", "LREM", "LTRIM", "~rq:job:"]
)
def test_what_a_timer_may_not_let_through_stays_at_the_gate(
    one_queue: DelayQueue, permission: str
) -> None:
    connection = one_queue.connection
    parent = one_queue.enqueue(jobs.add, 1)
    made = [one_queue.enqueue(jobs.add, 1, delay=60, depends_on=parent) for _ in range(3)]
    run(one_queue)
    keys = ["*"] if permission != "~rq:job:" else ["rq:queue*", "rq:delay*"]
    minus = [f"-{permission.lower()}"] if permission.isupper() else []
    connection.acl_setuser(
        "poor", enabled=True, nopass=True, keys=keys, channels=["*"], commands=["+@all", *minus]
    )
    path = connection.connection_pool.connection_kwargs["path"]
    poor = redis.Redis(unix_socket_path=path, username="poor", password="x")
    with pytest.raises(BideError):
        burst("mail", connection=poor)
    connection.acl_deluser("poor")
    assert connection.llen(GATE) == 3
    burst(one_queue)
    assert sorted(job.id for job in one_queue.delayed_jobs()) == sorted(job.id for job in made)
    assert not connection.exists(GATE)


def stands(queue: DelayQueue, job: Job) -> bool:
    """Whether the job was moved: it stands in the list, or RQ's worker was quick to run it."""
    return queue.job_ids == [job.id] or job.is_finished


def test_a_chain_of_delays(queue: DelayQueue) -> None:
    first = queue.enqueue(jobs.add, 1, delay=0.01)
    second = queue.enqueue(jobs.add, 2, delay=0.01, depends_on=first)
    third = queue.enqueue(jobs.add, 3, delay=0.01, depends_on=second)
    with at_work(queue):
        for job in (first, second, third):
            eventually(partial(stands, queue, job))
            run(queue)
    assert [job.return_value() for job in (first, second, third)] == [2, 3, 4]
