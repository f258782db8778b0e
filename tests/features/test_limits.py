"""Limits as workers keep them, in each executor; and what a job says of why it has not run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import AsyncQueue, Fail, Job, PauseQueue, Queue, RetryLater, State, UsageError
from bide.model.limits import Limits
from tests.support import jobs, surface
from tests.support.cpu_waits import Witness
from tests.support.workers import at_work, burst, claims, eventually

EXECUTORS: list[tuple[str, Any, Any]] = [
    ("async", surface.hold_once_async, surface.started_async),
    ("thread", surface.hold_once, surface.started),
    ("process", surface.hold_once, surface.started),
    ("fork", surface.hold_once_async, surface.started),
]

each_executor = pytest.mark.parametrize(
    ("executor", "hold", "start"), EXECUTORS, ids=[name for name, _, _ in EXECUTORS]
)


def kinds(job: Job[Any]) -> list[str]:
    return [reason.kind for reason in job.why()]


def results(ended: Sequence[Job[float]]) -> list[float]:
    return [job.wait(60) for job in ended]


def gaps(times: Sequence[float]) -> list[float]:
    ordered = sorted(times)
    return [later - earlier for earlier, later in itertools.pairwise(ordered)]


@pytest.fixture
def queue(one_url: str) -> Any:
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


@pytest.mark.slow
@each_executor
def test_a_job_holds_its_queue(queue: Queue, executor: Any, hold: Any, start: Any) -> None:
    first = queue.enqueue(hold, 0.3, priority=9)
    others = [queue.enqueue(start) for _ in range(3)]
    assert burst(queue, executor=executor, concurrency=1) == 4
    until = first.refresh().result
    assert isinstance(until, float)
    assert [job.refresh().state for job in others] == [State.COMPLETED] * 3
    assert min(results(others)) >= until
    assert (first.attempt, first.error) == (1, None)
    assert queue.counts().limits == Limits()


@pytest.mark.slow
@each_executor
def test_no_executor_runs_more_in_a_time_or_at_once(
    queue: Queue, executor: Any, hold: Any, start: Any
) -> None:
    queue.configure(rate="20/s", concurrency=2)
    made = [queue.enqueue(start) for _ in range(6)]
    assert burst(queue, executor=executor, concurrency=4) == 6
    assert min(gaps(results(made))) >= 0.05 - 1e-6


def test_a_burst_waits_for_the_rate_of_a_group(queue: Queue) -> None:
    """Also where another group has a job that is due much later, for which it does not wait."""
    queue.group("shop-7").configure(rate="10/s")
    made = [queue.enqueue(surface.started, group="shop-7") for _ in range(3)]
    later = queue.enqueue(surface.started, group="shop-8", delay=3600)
    assert burst(queue) == 3
    assert [job.refresh().state for job in made] == [State.COMPLETED] * 3
    assert later.refresh().state is State.DELAYED


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_a_worker_that_gives_running_jobs_back_frees_nothing_of_the_rate(
    queue: Queue, executor: Any
) -> None:
    queue.configure(rate="1/h")
    job = queue.enqueue(surface.hang_once_begun)
    with at_work(queue, executor=executor, concurrency=2) as worker:
        eventually(lambda: job.refresh().logs)
        worker.stop()  # and again as the context ends, which does not wait
    assert job.refresh().state is State.WAITING
    assert kinds(job) == ["limited", "no_worker"]


@pytest.mark.slow
def test_a_worker_that_takes_quick_jobs_ahead_breaks_no_limit(queue: Queue) -> None:
    queue.configure(rate="400/s", burst=8, concurrency=3)
    made = [queue.enqueue(surface.started_async) for _ in range(80)]
    with at_work(queue, concurrency=2), at_work(queue, concurrency=2):
        times = sorted(job.wait(90) for job in made)
    for i in range(8, len(times)):  # the ninth of any nine
        assert times[i] - times[i - 8] >= 1 / 400 - 1e-6


def test_what_runs_is_no_more_than_is_allowed_in_the_whole_fleet(queue: Queue) -> None:
    queue.configure(concurrency=2)
    made = [queue.enqueue(jobs.wait_async) for _ in range(4)]
    with at_work(queue), at_work(queue):
        jobs.wait_seen(2)
        assert queue.counts().active == 2
        waiting = next(job for job in made if job.refresh().state is State.WAITING)
        assert kinds(waiting) == ["concurrency"]
        jobs.gate.set()
        for job in made:
            job.wait(60)


@pytest.mark.slow
def test_who_waits_for_a_slot_is_told_when_one_is_free(queue: Queue, witness: Witness) -> None:
    """And does not wait until it looks by itself, which is two seconds."""
    queue.configure(concurrency=1)
    with at_work(queue, concurrency=1), at_work(queue, concurrency=1), witness.within(15):
        for job in [queue.enqueue(surface.started_async) for _ in range(30)]:
            job.wait(90)


def test_limited_workers_sleep_until_a_job_may_begin(queue: Queue, direct: redis.Redis) -> None:
    """However many wait, and however much: a few claims for each job that begins."""
    queue.configure(rate="10/s")
    queue.enqueue_many([queue.prepare(surface.started_async) for _ in range(200)])
    with at_work(queue), at_work(queue), at_work(queue), at_work(queue):
        eventually(lambda: queue.counts().completed >= 2)
        before, were = claims(direct, queue), queue.counts().completed
        eventually(lambda: queue.counts().completed >= were + 10)
        made, done = claims(direct, queue) - before, queue.counts().completed - were
        queue.purge()
    print(f"claims a job: {made / done:.2f}")
    assert made / done <= 3.5


@pytest.mark.slow
def test_held_workers_sleep_until_the_hold_ends(queue: Queue, direct: redis.Redis) -> None:
    with at_work(queue), at_work(queue), at_work(queue):
        first = queue.enqueue(surface.hold_once_async, 1.5)
        eventually(lambda: queue.counts().limits.held_until)
        others = [queue.enqueue(surface.started_async) for _ in range(100)]
        before = claims(direct, queue)
        until = first.wait(60)
        for job in others:
            assert job.wait(60) >= until
        made = claims(direct, queue) - before
    print(f"claims: {made}")
    assert made <= 30


def test_resume_lets_a_held_queue_go_on(queue: Queue) -> None:
    with at_work(queue):
        queue.enqueue(surface.hold_once_async, 3600)
        eventually(lambda: queue.counts().limits.held_until)
        job = queue.enqueue(surface.started_async)
        assert kinds(job) == ["held"]
        queue.resume()
        job.wait(60)


# -- why it has not run


def test_a_job_says_why_it_has_not_run(queue: Queue) -> None:
    job = queue.enqueue(surface.started_async, delay=3600)
    assert kinds(job) == ["not_due", "no_worker"]
    (due, _) = job.why()
    assert due.until is not None
    assert due.until - datetime.now(UTC) > timedelta(minutes=59)
    job.promote()
    assert kinds(job) == ["no_worker"]
    queue.pause()
    assert kinds(job) == ["paused", "no_worker"]
    queue.resume()
    with at_work(queue):
        job.wait(60)
    assert job.why() == []


def test_a_rate_says_until_when(queue: Queue) -> None:
    queue.configure(rate="1/h")
    first, second = (queue.enqueue(surface.started_async) for _ in range(2))
    with at_work(queue):
        first.wait(60)
        (reason,) = second.why()
    assert reason.kind == "limited"
    assert reason.until is not None
    assert timedelta(minutes=59) < reason.until - datetime.now(UTC) <= timedelta(hours=1)
    assert "1/h" in reason.text


def test_a_busy_worker_is_a_reason_and_a_task_that_none_serves(queue: Queue) -> None:
    running = queue.enqueue(jobs.wait_async)
    with at_work(queue, concurrency=1) as worker:
        jobs.wait_seen(1)
        waiting = queue.enqueue(surface.started_async)
        eventually(lambda: kinds(waiting) in (["busy"], ["next"]))
        jobs.gate.set()
        running.wait(60)
        waiting.wait(60)
        stray = queue.enqueue("nowhere:at_all")
        eventually(lambda: stray.refresh().state is State.DELAYED)
        assert kinds(stray)[0] == "not_served"
        assert worker.name


def test_awaited_it_is_the_same(one_url: str) -> None:
    async def ask() -> tuple[list[str], Limits]:
        queue = AsyncQueue("work", url=one_url)
        await queue.configure(rate="5/m", concurrency=4)
        job = await queue.enqueue(surface.started_async)
        reasons, counts = await job.why(), await queue.counts()
        await queue.close()
        return [reason.kind for reason in reasons], counts.limits

    assert asyncio.run(ask()) == (["no_worker"], Limits("5/m", 1, 4))


# -- what is said wrongly


def test_a_queue_is_held_for_a_time_that_is_said() -> None:
    for delay in ("soon", ""):
        with pytest.raises(UsageError, match="delay"):
            PauseQueue(delay)
    assert not issubclass(PauseQueue, Fail | RetryLater)
