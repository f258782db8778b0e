"""Jobs that wait for others, as users write them, and as workers run them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide import (
    AsyncQueue,
    DelayQueue,
    JobCancelled,
    JobNotFound,
    Queue,
    Retry,
    Unique,
    UsageError,
    batch,
    chain,
    debounce,
    fan_in,
    throttle,
)
from bide.model.dedup import DedupPolicy
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from tests.support import jobs
from tests.support.workers import at_work, burst


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    queue = Queue("work", url=url)
    yield queue
    queue.close()


@pytest.fixture
def other(url: str) -> Iterator[Queue]:
    other = Queue("other", url=url)
    yield other
    other.close()


@pytest.mark.slow
def test_a_chain_runs_in_order_and_at_once(queue: Queue) -> None:
    steps = [queue.prepare(jobs.add, (n,), job_id=f"s{n}") for n in range(5)]
    added = queue.enqueue_many(chain(*steps))
    assert [job.state for job in added] == ["waiting", *["blocked"] * 4]
    assert burst(queue) == 5
    assert jobs.seen == [("add", n, 0) for n in range(5)]
    assert queue.fetch("s3").parents == ("s2",)


@pytest.mark.slow
def test_a_step_may_be_several_jobs(queue: Queue) -> None:
    def one(n: int) -> Any:
        return queue.prepare(jobs.add, (n,))

    queue.enqueue_many(chain(one(1), [one(2), one(3)], one(4)))
    assert burst(queue, concurrency=1) == 4
    assert [a for _, a, _ in jobs.seen] == [1, 2, 3, 4]


def test_the_results_of_parents_are_at_hand_in_their_order(queue: Queue) -> None:
    parents = [queue.prepare(jobs.add, (n, 1), job_id=id) for n, id in [(1, "z"), (2, "a")]]
    last = queue.prepare(jobs.sum_of_parents, (queue.url,))
    *_, job = queue.enqueue_many(fan_in(parents, completed=last))
    assert burst(queue) == 3
    assert job.refresh().result == 5
    assert [parent.result for parent in queue.parents(job.id)] == [2, 3]


@pytest.mark.anyio
async def test_the_same_on_an_event_loop(queue: Queue) -> None:
    awaited = AsyncQueue("work", url=queue.url)
    first = await awaited.enqueue(jobs.add_async, 1)
    second = await awaited.enqueue(jobs.sum_of_parents_async, queue.url, depends_on=first)
    with at_work(queue):
        assert await second.wait(60) == 1
    assert [parent.id for parent in await awaited.parents(second.id)] == [first.id]
    await awaited.close()


def test_callbacks_of_a_group(queue: Queue) -> None:
    """One of three fails."""
    members = [queue.prepare(jobs.add, (n,)) for n in range(2)]
    members.append(queue.prepare(jobs.fail, ("no",)))
    done, ended, failed = (queue.prepare(jobs.add, (10 + n,)) for n in range(3))
    added = queue.enqueue_many(fan_in(members, completed=done, ended=ended, failed=failed))
    burst(queue)
    states = [job.refresh().state for job in added[3:]]
    assert states == ["cancelled", "completed", "completed"]
    assert added[3].cancelled_by == added[2].id
    with pytest.raises(JobCancelled, match=f"job {added[2].id}, that it waited for, did not"):
        added[3].wait(1)


def test_the_alarm_of_a_group_that_succeeds_is_cancelled(queue: Queue) -> None:
    members = [queue.prepare(jobs.add, (n,)) for n in range(2)]
    alarm = queue.prepare(jobs.fail, ("never",))
    *_, job = queue.enqueue_many(fan_in(members, failed=alarm))
    burst(queue)
    assert (job.refresh().state, job.cancelled_by) == ("cancelled", None)


def test_a_retry_is_no_end(queue: Queue) -> None:
    first = queue.enqueue(jobs.fail, "twice", retry=Retry(1, backoff="fixed", base=60))
    second = queue.enqueue(jobs.add, 1, depends_on=[first])
    burst(queue)
    assert second.refresh().state == "blocked"


def test_it_waits_across_queues(queue: Queue, other: Queue) -> None:
    first = other.enqueue(jobs.add, 1)
    second = queue.enqueue(jobs.sum_of_parents, queue.url, depends_on=[first])
    third = other.enqueue(jobs.add, 3, depends_on=second)
    assert [job.state for job in (second, third)] == ["blocked", "blocked"]
    assert second.parents == (f"{{other}}{first.id}",)
    assert burst(queue, other) == 3
    assert [job.refresh().state for job in (first, second, third)] == ["completed"] * 3
    assert second.result == 1
    for each in (queue, other):
        left = each._client._redis.zrange(each.keys["edges"], 0, -1)
        assert [member for member in left if member[:1] != b"="] == []


def test_each_step_loads_the_script_that_the_server_lacks(
    direct: redis.Redis, one_url: str
) -> None:
    """Also without a retry, which is for errors."""
    queue, other = (Queue(name, url=one_url, retry_for=0) for name in ("work", "other"))
    parent = other.enqueue(jobs.add, 1)
    direct.script_flush()
    assert queue.enqueue(jobs.add, 2, depends_on=parent).state == "blocked"
    queue.close()
    other.close()


def test_a_failure_goes_across_queues(queue: Queue, other: Queue) -> None:
    first = other.enqueue(jobs.fail, "no")
    second = queue.enqueue(jobs.add, 1, depends_on=first)
    third = other.enqueue(jobs.add, 2, depends_on=[second], run_if="ended")
    assert burst(queue, other) == 2
    assert second.refresh().cancelled_by == f"{{other}}{first.id}"
    assert third.refresh().state == "completed"


def test_one_that_has_ended_in_another_queue_is_not_waited_for(queue: Queue, other: Queue) -> None:
    first = other.enqueue(jobs.add, 1)
    burst(other)
    assert queue.enqueue(jobs.add, 2, depends_on=first).state == "waiting"
    with pytest.raises(JobNotFound, match=r"'\{other\}nobody' to wait for, so nothing was added"):
        queue.enqueue(jobs.add, 2, depends_on="{other}nobody", job_id="x")
    assert queue.fetch_many(["x"]) == [None]
    assert queue.counts().blocked == 0


def test_data_cannot_be_waited_for(queue: Queue, url: str) -> None:
    pile = DelayQueue("pile", url=url)
    pile.push({"n": 1}, id="item")
    with pytest.raises(UsageError, match="'pile' is a delay queue"):
        queue.enqueue(jobs.add, 1, depends_on="{pile}item")
    assert queue.counts().blocked == 0
    pile.close()


def test_who_hears_nothing_of_another_queue_asks(queue: Queue, other: Queue) -> None:
    """Nobody serves that queue any more, or its server has lost what was to be told."""
    first = other.enqueue(jobs.add, 1)
    second = queue.enqueue(jobs.add, 2, depends_on=first)
    run = queue._client.run
    claim = run(worker_commands.claim(other.keys, "w", 1, 1, 10_000_000, 0))
    run(
        worker_commands.settle(
            other.keys, [worker_commands.Settle(first.id, claim.jobs[0].token, "complete")]
        )
    )
    burst(queue)
    assert second.refresh().state == "blocked"
    queue._client._redis.zadd(queue.keys["expiring"], {second.id: 1})  # a minute has passed
    assert burst(queue) == 1
    assert second.refresh().state == "completed"


@pytest.mark.slow
def test_what_is_removed_while_nobody_hears_is_as_good_as_cancelled(
    queue: Queue, other: Queue
) -> None:
    first = other.enqueue(jobs.add, 1)
    second = queue.enqueue(jobs.add, 2, depends_on=first)
    first.delete()
    other._client._redis.delete(other.keys["edges"])
    queue._client._redis.zadd(queue.keys["expiring"], {second.id: 1})
    burst(queue)
    assert second.refresh().state == "cancelled"


@pytest.mark.slow
def test_what_was_told_twice_changes_nothing(queue: Queue, other: Queue) -> None:
    first = other.enqueue(jobs.add, 1)
    second = queue.enqueue(jobs.add, 2, depends_on=first, job_id="second")
    ended = [("second", f"{{other}}{first.id}", "C")]
    for _ in range(2):
        queue._client.run(enqueue_commands.resolve(queue.keys, ended))
    assert burst(queue) == 1
    queue._client.run(
        enqueue_commands.resolve(queue.keys, [("second", f"{{other}}{first.id}", "F")])
    )
    assert second.refresh().state == "completed"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"depends_on": 3}, "depends_on must be jobs or their ids, not 3"),
        ({"depends_on": ["a b"]}, "depends_on"),
        ({"depends_on": ["x"], "job_id": "x"}, "Job 'x' would wait for itself"),
        ({"run_if": "ended"}, r"name them with depends_on=\[...\]"),
        ({"depends_on": "a", "run_if": "x"}, "must be 'completed', 'ended' or 'failed', not 'x'"),
        ({"depends_on": "a", "run_if": ["x"]}, "must be 'completed', 'ended' or 'failed'"),
        ({"depends_on": "a", "run_if": ""}, "must be 'completed', 'ended' or 'failed'"),
        ({"depends_on": [f"j{n}" for n in range(20_001)]}, "20,000 others, not on 20,001"),
    ],
)
def test_what_cannot_be_meant_is_refused(queue: Queue, options: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        queue.enqueue(jobs.add, 1, **options)


@pytest.mark.parametrize("unique", [Unique(), debounce("1s"), throttle("1/s"), batch("1s")])
def test_what_waits_cannot_be_deduplicated_and_is_refused_wherever_it_is_said(
    queue: Queue, unique: DedupPolicy
) -> None:
    dedup = queue.prepare(jobs.add, (1,), unique=unique, job_id="a")
    with pytest.raises(UsageError, match="A job that waits for others cannot be deduplicated"):
        queue.prepare(jobs.add, (1,), unique=unique, depends_on="b")
    with pytest.raises(UsageError, match="A job that waits for others cannot be deduplicated"):
        chain(queue.prepare(jobs.add, (1,)), dedup)
    with pytest.raises(UsageError, match="which may be deduplicated; enqueue that job first"):
        queue.enqueue_many(chain(dedup, queue.prepare(jobs.add, (2,))))
    with pytest.raises(UsageError, match="A job that waits for others cannot be deduplicated"):
        queue.batch("key", 1, into=jobs.add, depends_on="b")


def test_what_was_deduplicated_can_be_waited_for(queue: Queue) -> None:
    first = queue.enqueue(jobs.add, 1, unique=Unique())
    again = queue.enqueue(jobs.add, 1, unique=Unique())
    after = queue.enqueue(jobs.add, 2, depends_on=again)
    assert after.parents == (first.id,)
    burst(queue)
    assert after.refresh().result == 2


def test_jobs_of_a_group_may_wait_for_each_other(queue: Queue) -> None:
    steps = [queue.prepare(jobs.add, (n,), group="g") for n in range(3)]
    *_, last = queue.enqueue_many(chain(*steps))
    assert (last.group, last.state) == ("g", "blocked")
    burst(queue)
    assert last.refresh().result == 2


def test_a_circle_is_refused(queue: Queue) -> None:
    a = queue.prepare(jobs.add, (1,), job_id="a", depends_on="b")
    b = queue.prepare(jobs.add, (1,), job_id="b", depends_on="a")
    with pytest.raises(UsageError, match="'a' waits for 'b', which does not come before it"):
        queue.enqueue_many([a, b])
    with pytest.raises(UsageError, match=r"Each step is what .* not an empty list"):
        chain(a, [])
    with pytest.raises(UsageError, match="completed=, ended= or failed="):
        fan_in([a])


def test_what_is_no_step_is_refused(queue: Queue) -> None:
    a, there = queue.prepare(jobs.add, (1,)), queue.enqueue(jobs.add, 2)
    with pytest.raises(UsageError, match=rf"Each step is what .* not <Job {there.id}"):
        chain(a, there)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^fan_in takes a list of jobs .*, not None"):
        fan_in(None, ended=a)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^fan_in takes a list of jobs .*, not an empty list"):
        fan_in([], ended=a)
    with pytest.raises(UsageError, match=r"failed= are each one job of queue\.prepare.*, not \["):
        fan_in([a], ended=[a])  # type: ignore[arg-type]


def test_a_step_of_too_many_is_refused(queue: Queue) -> None:
    one = queue.prepare(jobs.add, (1,))
    many = [one._replace(id=f"j{n}") for n in range(20_001)]
    with pytest.raises(UsageError, match="20,000 others, not on 20,001"):
        chain(many, one)
    with pytest.raises(UsageError, match="20,000 others, not on 20,001"):
        fan_in(many, ended=one)


def test_a_job_of_another_server_is_refused(queue: Queue) -> None:
    elsewhere = Queue("work", url=queue.url, prefix="staging")
    job = elsewhere.enqueue(jobs.add, 1)
    with pytest.raises(UsageError, match="has another server or prefix"):
        queue.enqueue(jobs.add, 1, depends_on=job)
    elsewhere.close()


def test_an_empty_list_is_nothing_to_wait_for(queue: Queue) -> None:
    assert queue.enqueue(jobs.add, 1, depends_on=[], run_if="ended").state == "waiting"


def test_a_parent_that_is_no_more_is_named(queue: Queue) -> None:
    first = queue.enqueue(jobs.add, 1)
    second = queue.enqueue(jobs.add, 1, depends_on=first, run_if="ended")
    queue._client.run(job_commands.delete(queue.keys, [first.id]))
    with pytest.raises(
        JobNotFound, match=f"Job '{first.id}', a parent of this job, no longer exists"
    ):
        queue.parents(second.id)


def test_one_that_waits_for_many_is_one_job(queue: Queue) -> None:
    parents = [queue.prepare(jobs.add, (n,)) for n in range(3 * enqueue_commands.CHUNK)]
    *_, last = queue.enqueue_many(fan_in(parents, completed=queue.prepare(jobs.add, (-1,))))
    assert burst(queue) == 3 * enqueue_commands.CHUNK + 1
    assert last.refresh().state == "completed"
    assert jobs.seen[-1] == ("add", -1, 0)
