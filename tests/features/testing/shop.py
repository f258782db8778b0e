"""Tasks of an application that is under test; what they did is in `done`.

Its queues were made as applications make them, at import, with addresses that lead nowhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

import bide
from bide.testing import isolated_registry

done: list[Any] = []
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

begun = threading.Event()
gate = threading.Event()
"""What `hold` sets, and what it waits for."""

mail = bide.Queue("mail", url="redis://127.0.0.1:1", prefix="production")
low = bide.Queue("low", url="redis://127.0.0.1:1/3")
events = bide.AsyncQueue("events", url="unix:///nowhere/at/all")
packed = bide.Queue("packed", serializer="msgpack")
pickled = bide.Queue("pickled", serializer="pickle")


@dataclass
class Order:
    id: int
    placed: datetime


@mail.task
def send(to: int, text: str = "hello") -> str:
    done.append(("send", to, text))
    return f"{text} {to}"


@mail.task
def ship(order: Order) -> Order:
    done.append(order)
    return order


@mail.task(delay="24h")
def remind(to: int) -> None:
    done.append(("remind", to))


@mail.task
def note(what: str) -> None:
    done.append(what)


@low.task(priority=9)
def note_low(what: str) -> None:
    done.append(what)


@mail.task
def begin(steps: int) -> None:
    """A chain: each step enqueues the next, an hour later."""
    done.append(steps)
    if steps > 1:
        begin.later("1h").enqueue(steps - 1)


@mail.task
def forever() -> None:
    forever.enqueue()


@mail.task
def fail(why: str) -> None:
    raise ValueError(why)


@mail.task(retry=bide.Retry(2, backoff="fixed", base="1m"))
def stumble(times: int) -> int:
    attempt = bide.current_job().attempt
    done.append(attempt)
    if attempt <= times:
        raise ConnectionError(f"stumbled at {attempt}")
    return attempt


@mail.task
def hold() -> None:
    begun.set()
    gate.wait(90)


@events.task
async def publish(name: str) -> str:
    await asyncio.sleep(0)
    done.append(("publish", name))
    return name.upper()


@events.task
async def fan_out(count: int) -> None:
    for i in range(count):
        await publish.enqueue(str(i))
    send.enqueue(count)


@events.task(timeout="50ms")
async def hang() -> None:
    await asyncio.sleep(3600)


@mail.task
def where() -> str:
    job = bide.current_job()
    job.log("here")
    job.progress(0.5, "half")
    done.append((threading.get_ident(), job.id, tenant.get()))
    tenant.set("leaked")
    return job.queue


@events.task
async def where_async() -> str:
    done.append((threading.get_ident(), bide.current_job().id, tenant.get()))
    tenant.set("leaked")
    return bide.current_job().queue


@mail.task
def unfit() -> object:
    return object()


@mail.task
def later() -> None:
    raise bide.RetryLater("5m", "not yet")


@mail.task
def snooze() -> None:
    done.append("snoozed")
    raise bide.Snooze("10m")


@mail.task(retry=5)
def give_up() -> None:
    raise bide.Fail("no use")


@mail.task
def call_off() -> None:
    raise bide.JobCancelled


@mail.task
def leave() -> None:
    raise SystemExit(3)


@events.task
async def leave_async() -> None:
    raise SystemExit(3)


@events.task
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@events.task
async def cancel_its_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


@mail.task
def uses_a_loop(n: int) -> int:
    """Plain code that runs coroutines of its own, as it may in a worker's thread."""
    return asyncio.run(asyncio.sleep(0, n + 1))


def succeeded(job: bide.CurrentJob, result: Any) -> None:
    done.append(("succeeded", job.id, result))


async def failed(job: bide.CurrentJob, error: BaseException) -> None:
    done.append(("failed", bide.current_job().id, str(error)))


def unregistered(n: int) -> int:
    return n * 2


class Middleware(bide.Middleware):
    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def running(self, job: bide.CurrentJob) -> Any:
        return _around_async(job) if self.is_async else _around(job)


class _around:
    def __init__(self, job: bide.CurrentJob) -> None:
        self.job = job

    def __enter__(self) -> None:
        done.append("enter")

    def __exit__(self, *exc: object) -> None:
        done.append("leave")


class _around_async(_around):
    async def __aenter__(self) -> None:
        await asyncio.sleep(0)
        done.append("enter async")

    async def __aexit__(self, *exc: object) -> None:
        done.append("leave async")


with isolated_registry():  # so that other tests' workers do not open these

    @bide.resource
    def ledger() -> Iterator[list[str]]:
        done.append("open ledger")
        yield ["ledger"]
        done.append("close ledger")

    @bide.resource
    async def pool(book: list[str] = ledger.injected) -> AsyncIterator[str]:
        with anyio.CancelScope():  # must be left in the task in which it was entered
            done.append("open pool")
            yield f"pool of {book[0]}"
        done.append("close pool")

    @bide.resource
    def unused() -> Iterator[None]:
        done.append("open unused")
        yield
        done.append("close unused")

    is_down = threading.Event()

    @bide.resource
    def bank() -> Iterator[str]:
        if is_down.is_set():
            raise ConnectionError("the bank is closed")
        yield "bank"

    RESOURCES: list[bide.Resource[Any]] = [ledger, pool, unused]


@mail.task
def book(what: str, into: list[str] = ledger.injected) -> list[str]:
    into.append(what)
    return list(into)


@mail.task
def pay(amount: int, at: str = bank.injected) -> str:
    done.append(("pay", amount))
    return f"{amount} at {at}"


@events.task
async def query(what: str, by: str = pool.injected) -> str:
    return f"{what} by {by}"


@events.task
async def ask(what: str) -> str:
    """Enqueue a job that needs a resource, and return its result."""
    return await (await query.enqueue(what)).wait()


def _query(what: int) -> str:
    return str(mail.enqueue(query, str(what)).wait())


@mail.task
def spread(count: int) -> list[str]:
    """Wait for threads that enqueue."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(_query, range(count)))


@events.task
async def spread_async(count: int) -> list[str]:
    return [await asyncio.to_thread(_query, number) for number in range(count)]
