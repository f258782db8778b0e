"""Processes that a benchmark starts: workers, producers, and the floors that they are held against.

Every child ends with its parent, however that ends: it watches its standard input, a pipe of which
the parent holds the other end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import redis

from benchmarks import tasks
from benchmarks.lab import QUEUE, ROOT
from bide import Queue, Worker
from bide.cli import main as bide_command
from bide.client import aio

PATIENCE = 5.0


@contextmanager
def child(role: str, *args: object, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a role in a process of its own, which is ended afterwards.

    It is a function of this module, or named with another's: `benchmarks.growth.produce`.
    """
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if log is not None:
        environ[tasks.LOG] = str(log)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.child", role, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("BIDE_BENCH_VERBOSE") else subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environ,
    )
    try:
        yield process
    finally:
        close_pipe(process.stdin)  # at which it ends by itself
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        close_pipe(process.stdout)


@contextmanager
def worker(url: str, log: Path | None = None, concurrency: int = 100) -> Iterator[None]:
    """A worker as users start it, by the command line."""
    options = ("-u", url, "-q", QUEUE, "-c", concurrency)
    with child("bide", "worker", "benchmarks.tasks", *options, log=log):
        yield


def tell(process: subprocess.Popen[str], line: object) -> None:
    """Send a line to a child."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str], seconds: float) -> Any:
    """What a child prints, as JSON, when it has ended.

    Raises:
        RuntimeError: it failed, or took longer than `seconds`.
    """
    assert process.stdout is not None
    try:
        process.wait(seconds)  # what they print fits into the pipe
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a child did not end within {seconds:g} s") from None
    if process.returncode:
        raise RuntimeError("a child failed; set BIDE_BENCH_VERBOSE=1 to see why")
    return json.loads(process.stdout.read())


def close_pipe(pipe: IO[str] | None) -> None:
    """Close one end of a pipe, whatever the other end has done."""
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


# ----------------------------------------------------------------------------- inside the children


def drain(url: str, concurrency: str) -> None:
    """Run all that is due; tell what it took, from the first job on."""
    trips = 0
    attempt_many = aio.AsyncClient.attempt_many

    async def counted(self: aio.AsyncClient, commands: Any) -> list[Any]:
        nonlocal trips
        trips += 1
        return await attempt_many(self, commands)

    aio.AsyncClient.attempt_many = counted  # type: ignore[method-assign]
    queue = Queue(QUEUE, url=url)
    executed = Worker([queue], modules=[tasks.__name__], concurrency=int(concurrency)).run(True)
    told = {
        "executed": executed,
        "cpu_s": time.process_time() - tasks.cpu_at_start,
        "first_claim_us": tasks.first_claim_us,
        "trips": trips,
    }
    print(json.dumps(told))


def fleet(url: str, count: str) -> None:
    """Run several workers in one event loop."""

    async def run() -> None:
        queue = Queue(QUEUE, url=url)
        workers = [Worker([queue], modules=[tasks.__name__]) for _ in range(int(count))]
        await asyncio.gather(*(worker.arun() for worker in workers))

    asyncio.run(run())


def produce(url: str, start_ns: str, rate: str, count: str, delay_us: str) -> None:
    """Enqueue stamped jobs at an even rate from a moment on."""
    queue = Queue(QUEUE, url=url)
    queue.counts()  # connects
    for number in range(int(count)):
        at_ns = int(start_ns) + round(number * 1e9 / float(rate))
        time.sleep(max(0, at_ns - time.time_ns()) / 1e9)
        queue.enqueue(tasks.stamp, number, delay=f"{delay_us}us")
    print("{}")


def sleep(log: str) -> None:
    """The floor of a delayed job: sleep until each deadline that is told (ns), note the wake-up."""
    notes = tasks.Log(log)
    for number, line in enumerate(sys.stdin):
        due_ns = int(line)
        time.sleep(max(0, due_ns - time.time_ns()) / 1e9)
        notes.note(number, due_ns, time.time_ns())


def pop(url: str, key: str, log: str) -> None:
    """The floor of an immediate job: a blocking pop that another process's push ends."""
    notes = tasks.Log(log)
    client: Any = redis.Redis.from_url(url)
    while True:
        popped = client.blpop([key], timeout=5)
        at_ns = time.time_ns()
        if popped is not None:
            notes.note(0, int(popped[1]), at_ns)


def bide(*args: str) -> None:
    """The command line of bide."""
    sys.argv = ["bide", *args]
    bide_command()


def _end_with_parent() -> None:
    while os.read(0, 4096):  # returns when the other end is closed
        pass
    os._exit(0)


_READERS = ("sleep", "benchmarks.ahead.produce")
"""Roles that read their orders from there, until they end."""

_ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (bide, drain, fleet, produce, sleep, pop)
}

if __name__ == "__main__":
    if sys.argv[1] not in _READERS:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, name = sys.argv[1].rpartition(".")
    role = getattr(importlib.import_module(module), name) if module else _ROLES[name]
    role(*sys.argv[2:])
