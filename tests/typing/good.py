"""What type checkers must accept, and the types they must see. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import bide
from bide import AsyncJob, AsyncQueue, Job, Queue, Retry

queue = Queue("mail")
async_queue = AsyncQueue("mail")
Queue("hooks", rate="5/s", burst=2, concurrency=None, retention=bide.Retention(count=7))
AsyncQueue("hooks", defaults={"delay": timedelta(minutes=5), "retry": Retry(3)})


@queue.task
def add(a: int, b: int = 2) -> int:
    return a + b


@queue.task(timeout="30s", retry=Retry(5), delay=timedelta(minutes=1), priority=9)
def greet(name: str, *, loud: bool = False) -> str:
    return name


@queue.task
async def fetch(url: str) -> bytes:
    return b""


@async_queue.task
async def fetch_later(url: str) -> bytes:
    return b""


@async_queue.task(retention="1h", on_crash="fail")
def crunch(numbers: list[float]) -> float:
    return sum(numbers)


@queue.task(name="send_email", timeout=3)
def send_email(to: str) -> bool:
    return True


@async_queue.task(name="send_later")
async def send_later(to: str) -> bool:
    return True


# Still plain functions.
assert_type(add(1), int)
assert_type(greet("x", loud=True), str)
coroutine = assert_type(fetch("x"), Coroutine[Any, Any, bytes])
assert_type(crunch([1.0]), float)

# Enqueued, the function's own arguments are checked, and the result is known.
assert_type(add.enqueue(1, b=3), Job[int])
assert_type(greet.enqueue("x", loud=True), Job[str])
assert_type(fetch.enqueue("x"), Job[bytes])
assert_type(queue.batch("key", 1, into=crunch, quiet="2s", priority=9), Job[Any])
unique = bide.Unique(key=lambda a, b=2: f"{a}-{b}", until="started", on_conflict="replace")
assert_type(add.options(unique=unique).enqueue(1), Job[int])
assert_type(add.options(unique=bide.debounce("2s", max_wait=30)).enqueue(1), Job[int])
assert_type(send_email.enqueue("x"), Job[bool])
assert_type(add.later("30m").enqueue(1), Job[int])
assert_type(add.later(datetime.now(UTC)).enqueue(1), Job[int])
assert_type(add.later(timedelta(hours=1)).options(priority=9, job_id="x").enqueue(1), Job[int])
assert_type(add.options(queue=Queue("low")).enqueue(1), Job[int])
assert_type(add.enqueue(1).wait(5), int)
assert_type(add.enqueue(1).result, int | None)
assert_type(fetch.enqueue("x").wait("1m"), bytes)

# The queue takes any function, and cannot know.
assert_type(queue.enqueue(add, 1, delay="30m"), Job[Any])
assert_type(queue.enqueue("app.tasks:send", 1, at=datetime.now(UTC)), Job[Any])
assert_type(queue.enqueue_call(add, (1,), {"b": 2}, timeout=3, retry=5), Job[Any])
queue.enqueue_many([queue.prepare(add, (1,)), add.prepare(2), add.later(1).prepare(3, b=1)])


async def awaited() -> None:
    assert_type(await fetch_later.enqueue("x"), AsyncJob[bytes])
    assert_type(await fetch_later.later(3).enqueue("x"), AsyncJob[bytes])
    assert_type(await crunch.options(priority=1).enqueue([1.0]), AsyncJob[float])
    assert_type(await (await fetch_later.enqueue("x")).wait(1), bytes)
    assert_type(await fetch_later("x"), bytes)
    job = await async_queue.enqueue(add, 1)
    assert_type(await job.cancel(), bool)


class Pool:
    """A resource's value."""


@bide.resource
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@bide.resource
def hooks() -> Iterator[None]:
    yield


assert_type(pool.injected, Pool)


@queue.task
def stored(order: int, db: Pool = pool.injected) -> None: ...


assert_type(stored.enqueue(1), Job[None])


class Greeter:
    """A class whose methods are enqueued."""

    def greet(self, name: str) -> str:
        return name


queue.enqueue(Greeter().greet, "x")


class Plain(bide.Middleware):
    """A hook that is a plain function."""

    def failed(self, failure: bide.FailedAttempt) -> None:
        assert_type(failure.job, bide.CurrentJob)
        assert_type(failure.error, BaseException)
        assert_type(failure.args, Sequence[Any] | None)
        assert_type(failure.kwargs, Mapping[str, Any] | None)
        assert_type(failure.retry_in, float | None)
        assert_type(failure.is_final, bool)
        assert_type(failure.raised, bool)


class Awaited(bide.Middleware):
    """A hook that is a coroutine function."""

    async def failed(self, failure: bide.FailedAttempt) -> None: ...


assert_type(bide.add_middleware(Plain()), Plain)
bide.add_middleware(Awaited())
