"""What surrounds a run: resources of the worker, and middlewares."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import pytest

import bide
from bide import AsyncQueue, Middleware, PayloadError, Queue, Retry, State, UsageError
from bide.model.context import CurrentJob
from bide.model.payload.body import Body
from bide.protocol.commands.enqueue import Prepared
from bide.tasks.registry import Resource
from bide.worker import lifespan
from tests.support import jobs, surface
from tests.support.workers import at_work, burst, eventually, worker

KINDS = [jobs.add, jobs.add_async]
"""A plain function and a coroutine function."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No resource is registered, and no middleware in use."""
    monkeypatch.setattr(importlib.import_module("bide.tasks.registry"), "_resources", [])
    monkeypatch.setattr(importlib.import_module("bide.tasks.middleware"), "in_use", [])
    jobs.seen.clear()
    jobs.gate.clear()
    yield
    jobs.gate.set()


def register(*resources: Resource[Any]) -> None:
    importlib.import_module("bide.tasks.registry")._resources.extend(resources)


# -- resources


def test_they_are_opened_in_order_before_the_first_job_and_closed_in_reverse(
    queue: Queue,
) -> None:
    register(surface.pools, surface.caches)
    queue.enqueue(surface.use_pool, 1)
    burst(queue)
    assert jobs.seen == [
        "open pool",
        ("open cache", True),
        ("job", 1, True),
        ("close cache", True),
        "close pool",
    ]


def test_they_are_handed_to_whoever_asks_for_them(queue: Queue) -> None:
    register(surface.pools, surface.caches)
    plain = queue.enqueue(surface.use_pool, 1)
    awaited = queue.enqueue(surface.use_cache, 2)
    burst(queue)
    assert plain.refresh().result == "1 pool"
    assert awaited.refresh().result == "2 cache over pool"


@pytest.mark.slow
def test_once_for_all_jobs_of_a_worker_and_again_for_the_next(queue: Queue) -> None:
    register(surface.pools)
    for i in range(5):
        queue.enqueue(surface.use_pool, i)
    one = worker(queue)
    one.run(burst=True)
    assert jobs.seen.count("open pool") == jobs.seen.count("close pool") == 1
    one.run(burst=True)
    burst(queue)
    assert jobs.seen.count("open pool") == jobs.seen.count("close pool") == 3


def test_they_stay_open_until_the_last_job_has_ended(queue: Queue) -> None:
    register(surface.pools)
    queue.enqueue(jobs.wait_thread)
    with at_work(queue) as one:
        jobs.wait_seen(2)
        one.stop()
        jobs.gate.set()
        jobs.wait_seen(4)
    assert jobs.seen == ["open pool", "begun", "ended", "close pool"]


def test_one_that_yields_nothing_is_two_hooks(queue: Queue) -> None:
    @bide.resource
    def hooks() -> Iterator[None]:
        jobs.note("start")
        yield
        jobs.note("stop")

    queue.enqueue(jobs.add, 1)
    burst(queue)
    assert jobs.seen == ["start", ("add", 1, 0), "stop"]


def test_one_that_cannot_be_opened_stops_the_worker_and_closes_the_others(queue: Queue) -> None:
    register(surface.pools)

    @bide.resource
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no such database")
        yield

    @bide.resource
    def never() -> Iterator[None]:
        jobs.note("never opened")
        yield

    job = queue.enqueue(jobs.add, 1)
    with pytest.raises(ConnectionError, match="no such database") as caught:
        burst(queue)
    assert "broken raised when it was opened" in caught.value.__notes__[0]
    assert jobs.seen == ["open pool", "close pool"]
    assert job.refresh().state is State.WAITING
    assert queue.counts().idle_workers == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_ends_without_a_yield_is_named(queue: Queue, is_async: bool) -> None:
    async def async_one() -> AsyncIterator[None]:
        if jobs.seen:
            yield

    def plain_one() -> Iterator[None]:
        yield from ()

    register(Resource(async_one if is_async else plain_one))
    with pytest.raises(UsageError, match=r"_one ended without a yield"):
        burst(queue)


@pytest.mark.slow
def test_one_that_breaks_when_it_is_closed_keeps_no_other_open(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    register(surface.pools)

    @bide.resource
    def broken() -> Iterator[None]:
        yield
        raise ConnectionError("already gone")

    job = queue.enqueue(jobs.add, 1)
    burst(queue)
    assert job.refresh().state is State.COMPLETED
    assert jobs.seen[-1] == "close pool"
    assert "broken raised when it was closed" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_yields_twice_is_logged(
    queue: Queue, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def async_one() -> AsyncIterator[int]:
        yield 1
        yield 2

    def plain_one() -> Iterator[int]:
        yield 1
        yield 2

    register(Resource(async_one if is_async else plain_one))
    burst(queue)
    assert "_one yielded twice; let it yield once" in caplog.text


def test_one_that_opens_slowly_is_logged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespan, "SLOW", 0.01)

    def slow() -> Iterator[None]:
        eventually(lambda: "is not open after 0.01 s" in caplog.text)
        yield

    register(Resource(slow))
    burst(queue)
    assert "slow is not open" in caplog.text


def test_a_task_whose_resource_nobody_opened_fails_and_says_what_to_do(queue: Queue) -> None:
    job = queue.enqueue(surface.use_pool, 1)
    burst(queue)
    error = job.refresh().error
    assert error is not None
    assert "open_pool is not open; register it" in error.message


def test_called_by_hand_the_function_wants_the_value(queue: Queue) -> None:
    assert surface.use_pool(1, surface.Pool("mine")) == "1 mine"
    with pytest.raises(UsageError, match="open only in a worker"):
        surface.use_pool(1)


def test_only_a_generator_function_is_a_resource() -> None:
    with pytest.raises(UsageError, match="is not a generator function"):
        bide.resource(jobs.add)  # type: ignore[arg-type]


# -- middlewares: enqueuing


class Tags(Middleware):
    """Notes on each job who enqueued it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def enqueuing(self, queue: str, body: Body) -> Body:
        tags = [*(body.meta or {}).get("tags", []), f"{self.name}@{queue}"]
        return msgspec.structs.replace(body, meta={**(body.meta or {}), "tags": tags})


def test_every_enqueue_passes_through_it_the_first_used_first(queue: Queue, url: str) -> None:
    bide.add_middleware(Tags("a"))
    bide.add_middleware(Tags("b"))
    tags = ["a@work", "b@work"]
    assert queue.enqueue(jobs.add, 1).meta == {"tags": tags}
    assert queue.enqueue_call(jobs.add, [1], meta={"user": 7}).meta == {"user": 7, "tags": tags}
    (job,) = queue.enqueue_many([queue.prepare(jobs.add, [1])])
    assert job.meta == {"tags": tags}
    assert surface.with_callbacks.options(queue=queue).enqueue(False).meta == {"tags": tags}

    async def awaited() -> dict[str, Any]:
        queue = AsyncQueue("work", url=url)
        job = await queue.enqueue(jobs.add, 1)
        meta = (await job.refresh()).meta
        await queue.close()
        return meta

    assert asyncio.run(awaited()) == {"tags": tags}


def test_one_that_raises_reaches_the_caller_and_nothing_is_enqueued(queue: Queue) -> None:
    class Refuses(Middleware):
        def enqueuing(self, queue: str, body: Body) -> Body:
            raise PermissionError(body.task)

    bide.add_middleware(Refuses())
    with pytest.raises(PermissionError, match="jobs:add"):
        queue.enqueue(jobs.add, 1)
    assert queue.counts().waiting == 0


class Sends(Middleware):
    """Notes what is sent, and what comes of it."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    @contextmanager
    def sending(self, queue: str, jobs: Sequence[Prepared] | None) -> Iterator[None]:
        self.seen.append((self.name, queue, jobs and len(jobs)))
        try:
            yield
        except BaseException as error:
            self.seen.append((self.name, type(error)))
            raise
        self.seen.append((self.name, "sent"))


def test_every_sending_is_surrounded_the_first_used_outermost(queue: Queue, url: str) -> None:
    seen: list[Any] = []
    for name in ("a", "b"):
        bide.add_middleware(Sends(name, seen))
    bide.add_middleware(Tags("c"))
    around = [("a", "work"), ("b", "work"), ("b", "sent"), ("a", "sent")]
    one = [(*each, None) if each[1] == "work" else each for each in around]
    two = [(*each, 2) if each[1] == "work" else each for each in around]
    queue.enqueue(jobs.add, 1)
    assert seen == one
    queue.enqueue_many([queue.prepare(jobs.add, [i]) for i in range(2)])
    assert seen == one + two
    seen.clear()

    async def awaited() -> None:
        queue = AsyncQueue("work", url=url)
        await queue.enqueue(jobs.add, 1)
        await queue.enqueue_many([queue.prepare(jobs.add, [i]) for i in range(2)])
        await queue.close()

    asyncio.run(awaited())
    assert seen == one + two
    seen.clear()
    with pytest.raises(PayloadError):
        queue.enqueue(jobs.add, object())
    assert seen == [
        ("a", "work", None),
        ("b", "work", None),
        ("b", PayloadError),
        ("a", PayloadError),
    ]


def test_one_that_keeps_what_a_sending_raised_is_told(queue: Queue) -> None:
    class Keeps(Middleware):
        def sending(self, queue: str, jobs: Sequence[Prepared] | None) -> Any:
            return suppress(Exception)

    bide.add_middleware(Keeps())
    with pytest.raises(UsageError, match="suppressed the error of a sending"):
        queue.enqueue(jobs.add, object())
    assert queue.enqueue(jobs.add, 1).state == "waiting"


def test_use_wants_a_middleware() -> None:
    with pytest.raises(UsageError, match="needs an instance of a bide"):
        bide.add_middleware(Tags)  # type: ignore[type-var]


# -- middlewares: running


class Around(Middleware):
    """Notes when a run begins and ends, from a sync context manager."""

    def __init__(self, name: str) -> None:
        self.name = name

    def running(self, job: CurrentJob) -> Any:
        return self.around(job)

    @contextmanager
    def around(self, job: CurrentJob) -> Iterator[None]:
        jobs.note(f"{self.name} in", job.task.partition(":")[2], job.attempt)
        try:
            yield
        except BaseException as error:
            jobs.note(f"{self.name} sees", type(error).__name__)
            raise
        jobs.note(f"{self.name} out")


class AsyncAround(Around):
    """The same from an async one, which is entered and left on the event loop."""

    def running(self, job: CurrentJob) -> Any:
        return self.around_async(job)

    @asynccontextmanager
    async def around_async(self, job: CurrentJob) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        asyncio.get_running_loop()
        with self.around(job):
            yield
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("kind", [Around, AsyncAround])
def test_a_run_happens_inside_it(queue: Queue, task: Any, kind: type[Around]) -> None:
    bide.add_middleware(kind("m"))
    job = queue.enqueue(task, 2, 3)
    burst(queue)
    name = task.__name__
    assert jobs.seen == [("m in", name, 1), (name, 2, 3), "m out"]
    assert job.refresh().result == 5


@pytest.mark.parametrize("task", KINDS)
def test_the_first_used_is_outermost(queue: Queue, task: Any) -> None:
    for middleware in (Around("a"), AsyncAround("b"), Around("c")):
        bide.add_middleware(middleware)
    queue.enqueue(task, 1)
    burst(queue)
    names = [what[0] if isinstance(what, tuple) else what for what in jobs.seen]
    assert names == ["a in", "b in", "c in", task.__name__, "c out", "b out", "a out"]


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
@pytest.mark.parametrize("kind", [Around, AsyncAround])
def test_it_sees_what_the_task_raises(queue: Queue, task: Any, kind: type[Around]) -> None:
    bide.add_middleware(kind("m"))
    job = queue.enqueue(task, "no")
    burst(queue)
    assert jobs.seen[-1] == ("m sees", "ValueError")
    error = job.refresh().error
    assert error is not None
    assert (error.type, error.message) == ("ValueError", "no")


@contextmanager
def swallows() -> Iterator[None]:
    try:
        yield
    except ValueError:
        jobs.note("swallowed")


@asynccontextmanager
async def swallows_async() -> AsyncIterator[None]:
    with swallows():
        yield


@contextmanager
def replaces() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise PermissionError("replaced") from error


@asynccontextmanager
async def replaces_async() -> AsyncIterator[None]:
    with replaces():
        yield


class With(Middleware):
    """A middleware of one context manager."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def running(self, job: CurrentJob) -> Any:
        return self.make()


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
@pytest.mark.parametrize("make", [swallows, swallows_async])
def test_it_may_keep_it_to_itself(queue: Queue, task: Any, make: Any) -> None:
    bide.add_middleware(With(make))
    job = queue.enqueue(task, "no", retry=3)
    burst(queue)
    job.refresh()
    assert (job.state, job.result, job.error) == (State.COMPLETED, None, None)
    assert jobs.seen == [("fail", 1), "swallowed"]


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
@pytest.mark.parametrize("make", [replaces, replaces_async])
def test_or_raise_something_else(queue: Queue, task: Any, make: Any) -> None:
    bide.add_middleware(With(make))
    job = queue.enqueue(task, "no")
    burst(queue)
    error = job.refresh().error
    assert error is not None
    assert (error.type, error.message) == ("PermissionError", "replaced")


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
def test_one_that_breaks_before_the_run_fails_that_attempt(queue: Queue, task: Any) -> None:
    def make() -> None:
        raise LookupError("no such tenant")

    bide.add_middleware(Around("m"))
    bide.add_middleware(With(make))
    job = queue.enqueue(task, 1, retry=Retry(1, backoff="fixed", base=0))
    burst(queue)
    name = task.__name__
    assert jobs.seen == [
        *(
            ("m in", name, 1),
            ("m sees", "LookupError"),
            ("m in", name, 2),
            ("m sees", "LookupError"),
        ),
    ]
    assert job.refresh().state is State.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
def test_one_that_wants_nothing_leaves_the_run_alone(queue: Queue, task: Any) -> None:
    bide.add_middleware(Middleware())
    job = queue.enqueue(task, 2, 3)
    burst(queue)
    assert job.refresh().result == 5


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.hang, surface.tidy_up])
def test_it_sees_that_a_job_was_asked_to_stop(queue: Queue, task: Any) -> None:
    bide.add_middleware(Around("m"))
    job = queue.enqueue(task)
    with at_work(queue):
        jobs.wait_seen(2)
        job.cancel()
        eventually(lambda: job.refresh().finished)
    assert job.state is State.CANCELLED
    assert jobs.seen[-1] == ("m sees", "CancelledError")
