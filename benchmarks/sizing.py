"""What a server and its workers need: memory by the size of a body, a fork's copies, connections.

    python -m benchmarks sizing --json docs/sizing.json

*Memory*: `used_memory` a job, enqueued as users do it, on every server that is here: delayed, and
completed and kept. *Fork*: what a rewrite of the append-only file copies of a million jobs, while
nothing else happens and while a producer and a worker are busy. *Connections*: those that the
server counts (CLIENT LIST) once a program waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier
from typing import Any

from benchmarks.child import child, worker
from benchmarks.filling import fill
from benchmarks.lab import QUEUE, Lab, binaries
from benchmarks.report import Report, Row, Rows
from bide import AsyncQueue, Queue, Worker
from bide.embedded import Server

BODIES = (100, 1_000, 10_000)
"""Bytes of a job's stored body: task, arguments and options."""

JOBS = 25_000
"""By which hash tables of 32,768 places are as full as they are on average."""

KEPT = 8_000
"""Fewer than a queue keeps of its completed jobs."""

HOUR_US = 3_600_000_000


async def take(data: str) -> None:
    """Do nothing with some data."""


def run(lab: Lab) -> list[Report]:
    """One after another; each server is measured alone."""
    return [_memory(lab), _fork(lab), _connections(lab)]


# -- memory


def _memory(lab: Lab) -> Report:
    rows: Rows = {}
    with ExitStack() as stack:
        servers = [lab.server]
        for binary in binaries(lab.chosen).values():
            if binary != lab.server.binary:
                servers.append(stack.enter_context(Server.start(binary=binary)))
        for server in servers:
            for size in BODIES:
                name = f"{server.flavour} {server.version}, body of {size:,} bytes"
                rows[name] = _job(Lab(server, lab.quick, None), size)
    note = "used_memory, a job: delayed; completed and kept"
    return Report(f"Memory per job by body, {JOBS:,} jobs", rows, "server", note)


def _job(lab: Lab, size: int) -> Row:
    with closing(lab.queue()) as queue:
        data = "x" * (size - len(queue.prepare(take, ("",)).body))
        delayed = _grown(lab, queue, data, JOBS, delay="1h")
        completed = _grown(lab, queue, data, KEPT, delay=0)
    return {"delayed": delayed, "completed": completed}


def _grown(lab: Lab, queue: Queue, data: str, jobs: int, delay: str | int) -> float:
    """Bytes of a job that is enqueued; and run, if it is due."""
    lab.empty()
    queue.enqueue_many([queue.prepare(take, (data,), delay=delay)])  # loads the scripts
    Worker(queue, modules=__name__).run(burst=True)
    lab.empty()
    empty = lab.memory()
    queue.enqueue_many(queue.prepare(take, (data,), delay=delay) for _ in range(jobs))
    if not delay:
        Worker(queue, modules=__name__).run(burst=True)
    return (lab.memory() - empty) / jobs


# -- fork


def _fork(lab: Lab) -> Report:
    jobs = 100_000 if lab.quick else 1_000_000
    rows: Rows = {}
    with Server.start(binary=lab.server.binary) as server:
        other = Lab(server, lab.quick, None)
        fill(server, jobs, HOUR_US, HOUR_US)
        other.client.config_set("appendonly", "yes")
        _wait_rewritten(other)
        rows["no calls meanwhile"] = _rewrite(other)
        with worker(server.url):
            other.wait_workers(1)
            with child(f"{__name__}.produce", server.url):
                other.wait_completed(1, 60)
                rows["a producer and a worker, busy"] = _rewrite(other)
    title = f"Rewrite of the append-only file, {jobs:,} delayed jobs"
    note = "copied: aof_last_cow_size; fork: latest_fork_usec; jobs/s: completed meanwhile"
    return Report(title, rows, "", note)


def _rewrite(lab: Lab) -> Row:
    used, done, start = lab.memory(), _completed(lab), time.monotonic()
    lab.client.bgrewriteaof()
    _wait_rewritten(lab)
    seconds = time.monotonic() - start
    info = lab.client.info()
    return {
        "used MB": used / 1e6,
        "copied MB": info["aof_last_cow_size"] / 1e6,
        "copied %": 100 * info["aof_last_cow_size"] / used,
        "fork ms": info["latest_fork_usec"] / 1e3,
        "seconds": seconds,
        "jobs/s": (_completed(lab) - done) / seconds,
    }


def _wait_rewritten(lab: Lab) -> None:
    busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    while any((info := lab.client.info("persistence"))[name] for name in busy):
        time.sleep(0.02)
    if info["aof_last_bgrewrite_status"] != "ok":
        raise RuntimeError("the server could not rewrite its append-only file")


def _completed(lab: Lab) -> int:
    return int(lab.client.hget(lab.keys["meta"], "completed") or 0)


def produce(url: str) -> None:
    """Enqueue until killed, one by one and due at once."""
    from benchmarks.tasks import nothing

    queue = Queue(QUEUE, url=url)
    while True:
        queue.enqueue(nothing, 0)


# -- connections


def _connections(lab: Lab) -> Report:
    url = lab.server.url
    rows: Rows = {}

    def started(name: str, *options: object, workers: int = 1) -> None:
        lab.empty()
        before = _connected(lab)
        with child("bide", "worker", "benchmarks.tasks", "-u", url, *options):
            rows[name] = {"connections": _steady(lab, workers) - before}
        _until(lambda: _connected(lab) == before)

    started("bide worker, one queue", "-q", QUEUE)
    started("bide worker, three queues", "-q", QUEUE, "-q", "two", "-q", "three")
    started("bide worker -x process -c 4, one queue", "-q", QUEUE, "-x", "process", "-c", 4)
    started("bide worker -w 4, one queue", "-q", QUEUE, "-w", 4, workers=4)
    before = _connected(lab)
    with closing(Queue(QUEUE, url=url)) as queue:
        queue.counts()
        rows["Queue, one thread"] = {"connections": _connected(lab) - before}
    with closing(Queue(QUEUE, url=url)) as queue, ThreadPoolExecutor(8) as threads:
        together = Barrier(8)
        list(threads.map(lambda _: [together.wait(), queue.counts()], range(64)))
        rows["Queue, eight threads"] = {"connections": _connected(lab) - before}
    asyncio.run(_awaited(lab, rows, before))
    return Report("Connections to the server", rows, "program", "of CLIENT LIST, once it waits")


async def _awaited(lab: Lab, rows: Rows, before: int) -> None:
    queue = AsyncQueue(QUEUE, url=lab.server.url)
    await asyncio.gather(*(queue.enqueue("benchmarks.tasks:nothing") for _ in range(100)))
    rows["AsyncQueue, 100 enqueues at once"] = {"connections": _connected(lab) - before}
    await asyncio.gather(*(queue.counts() for _ in range(100)))
    rows["AsyncQueue, 100 other calls at once"] = {"connections": _connected(lab) - before}
    await queue.close()


def _connected(lab: Lab) -> int:
    told: Any = lab.client.client_list()
    return len(told)


def _steady(lab: Lab, workers: int) -> int:
    """The connections once workers have come and their number has not changed for two seconds."""
    lab.wait_workers(workers, 60)
    seen, since = _connected(lab), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        if (now := _connected(lab)) != seen:
            seen, since = now, time.monotonic()
    return seen


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
