"""Waiting for a job: what `wait` returns or raises, and how soon, blocking and awaited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from bide import (
    AsyncQueue,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobWaitTimeout,
    Queue,
    Retry,
    State,
)
from bide.queue._async import job as awaited_job
from bide.queue._sync import job as blocking_job
from tests.support import jobs, surface
from tests.support.cpu_waits import Witness
from tests.support.workers import Later, at_work, burst, eventually, listeners

Wait = Callable[..., Any]


@pytest.fixture(params=["blocking", "awaited"])
def wait(request: pytest.FixtureRequest, url: str) -> Wait:
    """Waits for a job by its id, from a queue of its own."""

    def blocking(id: str, *timeout: Any) -> Any:
        queue = Queue("work", url=url)
        try:
            return blocking_job.Job[Any](queue, id).wait(*timeout)
        finally:
            queue.close()

    async def awaited(id: str, *timeout: Any) -> Any:
        queue = AsyncQueue("work", url=url)
        try:
            return await awaited_job.AsyncJob[Any](queue, id).wait(*timeout)
        finally:
            await queue.close()

    if request.param == "blocking":
        return blocking
    return lambda *args: asyncio.run(awaited(*args))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters do not look by themselves: only a message ends their wait."""
    for module in (blocking_job, awaited_job):
        monkeypatch.setattr(module, "LOOK_EVERY", 3600.0)


def is_waited_for(queue: Queue, raw: redis.Redis, id: str) -> bool:
    return raw.zscore(queue.keys["waiters"], id) is not None


# -- what comes of it


def test_a_job_that_has_completed_gives_its_result_at_once(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.add, 2, 3)
    burst(queue)
    assert wait(job.id) == 5
    assert wait(job.id, 0) == 5


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.add, jobs.add_async])
def test_one_that_completes_later_gives_it_then(queue: Queue, wait: Wait, task: Any) -> None:
    job = queue.enqueue(task, 2, 3)
    with at_work(queue):
        assert wait(job.id, 30) == 5


@pytest.mark.slow
def test_a_failure_is_raised_with_its_error(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.fail, "no such order")
    burst(queue)
    with pytest.raises(JobFailed, match="failed: ValueError: no such order") as caught:
        wait(job.id)
    assert caught.value.error.type == "ValueError"
    assert "raise ValueError(message)" in caught.value.error.traceback


@pytest.mark.slow
def test_a_job_that_will_be_retried_has_not_ended(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.fail, "again", retry=Retry(1, backoff="fixed", base=3600))
    burst(queue)
    with pytest.raises(JobWaitTimeout, match="is delayed after 0 s"):
        wait(job.id, 0)


def test_a_job_that_was_cancelled_says_so(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.add, 1)
    job.cancel()
    with pytest.raises(JobCancelled, match="was cancelled"):
        wait(job.id)


@pytest.mark.usefixtures("patient")
def test_also_one_that_is_cancelled_while_someone_waits(
    queue: Queue, raw: redis.Redis, wait: Wait
) -> None:
    job = queue.enqueue(jobs.add, 1, delay=3600)
    waiting = Later(lambda: wait(job.id, 60))
    eventually(lambda: is_waited_for(queue, raw, job.id))
    job.cancel()
    with pytest.raises(JobCancelled):
        waiting.result()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_also_one_that_ends_because_it_was_asked_to(
    queue: Queue, raw: redis.Redis, wait: Wait
) -> None:
    job = queue.enqueue(jobs.hang)
    with at_work(queue):
        jobs.wait_seen(1)
        waiting = Later(lambda: wait(job.id, 60))
        eventually(lambda: is_waited_for(queue, raw, job.id))
        assert job.cancel()
        with pytest.raises(JobCancelled):
            waiting.result()


@pytest.mark.slow
def test_a_job_that_takes_too_long_goes_on(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.wait_thread)
    with at_work(queue):
        jobs.wait_seen(1)
        with pytest.raises(JobWaitTimeout, match=rf"Job {job.id} is active after 0.2 s"):
            wait(job.id, "200ms")
        assert job.refresh().state is State.ACTIVE
        jobs.gate.set()
        assert wait(job.id, 30) == "waited"


@pytest.mark.usefixtures("patient")
def test_the_time_to_wait_is_kept_and_is_a_time_out_error(queue: Queue, wait: Wait) -> None:
    job = queue.enqueue(jobs.add, 1, delay=3600)
    with pytest.raises(TimeoutError):
        Later(lambda: wait(job.id, 0.1)).result()


def test_a_job_that_never_was_or_is_no_more(queue: Queue, wait: Wait) -> None:
    with pytest.raises(JobNotFound, match="There is no job 'nobody'"):
        wait("nobody")
    job = queue.enqueue(jobs.add, 1, delay=3600)
    waiting = Later(lambda: wait(job.id, 60))
    eventually(lambda: queue.counts().delayed == 1)
    job.delete()
    with pytest.raises(JobNotFound):
        waiting.result()


@pytest.mark.slow
def test_the_result_of_a_task_that_is_known_here_is_what_its_annotation_says(
    queue: Queue, wait: Wait
) -> None:
    job = queue.enqueue(surface.when)
    burst(queue)
    assert wait(job.id) == surface.WHEN


# -- how soon


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("task", [jobs.wait_thread, jobs.wait_and_fail])
def test_the_end_is_heard_of_at_once(queue: Queue, raw: redis.Redis, wait: Wait, task: Any) -> None:
    job = queue.enqueue(task)
    with at_work(queue):
        jobs.wait_seen(1)
        waiting = Later(lambda: wait(job.id))
        eventually(lambda: is_waited_for(queue, raw, job.id))
        jobs.gate.set()
        if task is jobs.wait_thread:
            assert waiting.result() == "waited"
        else:
            with pytest.raises(JobFailed, match="in the end"):
                waiting.result()


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_each_of_many_who_wait_is_told(queue: Queue, raw: redis.Redis, wait: Wait) -> None:
    job, other = queue.enqueue(jobs.wait_thread), queue.enqueue(jobs.wait_thread)
    waiting = [Later(partial(wait, id)) for id in (job.id, job.id, other.id)]
    eventually(lambda: raw.zcard(queue.keys["waiters"]) == 2)
    eventually(lambda: listeners(queue, "waiters") == 3)
    with at_work(queue):
        jobs.gate.set()
        assert [one.result() for one in waiting] == ["waited"] * 3


def test_a_lost_message_costs_a_few_seconds(
    queue: Queue, raw: redis.Redis, wait: Wait, witness: Witness
) -> None:
    """The waiter's connection is killed, and the job ends before there is another."""
    job = queue.enqueue(jobs.add, 1, delay=3600)
    waiting = Later(lambda: wait(job.id))
    eventually(lambda: is_waited_for(queue, raw, job.id))
    for _ in range(3):
        raw.client_kill_filter(_type="pubsub")
    job.cancel()
    with witness.within(5), pytest.raises(JobCancelled):
        waiting.result()


@pytest.mark.slow
def test_so_does_one_that_nobody_sent(
    queue: Queue, raw: redis.Redis, wait: Wait, witness: Witness
) -> None:
    """As after a failover: who waits is forgotten on the server."""
    job = queue.enqueue(jobs.add, 1, delay=3600)
    waiting = Later(lambda: wait(job.id))
    eventually(lambda: is_waited_for(queue, raw, job.id))
    raw.delete(queue.keys["waiters"])
    job.cancel()
    with witness.within(5), pytest.raises(JobCancelled):
        waiting.result()


def test_a_long_wait_keeps_its_connections(
    queue: Queue, raw: redis.Redis, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blocking_job, awaited_job):
        monkeypatch.setattr(module, "LOOK_EVERY", 0.02)
    job = queue.enqueue(jobs.add, 1, delay=3600)

    def connections() -> int:
        count: int = raw.info("stats")["total_connections_received"]
        return count

    before = connections()
    with pytest.raises(JobWaitTimeout):
        wait(job.id, 0.6)
    assert connections() - before <= 2, "one to ask, one to listen"


# -- many at once, on event loops


def clients(raw: redis.Redis) -> int:
    return len(raw.client_list())


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_many_who_wait_on_one_loop_share_a_subscription_and_round_trips(
    queue: Queue, raw: redis.Redis, url: str
) -> None:
    before = clients(raw)
    waited = AsyncQueue("work", url=url)

    async def main() -> None:
        added = await waited.enqueue_many([waited.prepare(jobs.add, [i]) for i in range(300)])
        waits = [asyncio.create_task(job.wait()) for job in added]
        await asyncio.to_thread(eventually, lambda: raw.zcard(queue.keys["waiters"]) == 300)
        assert clients(raw) - before <= 3, "one to ask, one to listen"
        working = Later(lambda: burst(queue))
        assert await asyncio.gather(*waits) == list(range(300))
        await asyncio.to_thread(working.result)
        await asyncio.to_thread(eventually, lambda: listeners(queue, "waiters") == 0)
        assert all(one.ended for one in waited._client._open.current.subscriptions.values())
        await waited.close()

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_a_subscription_that_breaks_is_made_anew_for_all(
    queue: Queue, raw: redis.Redis, url: str
) -> None:
    waited = AsyncQueue("work", url=url)

    async def main() -> None:
        added = [await waited.enqueue(jobs.add, i, delay=3600) for i in range(20)]
        waits = [asyncio.create_task(job.wait()) for job in added]
        await asyncio.to_thread(eventually, lambda: raw.zcard(queue.keys["waiters"]) == 20)
        raw.client_kill_filter(_type="pubsub")
        await waited.cancel_many([job.id for job in added[:10]])
        ended = await asyncio.gather(*waits[:10], return_exceptions=True)
        assert {type(one) for one in ended} == {JobCancelled}
        await asyncio.to_thread(eventually, lambda: listeners(queue, "waiters") == 1)
        await waited.cancel_many([job.id for job in added[10:]])
        ended = await asyncio.gather(*waits[10:], return_exceptions=True)
        assert {type(one) for one in ended} == {JobCancelled}
        await waited.close()

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_one_who_waits_no_more_harms_no_other(queue: Queue, raw: redis.Redis, url: str) -> None:
    waited = AsyncQueue("work", url=url)

    async def main() -> None:
        job = await waited.enqueue(jobs.add, 2, delay=3600)
        waits = [asyncio.create_task(job.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()  # while the subscription is made
        await asyncio.to_thread(eventually, lambda: is_waited_for(queue, raw, job.id))
        waits[1].cancel()
        await job.promote()
        working = Later(lambda: burst(queue))
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError] * 2 + [int]
        await asyncio.to_thread(working.result)
        await waited.close()

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_who_waits_while_the_queue_is_closed_is_told_all_the_same(
    queue: Queue, raw: redis.Redis, url: str
) -> None:
    waited = AsyncQueue("work", url=url)

    async def main() -> None:
        job = await waited.enqueue(jobs.add, 2, delay=3600)
        waiting = asyncio.create_task(job.wait())
        await asyncio.to_thread(eventually, lambda: is_waited_for(queue, raw, job.id))
        await waited.close()
        await asyncio.to_thread(eventually, lambda: listeners(queue, "waiters") == 1)
        await asyncio.to_thread(queue.cancel, job.id)
        with pytest.raises(JobCancelled):
            await waiting
        await waited.close()

    asyncio.run(main())


@pytest.mark.slow
def test_waits_leave_nothing_open(url: str) -> None:
    """Neither in loops that follow one another, nor where a loop ends while someone waits."""
    code = """
import asyncio, gc, sys
from bide import AsyncQueue, JobWaitTimeout
queue = AsyncQueue("work", url=sys.argv[1])
async def main(close):
    job = await queue.enqueue("some.module:task", delay=3600)
    try:
        await asyncio.gather(*(job.wait(0.05) for _ in range(3)))
    except JobWaitTimeout:
        pass
    left = asyncio.create_task(job.wait())
    await asyncio.sleep(0.05)
    if close:
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await queue.close()
for close in (True, False, True):
    asyncio.run(main(close))
gc.collect()
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always::ResourceWarning", "-c", code, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, said) == (0, []), "but that some step was slow says nothing"
