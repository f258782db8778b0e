"""RQ 3 has rate limits, a status before `queued`, and a prefix of all keys."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import redis
import rq
from rq.job import Job

from bide.contrib.rq import DelayQueue
from bide.contrib.rq import queue as queue_module
from bide.contrib.rq_sets import look
from bide.errors import UsageError
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, burst, due_now, like_rq, run
from tests.support.eventually import eventually

ONLY_3 = pytest.mark.skipif(rq.__version__ < "3", reason="RQ 2 has no rate limits")
READY = "rq:ready:delay_gate"


def limit(slots: int, key: str = "api") -> Any:
    made: Any = rq
    return made.RateLimit(key, slots)


def states(*made: Job) -> list[str]:
    return [job.get_status().value for job in made]


def of_limit(connection: redis.Redis, part: str) -> list[str]:
    found: Any = connection.zrange(f"rq:rl:api:{part}", 0, -1)
    return [id.decode() for id in found]


@ONLY_3
def test_a_delayed_job_waits_for_a_slot_of_its_rate_limit_when_it_is_due(
    queue: DelayQueue,
) -> None:
    options: Any = {"rate_limit": limit(2), "delay": 3600}
    made = [queue.enqueue(jobs.add, number, **options) for number in range(4)]
    assert not queue.connection.keys("rq:rl*")  # a delay takes no slot
    for job in made:
        due_now(queue, job)
    assert states(*made) == ["queued", "queued", "rate_limited", "rate_limited"]
    assert queue.job_ids == [made[0].id, made[1].id]
    assert of_limit(queue.connection, "allowed") == queue.job_ids
    run(queue)  # a worker that ends a job starts the next one
    assert [job.return_value() for job in made] == [1, 2, 3, 4]
    assert of_limit(queue.connection, "allowed") == []
    assert all(Job.fetch(job.id, job.connection).enqueued_at for job in made)


@ONLY_3
def test_delayed_jobs_and_others_share_the_slots_in_the_order_in_which_they_came(
    queue: DelayQueue,
) -> None:
    low = DelayQueue("low", queue.connection)
    first = queue.enqueue(jobs.add, 1, rate_limit=limit(1))
    second = low.enqueue(jobs.add, 2, rate_limit=limit(1))
    third = queue.enqueue(jobs.add, 3, rate_limit=limit(1), delay=3600)
    due_now(queue, third)
    assert states(first, second, third) == ["queued", "rate_limited", "rate_limited"]
    queue.connection.delete(queue.key, "rq:rl:api:allowed")  # the first is gone
    fourth = queue.enqueue(jobs.add, 4, rate_limit=limit(1), delay=3600)
    due_now(queue, fourth)
    assert states(second, third, fourth) == ["queued", "rate_limited", "rate_limited"]
    assert low.job_ids == [second.id]
    second.cancel()
    assert queue.job_ids == [third.id]


@ONLY_3
def test_a_waiting_job_that_is_gone_takes_no_slot_and_at_front_is_kept(queue: DelayQueue) -> None:
    queue.connection.zadd("rq:rl:api:rate_limited", {"gone": 1})
    plain = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, rate_limit=limit(1), delay=3600, at_front=True, ttl=60)
    due_now(queue, job)
    assert queue.job_ids == [job.id, plain.id]
    assert of_limit(queue.connection, "rate_limited") == []
    assert 0 < queue.connection.ttl(job.key) <= 60
    fields: Any = queue.connection.hkeys(job.key)
    assert not [name for name in fields if name.startswith(b"delayed")]


@ONLY_3
@pytest.mark.parametrize("save", [True, False])
def test_a_job_with_dependencies_waits_for_them_for_its_delay_and_for_a_slot(
    queue: DelayQueue, save: bool
) -> None:
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, rate_limit=limit(1), delay=3600, depends_on=parent)
    if save:
        job.save()
    run(queue)
    assert not queue.connection.keys("rq:rl*")
    burst(queue)
    assert states(job) == ["scheduled"]
    other = queue.enqueue(jobs.add, 1, rate_limit=limit(1))
    due_now(queue, job)
    assert states(job) == ["rate_limited"]
    run(queue)
    assert states(job, other) == ["finished", "finished"]
    assert not queue.connection.hexists(job.key, "delay_limit")


@ONLY_3
def test_a_job_with_finished_dependencies_keeps_its_rate_limit(queue: DelayQueue) -> None:
    parent = queue.enqueue(jobs.add, 1)
    run(queue)
    job = queue.enqueue(jobs.add, 1, rate_limit=limit(1), delay=3600, depends_on=parent)
    due_now(queue, job)
    assert of_limit(queue.connection, "allowed") == [job.id]


@ONLY_3
def test_a_job_of_the_same_id_does_not_inherit_a_rate_limit(queue: DelayQueue) -> None:
    first = queue.enqueue(jobs.add, 1, rate_limit=limit(1), delay=3600, job_id="one")
    due_now(queue, first)
    run(queue)
    second = queue.enqueue(jobs.add, 1, delay=3600, job_id="one")
    due_now(queue, second)
    assert of_limit(queue.connection, "allowed") == []
    assert queue.job_ids == ["one"]


@ONLY_3
def test_rqs_rules_for_a_rate_limit_hold_with_a_delay(one_queue: DelayQueue) -> None:
    options: Any = {"rate_limit": limit(1), "delay": 3600}
    with pytest.raises(ValueError, match="unique=True is not supported with rate-limited jobs"):
        one_queue.enqueue(jobs.add, 1, job_id="one", unique=True, **options)

    class Other(DelayQueue):
        redis_queue_namespace_prefix = "shop:queue:"

    with pytest.raises(ValueError, match="custom job or queue key prefixes"):
        Other("mail", one_queue.connection).enqueue(jobs.add, 1, **options)
    assert not one_queue.connection.keys("*delay_queue*")


@ONLY_3
@pytest.mark.parametrize("permission", ["~rq:rl", "hset", "sadd"])
def test_what_a_timer_may_not_have_wait_stays_delayed(
    one_queue: DelayQueue, permission: str
) -> None:
    connection = one_queue.connection
    job = one_queue.enqueue(jobs.add, 1, rate_limit=limit(1), delay=3600)
    assert one_queue.reschedule(job, 0)
    allowed = ["*"] if permission[0] != "~" else ["rq:queue*", "rq:delay*", "rq:job*", "rq:sched*"]
    minus = [] if permission[0] == "~" else [f"-{permission}"]
    connection.acl_setuser(
        "poor", enabled=True, nopass=True, keys=allowed, channels=["*"], commands=["+@all", *minus]
    )
    path = connection.connection_pool.connection_kwargs["path"]
    with pytest.raises(Exception, match=r"refuses access|permission"):
        burst("mail", connection=redis.Redis(unix_socket_path=path, username="poor", password="x"))
    connection.acl_deluser("poor")
    assert one_queue.delayed_jobs() == [job]
    assert of_limit(connection, "rate_limited") == []
    burst(one_queue)
    assert one_queue.job_ids == [job.id]


# -- the status between deferred and queued


def left_behind(queue: DelayQueue) -> Job:
    """A job whose dependencies are met, and whose worker died before it pushed the job."""
    parent = queue.enqueue(jobs.add, 1)
    job = queue.enqueue(jobs.add, 1, delay=3600, depends_on=parent)
    parent.delete()  # no worker runs it, which would push the job
    queue.connection.zrem("rq:deferred:delay_gate", job.id)
    queue.connection.hset(job.key, "status", "ready_to_enqueue")
    queue.connection.hdel(job.key, "enqueued_at")
    queue.connection.zadd(READY, {job.id: 1})
    return job


@pytest.mark.parametrize("working", [True, False])
def test_a_job_that_a_dead_worker_left_before_the_gate_is_delayed(
    queue: DelayQueue, working: bool
) -> None:
    job = left_behind(queue)
    queue.connection.zadd(READY, {"gone": 1})
    if working:
        with at_work(queue):
            eventually(lambda: queue.delayed_until(job))
    else:
        burst(queue)
    assert not queue.connection.exists(READY, "rq:queue:delay_gate")
    assert states(job) == ["scheduled"]
    assert queue.delayed_jobs() == [job]


@pytest.mark.usefixtures("no_looks")
def test_a_timer_at_work_looks_for_such_jobs_again(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.contrib.rq.timer.BLOCK", 0.1)
    with at_work(queue):
        first = left_behind(queue)
        eventually(lambda: queue.delayed_until(first))
        second = left_behind(queue)
        eventually(lambda: queue.delayed_until(second))


def test_health_sees_a_job_that_a_dead_worker_left_before_the_gate(one_queue: DelayQueue) -> None:
    left_behind(one_queue)
    (gate,) = look(one_queue.connection)
    assert (gate.key, gate.overdue) == ("rq:queue:delay_gate", 1)


def test_a_job_that_was_read_in_that_status_and_saved_later_keeps_its_delay(
    queue: DelayQueue,
) -> None:
    job = left_behind(queue)
    burst(queue)
    fields: Any = {"status": "ready_to_enqueue", "origin": "delay_gate"}
    if rq.__version__ < "3":  # cannot read such a job
        queue.connection.hset(job.key, mapping=fields)
    else:
        old = Job.fetch(job.id, queue.connection)
        old._status, old.origin = type(old._status)(fields["status"]), fields["origin"]
        old.save()
        assert queue.delayed_jobs() == [job]
    due_now(queue, job)
    assert queue.job_ids == [job.id]


# -- the prefix

PREFIXED = """
import os, redis
from bide.contrib.rq import DelayQueue, Timer
from bide.contrib.rq_sets import look
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, run
from tests.support.eventually import eventually

connection = redis.Redis.from_url(os.environ["SERVER"])
queue = DelayQueue("mail", connection)
parent = queue.enqueue(jobs.add, 1)
job = queue.enqueue(jobs.add, 2, delay=0.01, depends_on=parent)
later = queue.enqueue(jobs.add, 2, delay=3600)
run(queue)
with at_work(queue) as timer:
    eventually(lambda: queue.job_ids == [job.id])
    eventually(lambda: look(connection)[0].timers == 1)
    assert connection.pubsub_channels() == [b"{shop}:delay_hint:mail"]
run(queue)
assert job.return_value() == 3
assert look(connection)[0].key == "{shop}:delay_queue:mail", look(connection)
"""


@ONLY_3
def test_all_keys_begin_with_rqs_prefix(one_url: str) -> None:
    with like_rq(one_url) as connection:
        other = DelayQueue("mail", connection).enqueue(jobs.add, 1, delay=3600)
        before = set(connection.keys())
        done = subprocess.run(
            [sys.executable, "-c", PREFIXED],
            env=os.environ | {"RQ_KEY_PREFIX": "{shop}", "SERVER": one_url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made: set[Any] = set(connection.keys()) - before
        assert made
        assert not [key for key in made if not key.startswith(b"{shop}:")]
        assert DelayQueue("mail", connection).delayed_jobs() == [other]


def test_a_prefix_that_rq_does_not_read_is_refused(
    one_queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "PREFIX", "shop")
    with pytest.raises(UsageError, match="does not read \\$RQ_KEY_PREFIX; unset it, or install"):
        one_queue.enqueue(jobs.add, 1, delay=1)
