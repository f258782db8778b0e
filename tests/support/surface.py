"""Tasks that use what a running job can do; those that only run are in `jobs`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import bide
from bide import Fail, PauseQueue, Retry, RetryLater, Snooze, current_job
from bide.model.context import CurrentJob
from bide.tasks.registry import Resource
from tests.support.eventually import PATIENCE
from tests.support.jobs import gate, note

queue = bide.Queue("registers-only", url="redis://127.0.0.1:1")
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@queue.task
def when() -> datetime:
    return WHEN


# -- asked to stop


def look_until_asked() -> str:
    """A plain function that looks for itself."""
    note("begun")
    while not current_job().should_stop:
        gate.wait(0.005)
    current_job().raise_if_cancelled()
    return "never"


def look_and_finish() -> str:
    note("begun")
    while not current_job().should_stop:
        gate.wait(0.005)
    return "finished all the same"


def look_and_break() -> None:
    note("begun")
    while not current_job().should_stop:
        gate.wait(0.005)
    raise ValueError("broken off")


def not_asked() -> str:
    current_job().raise_if_cancelled()
    return f"{current_job().should_stop}"


async def tidy_up() -> None:
    note("begun")
    try:
        await asyncio.sleep(3600)
    finally:
        note("tidied", current_job().should_stop)


async def stay() -> str:
    """Deaf to being asked."""
    note("begun")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    return "stayed"


async def break_off() -> None:
    note("begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise ValueError("broken off") from None


# -- what a job says of itself


def say(lines: int = 3) -> str:
    job = current_job()
    for i in range(lines):
        job.log(f"line {i}")
        job.progress((i + 1) / lines, f"step {i}")
    return "said"


async def say_async(lines: int = 3) -> str:
    return say(lines)


def say_and_wait() -> None:
    current_job().log("working")
    current_job().progress(0.5, "half way")
    note("said")
    gate.wait(PATIENCE)


async def say_and_wait_async() -> None:
    current_job().log("working")
    current_job().progress(0.5, "half way")
    note("said")
    while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
        await asyncio.sleep(0.005)


def say_and_fail() -> None:
    current_job().log("it goes wrong")
    raise ValueError("as it said")


def say_in_threads(count: int) -> None:
    job = current_job()
    threads = [threading.Thread(target=job.log, args=(f"{i}",)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def say_nonsense(fraction: Any) -> None:
    current_job().progress(fraction)


# -- how it ends


def ask_for_later(delay: float | None = None) -> None:
    note(current_job().attempt)
    raise RetryLater(delay, "not yet")


async def ask_for_later_async(delay: float | None = None) -> None:
    ask_for_later(delay)


def snooze_once(delay: float) -> str:
    job = current_job()
    note(job.attempt, job.first_due, job.due)
    if len(job.id) and not gate.is_set():
        gate.set()
        raise Snooze(delay)
    return "awake"


def hold_once(delay: float) -> float:
    """Hold the queue; by the second run it has been moved. When that was due."""
    job = current_job()
    if job.due == job.first_due:
        raise PauseQueue(delay, "429")
    return job.due.timestamp()


async def hold_once_async(delay: float) -> float:
    return hold_once(delay)


async def hang_once_begun() -> None:
    current_job().log("begun")
    await asyncio.sleep(60)


def started() -> float:
    """When it was claimed, by the server's clock."""
    return current_job().token / 1e6


async def started_async() -> float:
    return started()


async def snooze_until(iso: str) -> None:
    raise Snooze(at=datetime.fromisoformat(iso))


def give_up() -> None:
    note(current_job().attempt)
    raise Fail("no use")


class Refused(Exception):
    pass


def refuse() -> None:
    note(current_job().attempt)
    raise Refused("never")


def how_redelivered() -> bool:
    note(current_job().attempt, current_job().redelivered)
    return current_job().redelivered


async def sleep_for(seconds: float) -> None:
    note("begun")
    await asyncio.sleep(seconds)


@queue.task(timeout=1)
async def brief(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "in time"


@queue.task(retry=Retry(1, backoff="fixed", base=0), retention=77, on_crash="fail")
def with_policy() -> None:
    note(current_job().attempt)
    raise ValueError("as ever")


def pauses(attempt: int, error: BaseException) -> float | None:
    """A backoff of our own: at once, and then no more."""
    note("asked for a delay", attempt, str(error))
    return 0 if attempt < 2 else None


# -- methods of instances


@dataclass
class Cart:
    owner: str
    items: list[int]

    def total(self, discount: int = 0) -> str:
        return f"{self.owner}: {sum(self.items) - discount}"

    async def total_later(self) -> str:
        await asyncio.sleep(0)
        return self.total()


def say_much() -> None:
    for i in range(100):
        current_job().log(f"{i} " + "x" * 1_990)


def say_this(text: str) -> None:
    current_job().log(text.replace("\\ud800", "\ud800"))


# -- resources


class Pool:
    """What a resource hands out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = True


def open_pool() -> Iterator[Pool]:
    note("open pool")
    pool = Pool("pool")
    yield pool
    pool.open = False
    note("close pool")


pools: Resource[Pool] = Resource(open_pool)


async def open_cache(pool: Pool = pools.injected) -> AsyncIterator[str]:
    note("open cache", pool.open)
    await asyncio.sleep(0)
    yield f"cache over {pool.name}"
    await asyncio.sleep(0)
    note("close cache", pool.open)


caches: Resource[str] = Resource(open_cache)


def use_pool(n: int, pool: Pool = pools.injected) -> str:
    note("job", n, pool.open)
    return f"{n} {pool.name}"


async def use_cache(n: int, *, cache: str = caches.injected) -> str:
    note("job", n)
    return f"{n} {cache}"


# -- callbacks


def told(job: CurrentJob, value: Any) -> None:
    note("told", job.id, str(value), current_job() is job)


async def told_async(job: CurrentJob, value: Any) -> None:
    await asyncio.sleep(0)
    note("told", job.id, str(value), current_job() is job)


async def told_slowly(job: CurrentJob, value: Any) -> None:
    await asyncio.sleep(0.2)
    note("told", job.id)


async def told_after_the_time_out(job: CurrentJob, value: Any) -> None:
    deadline = job._run.deadline  # type: ignore[attr-defined]
    await asyncio.sleep(deadline + 0.1 - time.monotonic())
    note("told", job.id)


def told_badly(job: CurrentJob, value: Any) -> None:
    note("told badly")
    raise LookupError("the callback's own")


async def told_badly_async(job: CurrentJob, value: Any) -> None:
    told_badly(job, value)


async def told_forever(job: CurrentJob, value: Any) -> None:
    note("told")
    await asyncio.sleep(3600)


@queue.task(on_success=told, on_failure=told_async)
def with_callbacks(wrong: bool) -> str:
    if wrong:
        raise ValueError("wrong")
    return "right"


@queue.task(on_failure="tests.support.surface:told")
def fails_twice() -> None:
    note("attempt", current_job().attempt)
    raise ValueError("wrong")


awaited_queue = bide.AsyncQueue("registers-only", url="redis://127.0.0.1:1")


@awaited_queue.task
def when_awaited() -> datetime:
    return WHEN
