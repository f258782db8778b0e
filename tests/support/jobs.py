"""Tasks that the worker's tests run; what they did is in `seen`, guarded by `changed`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import redis

import bide
from bide.model.durations import at_to_us
from tests.support.eventually import PATIENCE

seen: list[Any] = []
changed = threading.Condition()
gate = threading.Event()
"""Holds `wait_thread` and `wait_async` back until a test opens it."""


def note(*what: Any) -> None:
    with changed:
        seen.append(what if len(what) != 1 else what[0])
        changed.notify_all()


def wait_seen(count: int, seconds: float = PATIENCE) -> list[Any]:
    """What was noted, once there are `count` notes."""
    with changed:
        assert changed.wait_for(lambda: len(seen) >= count, seconds), f"only {seen}"
        return list(seen)


def add(a: int, b: int = 0) -> int:
    note("add", a, b)
    return a + b


async def add_async(a: int, b: int = 0) -> int:
    note("add_async", a, b)
    await asyncio.sleep(0)
    return a + b


@dataclass
class Parcel:
    """An argument that tells whether it is still there."""

    weight: int


def take_parcel(parcel: Parcel) -> None:
    note(weakref.ref(parcel), weakref.ref(bide.current_job()._run))


async def take_parcel_async(parcel: Parcel) -> None:
    take_parcel(parcel)


def sum_of_parents(url: str) -> int:
    """The results of what the job has waited for."""
    queue = bide.Queue("work", url=url)
    try:
        return sum(job.result or 0 for job in queue.parents())
    finally:
        queue.close()


async def sum_of_parents_async(url: str) -> int:
    queue = bide.AsyncQueue("work", url=url)
    try:
        return sum([job.result or 0 for job in await queue.parents()])
    finally:
        await queue.close()


def echo(text: str) -> str:
    return text


async def echo_async(url: str) -> None:
    """Say on a server that it has begun."""
    with redis.Redis.from_url(url) as client:
        client.echo("begun")
    note("begun")


def fail(message: str) -> None:
    note("fail", bide.current_job().attempt)
    raise ValueError(message)


async def fail_async(message: str) -> None:
    note("fail", bide.current_job().attempt)
    raise ValueError(message)


def unfit() -> object:
    return object()


def ask_for_nothing() -> None:
    raise bide.TaskNotFound("Nothing of the worker's is missing; the job itself says so.")


def quit_process() -> None:
    raise SystemExit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


def who() -> list[Any]:
    job = bide.current_job()
    note(job.id, job.queue, job.attempt, job.token > 0, threading.current_thread().name)
    return [job.id]


async def who_async() -> None:
    job = bide.current_job()
    await asyncio.sleep(0)
    note(job.id, job.queue, job.attempt, bide.current_job() is job)


def wait_thread() -> str:
    note("begun")
    gate.wait(PATIENCE)
    note("ended")
    return "waited"


async def wait_async() -> str:
    note("begun")
    while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
        await asyncio.sleep(0.005)
    note("ended")
    return "waited"


async def hang() -> None:
    note("begun")
    await asyncio.sleep(3600)


async def block(seconds: float) -> str:
    """Hold the event loop, as a badly written coroutine does."""
    note("begun")
    time.sleep(seconds)  # noqa: ASYNC251 - the point of it
    return "done"


class Greeter:
    @staticmethod
    def greet(name: str) -> str:
        return f"hello {name}"


def _private() -> None:
    note("private")


registered_queue = bide.Queue("unused", url="redis://127.0.0.1:1")


@registered_queue.task
def registered() -> str:
    return "registered"


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def see_tenant(name: str) -> str:
    """Say whose context this is, and make it `name`'s."""
    before = tenant.get()
    tenant.set(name)
    return before


async def see_tenant_async(name: str) -> str:
    await asyncio.sleep(0)
    return see_tenant(name)


def nested(depth: int) -> object:
    """A result that is too deep to be encoded."""
    value: object = None
    for _ in range(depth):
        value = [value]
    return value


def raise_unprintable() -> None:
    raise SyntaxError("bad", ("file", 1, "offset", "text"))  # type: ignore[arg-type]


async def block_noted(seconds: float) -> str:
    note(bide.current_job().id, bide.current_job().worker)
    time.sleep(seconds)  # noqa: ASYNC251 - the point of it
    return "done"


def wait_and_fail() -> None:
    note("begun")
    gate.wait(PATIENCE)
    raise ValueError("in the end")


async def in_a_thread() -> None:
    note("begun")
    await asyncio.to_thread(gate.wait, 30)


async def deaf() -> None:
    note("begun")
    while not gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


def half_way() -> None:
    bide.current_job().progress(0.5, "half way")


async def note_start() -> None:
    note(bide.current_job().id, time.time_ns() // 1000, at_to_us(bide.current_job().due))


def note_start_in_thread() -> None:
    note(bide.current_job().id, time.time_ns() // 1000, at_to_us(bide.current_job().due))
