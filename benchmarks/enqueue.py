"""How many jobs a producer adds in a second, by the way it calls.

One process against an idle server; each call makes the id, encodes the body and reads the reply,
as users' calls do. The ways take turns, round after round. The floor of a way that makes one round
trip at a time is PING by the same client library: what a round trip costs with no bide in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import redis
import redis.asyncio

from benchmarks import tasks
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Report, Row, Rows, median, spread
from bide import AsyncQueue

CALLERS = 100
CHUNK = 500
DELAY = 3600

Way = Callable[[Lab, int], Row]


def run(lab: Lab) -> list[Report]:
    """Measure each way in turn, several times."""
    count = 2_000 if lab.quick else 5_000
    ways: dict[str, tuple[Way, int]] = {
        "enqueue, one by one": (_blocking, count),
        "  floor: PING, one by one": (_ping, count),
        "await enqueue, one by one": (_awaited, count),
        "  floor: await PING, one by one": (_ping_awaited, count),
        f"await enqueue, {CALLERS} callers in one loop": (_concurrent, 2 * count),
        f"enqueue_many, {CHUNK} a call": (_many, 10 * count),
    }
    rounds: dict[str, list[Row]] = {name: [] for name in ways}
    for _ in range(3 if lab.quick else 7):
        for name, (way, jobs) in ways.items():
            lab.empty()
            calls, usec = lab.scripts()
            row = way(lab, jobs)
            calls, usec = lab.scripts()[0] - calls, lab.scripts()[1] - usec
            if calls:
                row["server µs"] = usec / jobs
            rounds[name].append(row)
    rows: Rows = {name: median(r) | spread(r, "jobs/s") for name, r in rounds.items()}
    return [Report("Enqueueing delayed jobs", rows, "way", "PING: round trips for jobs")]


@contextmanager
def _timed(jobs: int) -> Iterator[Row]:
    """Fill in what the block took, once it has ended."""
    row: Row = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield row
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    row |= {"jobs/s": jobs / wall, "wall µs": wall * 1e6 / jobs, "CPU µs": cpu * 1e6 / jobs}


def _blocking(lab: Lab, jobs: int) -> Row:
    with closing(lab.queue()) as queue:
        queue.enqueue(tasks.nothing, delay=DELAY)  # connects
        with _timed(jobs) as row:
            for number in range(jobs):
                queue.enqueue(tasks.nothing, number, delay=DELAY)
    return row


def _ping(lab: Lab, jobs: int) -> Row:
    client: Any = redis.Redis.from_url(lab.server.url, protocol=2)
    with closing(client):
        client.ping()
        with _timed(jobs) as row:
            for _ in range(jobs):
                client.ping()
    return row


def _many(lab: Lab, jobs: int) -> Row:
    with closing(lab.queue()) as queue:
        queue.enqueue(tasks.nothing, delay=DELAY)
        with _timed(jobs) as row:
            for i in range(0, jobs, CHUNK):
                batch = range(i, i + CHUNK)
                queue.enqueue_many([queue.prepare(tasks.nothing, (n,), delay=DELAY) for n in batch])
    return row


def _awaited(lab: Lab, jobs: int) -> Row:
    return asyncio.run(_await_enqueues(lab, jobs, callers=1))


def _concurrent(lab: Lab, jobs: int) -> Row:
    return asyncio.run(_await_enqueues(lab, jobs, callers=CALLERS))


async def _await_enqueues(lab: Lab, jobs: int, callers: int) -> Row:
    queue = AsyncQueue(QUEUE, url=lab.server.url)

    async def call(count: int) -> None:
        for number in range(count):
            await queue.enqueue(tasks.nothing, number, delay=DELAY)

    await asyncio.gather(*(call(1) for _ in range(callers)))  # connects
    with _timed(jobs) as row:
        await asyncio.gather(*(call(jobs // callers) for _ in range(callers)))
    await queue.close()
    return row


def _ping_awaited(lab: Lab, jobs: int) -> Row:
    return asyncio.run(_await_pings(lab, jobs))


async def _await_pings(lab: Lab, jobs: int) -> Row:
    client: Any = redis.asyncio.Redis.from_url(lab.server.url, protocol=2)
    await client.ping()
    with _timed(jobs) as row:
        for _ in range(jobs):
            await client.ping()
    await client.aclose()
    return row
