"""Tasks that run in child processes; what they did is in a file, a line of JSON each."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import bide
from bide import Fail, Queue, Retry, RetryLater, Snooze, current_job
from bide.model.context import CurrentJob
from bide.model.ids import new_id
from bide.tasks.middleware import Middleware, add_middleware
from bide.tasks.registry import Resource, resource
from bide.worker.processes.linux import MARK
from tests.support.eventually import PATIENCE

NOTES = "BIDE_TEST_NOTES"
URL = "BIDE_TEST_URL"
BROKEN = "BIDE_TEST_BROKEN"
IN_CHILDREN = MARK in os.environ
"""Other tests of this process are to have no middleware and no resource of these."""

broken = os.environ.get(BROKEN)
if broken == "import":
    raise RuntimeError("no import today")

print("imported", flush=False)  # what is not written out yet must not be written by each child


def note(*what: Any) -> None:
    """Write a line; it names the process, and the job if there is one."""
    try:
        id = current_job().id
    except bide.UsageError:
        id = ""
    line = json.dumps({"what": what, "pid": os.getpid(), "id": id})
    if NOTES in os.environ:  # else these are another test's children, which import this, too
        with open(os.environ[NOTES], "a") as file:
            file.write(line + "\n")


def gate(name: str) -> Path:
    return Path(os.environ.get(NOTES, os.devnull) + "." + name)


def wait_for(name: str, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not gate(name).exists() and time.monotonic() < until:
        time.sleep(0.003)


# -- what they return and raise


def add(a: int, b: int = 0) -> int:
    note("add", a, b)
    return a + b


async def add_async(a: int, b: int = 0) -> int:
    await asyncio.sleep(0.001)
    note("add", a, b)
    return a + b


@dataclass
class Order:
    id: UUID
    at: datetime
    amount: int


def typed(order: Order, when: datetime) -> dict[str, Any]:
    return {"type": type(order).__name__, "id": order.id, "later": when > order.at}


def give_back(data: str) -> str:
    return data


def pair() -> tuple[int, int]:
    return (1, 2)


def unfit() -> object:
    return object()


def raise_it(message: str) -> None:
    note("raised", current_job().attempt)
    raise ValueError(message)


async def raise_async(message: str) -> None:
    raise ValueError(message)


def leave(code: int) -> None:
    sys.exit(code)


def pauses(attempt: int, error: BaseException) -> float | None:
    """A backoff of our own: at once, and then no more."""
    note("asked for a delay", attempt, str(error))
    return 0 if attempt < 3 else None


def later_once() -> str:
    if current_job().attempt == 1:
        raise RetryLater(0, "not yet")
    return "done"


def snooze_once() -> int:
    job = current_job()
    if job.first_due == job.due:
        raise Snooze(0.01)
    return job.attempt


def give_up() -> None:
    raise Fail("no use")


def who() -> dict[str, Any]:
    job = current_job()
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "attempt": job.attempt,
        "token": job.token,
        "worker": job.worker,
        "meta": dict(job.meta),
        "redelivered": job.redelivered,
        "cancelled": job.should_stop,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "main_thread": threading.current_thread() is threading.main_thread(),
    }


def say(lines: int) -> str:
    job = current_job()
    for i in range(lines):
        job.log(f"line {i}")
        job.progress((i + 1) / lines, f"step {i}")
    return "said"


async def say_async(lines: int) -> str:
    return say(lines)


# -- in their own time


def sleep(seconds: float) -> str:
    note("begun")
    time.sleep(seconds)
    return "slept"


async def sleep_async(seconds: float) -> str:
    note("begun")
    await asyncio.sleep(seconds)
    return "slept"


def held(name: str) -> str:
    note("begun")
    wait_for(name)
    note("ended")
    return "held"


async def held_async(name: str) -> str:
    note("begun")
    while not gate(name).exists():  # noqa: ASYNC110 - the test is another process
        await asyncio.sleep(0.003)
    return "held"


def tidy_up() -> None:
    note("begun")
    try:
        time.sleep(3600)
    finally:
        note("tidied", current_job().should_stop)


async def tidy_up_async() -> None:
    note("begun")
    try:
        await asyncio.sleep(3600)
    finally:
        note("tidied", current_job().should_stop)


def backtrack() -> None:
    re.match(r"(a*)*b", "a" * 40)


def raise_in_finally() -> None:
    try:
        time.sleep(3600)
    finally:
        raise LookupError("from the finally")


async def raise_in_finally_async() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        raise LookupError("from the finally")


def swallow() -> str:
    with suppress(bide.JobTimeout):
        time.sleep(3600)
    return "swallowed"


def say_and_wait(name: str) -> None:
    current_job().log("working")
    current_job().progress(0.5, "half way")
    note("begun")
    wait_for(name)


# -- around them


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def see_tenant(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


async def see_tenant_async(name: str) -> str:
    return see_tenant(name)


def told(job: CurrentJob, value: Any) -> None:
    note("told", job.id, repr(value))


async def told_async(job: CurrentJob, value: Any) -> None:
    await asyncio.sleep(0)
    note("told", job.id, repr(value))


def told_badly(job: CurrentJob, value: Any) -> None:
    raise LookupError("the callback's own")


def told_and_dies(job: CurrentJob, value: Any) -> None:
    note("told")
    os._exit(9)


class Around(Middleware):
    """Notes what it surrounds, of those that want it."""

    @contextmanager
    def running(self, job: CurrentJob) -> Iterator[None]:
        wanted = "around" in job.meta
        if wanted:
            note("before")
        yield
        if wanted:
            note("after")


if IN_CHILDREN:
    add_middleware(Around())
    if broken == "has threads and connections":
        threading.Thread(target=threading.Event().wait, name="ticker", daemon=True).start()
        listening = socket.create_server(("127.0.0.1", 0))
        connected = socket.create_connection(listening.getsockname())
    if broken == "limits sockets":
        socket.setdefaulttimeout(0.1)
    if broken == "has a process":
        note("has", subprocess.Popen(["sleep", "1000"]).pid)
elif broken == "says when it ends":
    atexit.register(print, "it ends")


def open_pool() -> Iterator[str]:
    note("open")
    while broken == "opens for ever" or gate("no pool").exists():
        time.sleep(0.003)
    if broken == "refused_resource":
        raise ConnectionError("nobody is there")
    if broken == "deadly_resource":
        os._exit(9)
    yield f"pool of {os.getpid()}"
    note("close")
    if broken == "closes for ever" and not gate("no more").exists():
        time.sleep(1000)


pools: Resource[str] = resource(open_pool) if IN_CHILDREN else Resource(open_pool)


def use_pool(pool: str = pools.injected) -> str:
    assert pool == f"pool of {os.getpid()}", "each child has its own"
    note("pool")
    return "used"


registering = Queue("unused", url="redis://127.0.0.1:1")


@registering.task(timeout=0.5, retry=Retry(1, backoff="fixed", base=0))
def brief() -> None:
    note("begun")
    time.sleep(3600)


# -- what processes share, and do not


parent = Queue("children", url=os.environ.get(URL, "redis://127.0.0.1:1"))
if URL in os.environ:
    parent.counts()  # a connection made before any child is


def enqueue_children(count: int) -> list[str]:
    return [parent.enqueue(add, i).id for i in range(count)]


def chance() -> list[Any]:
    note("chance")
    wait_for("chance")  # so that each runs in another child
    return [random.random(), new_id(), os.urandom(8).hex()]


def threads_and_loops() -> list[Any]:
    seen: list[Any] = []
    threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def more() -> int:
        return await asyncio.to_thread(lambda: 7)

    seen.append(asyncio.run(more()))
    ran = subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True)
    seen.append(ran.stdout.strip())
    return sorted(seen, key=str)


def fork_and_return() -> str:
    if pid := os.fork():
        os.waitpid(pid, 0)
        note("reaped")
    return "returned"


def keep_signals() -> None:
    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def read_input() -> str:
    return sys.stdin.read()


def command_lines() -> str:
    seen = [Path("/proc/self/cmdline"), Path(f"/proc/{os.getppid()}/cmdline")]
    return " ".join(path.read_text().replace("\0", " ") for path in seen)


def speak(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)
    logging.getLogger("app").warning("%s, logged", text)
    logging.getLogger("bide.app").debug("%s, in detail", text)


def grow(megabytes: int) -> int:
    grown.append(bytearray(b"x" * (megabytes << 20)))
    return os.getpid()


grown: list[bytearray] = []


def my_pid() -> int:
    note("ran")
    return os.getpid()
