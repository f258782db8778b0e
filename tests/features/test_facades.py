"""What both facades do with jobs and queues, the blocking one and the awaited one alike."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import (
    AsyncQueue,
    JobNotFound,
    JobStateError,
    JobWaitTimeout,
    Queue,
    Retention,
    State,
    UsageError,
)
from tests.support import jobs, surface
from tests.support.workers import Later, at_work, burst, eventually, listeners


class Facade:
    """A queue of either kind, called from code that blocks."""

    def __init__(self, kind: str, url: str) -> None:
        self._runner = asyncio.Runner() if kind == "awaited" else None
        self._queue: Any = (AsyncQueue if self._runner else Queue)("work", url=url)

    def close(self) -> None:
        self.call(self._queue.close)
        if self._runner:
            self._runner.close()

    def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the queue or of one of its jobs."""

        async def awaited() -> Any:
            result = method(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(awaited()) if self._runner else method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._queue, name)
        if not callable(member):
            return member
        return lambda *args, **kwargs: self.call(member, *args, **kwargs)

    def states(self, ids: list[str]) -> list[str | None]:
        return [job and str(job.state) for job in self.fetch_many(ids)]


@pytest.fixture(params=["blocking", "awaited"])
def queue(request: pytest.FixtureRequest, url: str) -> Iterator[Facade]:
    facade = Facade(request.param, url)
    yield facade
    facade.close()


@pytest.fixture
def worker_queue(url: str) -> Iterator[Queue]:
    queue = Queue("work", url=url)
    yield queue
    queue.close()


def add(queue: Facade, count: int, **options: Any) -> list[str]:
    prepared = [queue._queue.prepare(jobs.add, [i], **options) for i in range(count)]
    return [job.id for job in queue.enqueue_many(prepared)]


# -- many at once


MANY = 230
"""More than two calls take."""


def test_many_are_cancelled(queue: Facade) -> None:
    ids = add(queue, MANY)
    assert queue.cancel_many([*ids, "nobody"]) == ["ok"] * MANY + ["gone"]
    assert queue.cancel_many(ids[:2]) == ["cancelled"] * 2
    assert queue.counts().cancelled == MANY


def test_many_are_rescheduled_and_promoted(queue: Facade) -> None:
    ids = add(queue, MANY)
    assert queue.reschedule_many([*ids, "nobody"], delay="1h") == ["ok"] * MANY + ["gone"]
    assert queue.counts().delayed == MANY
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    assert queue.reschedule_many(ids[:1], at=at) == ["ok"]
    assert queue.fetch(ids[0]).due == at
    assert queue.promote_many(ids) == ["ok"] * MANY
    assert queue.counts().waiting == MANY
    with pytest.raises(UsageError, match="either delay= or at="):
        queue.reschedule_many(ids, delay=1, at=at)
    with pytest.raises(UsageError, match=r"Give delay= or at=, or call promote\(\)"):
        queue.reschedule_many(ids)


@pytest.mark.slow
def test_many_are_retried(queue: Facade, worker_queue: Queue) -> None:
    ids = add(queue, MANY)
    assert burst(worker_queue) == MANY
    assert queue.retry_many([*ids, "nobody"], delay=60) == ["ok"] * MANY + ["gone"]
    assert queue.retry_many(ids[:1]) == ["delayed"]
    queue.promote_many(ids)
    assert burst(worker_queue) == MANY
    assert queue.retry_many(ids) == ["ok"] * MANY
    assert queue.counts().waiting == MANY


def test_many_are_deleted(queue: Facade) -> None:
    ids = add(queue, MANY)
    assert queue.delete_many([*ids, "nobody"]) == ["ok"] * MANY + ["gone"]
    assert queue.fetch_many(ids[:3]) == [None] * 3


def test_a_text_is_no_list_of_ids(queue: Facade) -> None:
    for method in (queue.cancel_many, queue.delete_many, queue.promote_many, queue.retry_many):
        with pytest.raises(UsageError, match="Give a list of ids"):
            method("job-1")


def test_none_at_all_is_no_error(queue: Facade) -> None:
    for method in (queue.cancel_many, queue.delete_many, queue.promote_many, queue.retry_many):
        assert method([]) == []


# -- a delay that has passed


@pytest.mark.parametrize("passed", [-5, "-5s", -timedelta(days=2)])
def test_a_delay_that_has_passed_means_now(queue: Facade, url: str, passed: Any) -> None:
    with redis.Redis.from_url(url) as direct:
        task = surface.when if isinstance(queue._queue, Queue) else surface.when_awaited
        here = task.options(queue=queue._queue)
        began = server_now(direct)
        made = [
            queue.enqueue_call(jobs.add, [1], delay=passed),
            *queue.enqueue_many([queue._queue.prepare(jobs.add, [1], delay=passed)]),
            queue.call(here.later(passed).enqueue),
            queue.call(here.options(delay=passed).enqueue),
        ]
        moved, again = (queue.enqueue(jobs.add, 1, delay="1h") for _ in range(2))
        queue.call(moved.reschedule, delay=passed)
        queue.call(again.cancel)
        queue.call(again.retry, delay=passed)
        for job in (*made, moved, again):
            queue.call(job.refresh)
            assert job.state is State.WAITING
            assert began <= job.due <= server_now(direct)


def server_now(direct: redis.Redis) -> datetime:
    seconds, us = direct.time()
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=us)


# -- one job


def test_a_job_is_moved_cancelled_retried_and_deleted(queue: Facade) -> None:
    job = queue.enqueue(jobs.add, 1)
    call = queue.call
    with pytest.raises(UsageError, match=r"Give delay= or at=, or call promote\(\)"):
        call(job.reschedule)
    call(job.reschedule, delay="1h")
    assert timedelta(minutes=59) < job.due - datetime.now(UTC) <= timedelta(hours=1)
    call(job.promote)
    assert job.due <= datetime.now(UTC) + timedelta(seconds=1)
    assert call(job.cancel)
    assert call(job.refresh).state is State.CANCELLED
    call(job.retry, delay=60)
    assert job.due > datetime.now(UTC) + timedelta(seconds=50)
    assert call(job.refresh).state is State.DELAYED
    assert call(job.delete)
    assert not call(job.delete)
    with pytest.raises(JobNotFound):
        call(job.refresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "args", "text"),
    [
        ("reschedule", [1], "is completed, and only a delayed or waiting job can be rescheduled"),
        ("promote", [], "is completed, and only a delayed or waiting job can be promoted"),
    ],
)
def test_what_has_ended_is_not_moved_and_the_error_names_its_state(
    queue: Facade, worker_queue: Queue, verb: str, args: list[Any], text: str
) -> None:
    job = queue.enqueue(jobs.add, 1)
    burst(worker_queue)
    with pytest.raises(JobStateError, match=text):
        queue.call(getattr(job, verb), *args)


def test_what_has_not_ended_is_not_retried(queue: Facade) -> None:
    job = queue.enqueue(jobs.add, 1)
    with pytest.raises(JobStateError, match="is waiting, and only a finished job"):
        queue.call(job.retry)
    queue.call(job.delete)
    for verb in (job.retry, job.promote, job.refresh):
        with pytest.raises(JobNotFound):
            queue.call(verb)


@pytest.mark.slow
def test_a_wait_that_finds_its_job_running_again_goes_on(
    queue: Facade, worker_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had ended when the waiter asked, and was retried before the waiter could read it."""
    job = queue.enqueue(jobs.add, 2, 3)
    burst(worker_queue)
    refresh = type(job).refresh
    reads: list[str] = []

    def retried_before(self: Any) -> Any:
        if not reads:
            worker_queue.pause()
            worker_queue.retry_many([job.id])
        reads.append(job.id)
        return refresh(self)

    monkeypatch.setattr(type(job), "refresh", retried_before)
    with at_work(worker_queue):
        waiting = Later(lambda: queue.call(job.wait, 30))
        eventually(lambda: reads and listeners(worker_queue, "waiters"))
        worker_queue.resume()
        assert waiting.result() == 5


# -- the queue


def test_what_is_due_next(queue: Facade) -> None:
    for id, delay, priority in (("b", 60, 9), ("c", 7200, 5), ("a", 30, 0)):
        queue.enqueue(jobs.add, 1, delay=delay, priority=priority, job_id=id)
    queue.enqueue(jobs.add, 1)
    assert [job.id for job in queue.upcoming()] == ["a", "b", "c"]
    assert [job.id for job in queue.upcoming(2)] == ["a", "b"]
    assert [job.id for job in queue.upcoming(within="1h")] == ["a", "b"]
    assert all(job.state is State.DELAYED for job in queue.upcoming())


def test_what_it_keeps(queue: Facade) -> None:
    assert queue.counts().retention == Retention()
    queue.configure(retention=Retention(completed="1h", count=5))
    kept = queue.counts().retention
    assert (kept.completed, kept.count) == (3600.0, 5)
    with pytest.raises(UsageError, match="Retention"):
        queue.configure(retention=Retention(count=-1))


def test_what_a_job_knows_of_itself(queue: Facade, worker_queue: Queue) -> None:
    job = queue.enqueue_call(
        surface.say, [2], meta={"user": 7}, priority=8, retention="1h", timeout=30
    )
    burst(worker_queue, name="w1")
    queue.call(job.refresh)
    assert (job.task, job.args, job.kwargs) == ("tests.support.surface:say", (2,), {})
    assert (job.meta, job.priority, job.attempt, job.attempts) == ({"user": 7}, 8, 1, ())
    assert [line.text for line in job.logs] == ["line 0", "line 1"]
    assert job.worker.startswith("w1.")
    assert job.due <= job.started <= job.finished <= datetime.now(UTC) + timedelta(seconds=1)
    assert job.lateness == pytest.approx((job.started - job.due).total_seconds())
    assert not job.cancelling


def test_a_job_is_described_by_its_producer_or_by_its_call(queue: Facade) -> None:
    said = queue.enqueue(jobs.add, 1, delay=60, description="add one, später")
    unsaid = queue.enqueue(jobs.add, 1, b=[2], delay=60)
    long = queue.enqueue(jobs.add, "x" * 1000, delay=60)
    for job in (said, unsaid, long):
        queue.call(job.refresh)
    assert said.description == "add one, später"
    assert unsaid.description == "tests.support.jobs:add(1, b=[2])"
    assert len(long.description) == 500
    assert long.description.endswith("x…")


@pytest.mark.usefixtures("signing")
def test_a_pickled_call_is_described_without_being_read(url: str) -> None:
    with contextlib.closing(Queue("work", url=url, serializer="pickle")) as pickling:
        job = pickling.enqueue(jobs.add, 1, delay=60)
    with contextlib.closing(Queue("work", url=url)) as queue:
        assert queue.fetch(job.id).description == "tests.support.jobs:add"


def test_a_task_is_a_function_and_can_be_enqueued(queue: Facade, url: str) -> None:
    with redis.Redis.from_url(url):
        task = surface.when if isinstance(queue._queue, Queue) else surface.when_awaited
        here = task.options(queue=queue._queue)
        assert task() == surface.WHEN
        assert queue.call(here.enqueue).due <= datetime.now(UTC) + timedelta(seconds=1)
        later = queue.call(here.later("30m").options(priority=9).enqueue)
        assert later.due > datetime.now(UTC) + timedelta(minutes=29)
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        assert queue.call(here.later("30m").later(at).enqueue).due == at
        assert queue.call(here.later(at).later(5).enqueue).due < at
        assert queue.call(later.refresh).priority == 9


def test_a_queue_that_nobody_closed_is_closed_when_it_is_collected(url: str) -> None:
    queue = Queue("work", url=url)
    queue.counts()
    (node,) = queue._client._connections.values()
    (connection,) = node._idle
    del queue
    gc.collect()
    assert connection._sock is None


# -- what cannot be meant is refused before a server is asked


@pytest.fixture(params=["blocking", "awaited"])
def unreachable(request: pytest.FixtureRequest) -> Iterator[Facade]:
    facade = Facade(request.param, "unix:///nonexistent/bide.sock")
    yield facade
    facade.close()


@pytest.mark.parametrize("odd", [5, b"text", "x" * 501, "\ud800", ["text"]])
def test_a_description_is_a_line_of_text(unreachable: Facade, odd: Any) -> None:
    with pytest.raises(UsageError, match=r"^description must be text of at most 500 characters"):
        unreachable.enqueue(jobs.add, 1, description=odd)


OF_MANY = ["fetch_many", "cancel_many", "reschedule_many", "promote_many", "retry_many"]


@pytest.mark.parametrize("method", [*OF_MANY, "delete_many"])
def test_one_text_or_no_list_is_not_many_ids(unreachable: Facade, method: str) -> None:
    for ids, told in (("abc", "the text 'abc'"), (b"abc", "b'abc'"), (5, "5"), (None, "None")):
        with pytest.raises(UsageError, match=f"^Give a list of ids, not {told}.$"):
            getattr(unreachable, method)(ids)


@pytest.mark.parametrize("method", [*OF_MANY, "delete_many"])
@pytest.mark.parametrize("odd", [None, 5, b"abc", ["abc"], "\ud800"])
def test_an_id_is_text(unreachable: Facade, method: str, odd: Any) -> None:
    with pytest.raises(UsageError, match=r"^An id is text, such as job\.id, not ") as caught:
        getattr(unreachable, method)(["abc", odd, "ü"])
    assert repr(odd) in str(caught.value)


@pytest.mark.parametrize("method", ["fetch", "cancel"])
@pytest.mark.parametrize("odd", [None, 5, b"abc", "\ud800"])
def test_one_id_is_text_too(unreachable: Facade, method: str, odd: Any) -> None:
    with pytest.raises(UsageError, match=r"^An id is text"):
        getattr(unreachable, method)(odd)


def test_only_prepared_jobs_are_enqueued(unreachable: Facade) -> None:
    prepared = unreachable._queue.prepare(jobs.add, [1])
    odd: list[Any] = ["x", ["x"], [prepared, None], prepared, 5, [jobs.add], [tuple(prepared)]]
    for many in odd:
        with pytest.raises(
            UsageError, match=r"^enqueue_many needs (?:a list of )?jobs from queue.prepare"
        ):
            unreachable.enqueue_many(many)


@pytest.mark.parametrize("start", ["a", None, 1.0, True, -1])
def test_a_page_begins_at_a_whole_number(unreachable: Facade, start: Any) -> None:
    with pytest.raises(UsageError, match=r"must be a whole number, 0 or more; 0 is the first"):
        unreachable.jobs("failed", start)


def test_any_collection_of_ids_or_of_prepared_jobs_will_do(queue: Facade) -> None:
    prepared = [queue._queue.prepare(jobs.add, [i]) for i in range(3)]
    added = queue.enqueue_many(job for job in prepared)
    ids = {job.id: None for job in added}
    assert [job.id for job in queue.fetch_many(ids.keys())] == list(ids)
    assert queue.cancel_many(id for id in ids) == ["ok"] * 3
    assert queue.enqueue_many([]) == queue.fetch_many([]) == queue.cancel_many(()) == []


def test_a_wait_goes_on_when_another_thread_closes_the_queue(worker_queue: Queue) -> None:
    job = worker_queue.enqueue(jobs.add, 1)
    waiting = Later(lambda: job.wait(timeout=20))
    eventually(lambda: listeners(worker_queue, "waiters"))
    worker_queue.close()
    burst(worker_queue)
    assert waiting.result() == 1


def test_a_long_wait_says_once_that_no_worker_serves_the_queue(
    queue: Facade, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for side in ("_async", "_sync"):
        monkeypatch.setattr(f"bide.queue.{side}.job.LOOK_EVERY", 0.01)
        monkeypatch.setattr(f"bide.queue.{side}.job.WARN_AFTER", 0.02)
    job = queue.enqueue(jobs.add, 1)
    with pytest.raises(JobWaitTimeout):
        queue.call(job.wait, timeout=0.5)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"a program waits for the job {job.id}: no live worker serves the queue work"
    )
