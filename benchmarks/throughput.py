"""How many jobs that do nothing one worker process gets through in a second.

20,000 jobs are there before the worker starts, so that the producer costs it nothing. All that a
job is promised is on: leases, fencing tokens, the claim's record, retention. The time runs, on the
server's clock, from the claim that took the first job to the settle that ended the last; starting
and stopping the process are left out. CPU time is the worker process's own, over the same stretch.

The floor is the same number of coroutines that do nothing, a hundred at a time as tasks of one
event loop, without queue or server: what the machine's Python makes of it at that moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from benchmarks import tasks
from benchmarks.child import answer, child
from benchmarks.lab import Lab
from benchmarks.report import Report, Row, Rows, median, spread
from bide import Queue

JOBS = 20_000
CHUNK = 500
KINDS = {"async": tasks.nothing, "threads": tasks.nothing_in_thread}


def run(lab: Lab) -> list[Report]:
    """Drain the queue with each kind and concurrency in turn, several times over."""
    levels = (100,) if lab.quick else (1, 10, 100, 500)
    variants = [(kind, level) for kind in KINDS for level in levels]
    rounds: dict[str, list[Row]] = {f"{kind}, {level} at once": [] for kind, level in variants}
    floors: list[Row] = []
    for _ in range(3 if lab.quick else 7):
        floors.append(_floor())
        for name, (kind, level) in zip(rounds, variants, strict=True):
            rounds[name].append(drain(lab, kind, level))
    rows: Rows = {
        name: median(measured) | spread(measured, "jobs/s") for name, measured in rounds.items()
    }
    rows["floor: bare tasks"] = median(floors) | spread(floors, "jobs/s")
    return [
        Report(
            f"Throughput of one worker process, {JOBS:,} jobs that do nothing",
            rows,
            "kind",
            "medians over rounds; server µs: EVALSHA, by commandstats; CPU µs: the worker process",
        )
    ]


def drain(
    lab: Lab,
    kind: str,
    concurrency: int,
    meanwhile: Callable[[Queue], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> Row:
    """Fill the queue, and have one worker empty it; `meanwhile` is open while it does."""
    lab.empty()
    queue = lab.queue()
    jobs = [queue.prepare(KINDS[kind], (n,)) for n in range(JOBS - 1)]
    queue.enqueue(tasks.begin)
    for i in range(0, len(jobs), CHUNK):
        queue.enqueue_many(jobs[i : i + CHUNK])
    calls, usec = lab.scripts()
    with meanwhile(queue), child("drain", lab.server.url, concurrency) as process:
        told = answer(process, 120)
    queue.close()
    calls, usec = lab.scripts()[0] - calls, lab.scripts()[1] - usec
    if told["executed"] != JOBS:
        raise RuntimeError(f"the worker ran {told['executed']} of {JOBS} jobs")
    seconds = (lab.last_finish_us() - told["first_claim_us"]) / 1e6
    return {
        "jobs/s": JOBS / seconds,
        "wall µs": seconds * 1e6 / JOBS,
        "server µs": usec / JOBS,
        "CPU µs": told["cpu_s"] * 1e6 / JOBS,
        "round trips": told["trips"] / JOBS,
        "scripts": calls / JOBS,
    }


def _floor() -> Row:
    async def batches() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(JOBS // 100):
            await asyncio.wait([loop.create_task(tasks.nothing()) for _ in range(100)])
        return time.perf_counter() - wall, time.process_time() - cpu

    wall, cpu = asyncio.run(batches())
    return {"jobs/s": JOBS / wall, "wall µs": wall * 1e6 / JOBS, "CPU µs": cpu * 1e6 / JOBS}
