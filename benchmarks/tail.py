"""How long scripts take at worst while a million jobs are due and a worker drains them.

Besides, a producer adds jobs one by one and many at once, and someone looks at the queue. The
server's SLOWLOG has the time of each call of each script.

The floor is a script that always does the same, called as often in the same run: how much longer
it takes than usual is what the machine adds, because the server waited for a processor.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing

from benchmarks import tasks
from benchmarks.child import worker
from benchmarks.filling import fill
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Aim, Report, Row, Rows
from benchmarks.stopwatch import Stopwatch
from bide import Queue
from bide.embedded import Server

DUE = 1_000_000
SECONDS = 40
QUICK_SECONDS = 8
MOST_MS = 5
EVERY_S = 0.01

_FLOOR = """
for _ = 1, 300 do redis.call('EXISTS', KEYS[1]) end
"""


def run(lab: Lab) -> list[Report]:
    """Fill, drain for a while, and read what the server has noted."""
    found: dict[str, list[int]] = defaultdict(list)
    with (
        Server.start(binary=lab.server.binary) as server,
        closing(Queue(QUEUE, url=server.url)) as queue,
    ):
        fill(server, DUE, -60_000_000, 1_000_000)
        with closing(Stopwatch(server)) as watch:
            floor = watch.know("floor: the same each time", _FLOOR)
            percentiles = _track(watch)
            queue.enqueue(tasks.nothing)
            watch.read()  # what filling took
            with worker(server.url):
                end = time.monotonic() + (QUICK_SECONDS if lab.quick else SECONDS)
                turn = 0
                while time.monotonic() < end:
                    began = time.monotonic()
                    turn += 1
                    floor(["nothing"])
                    queue.enqueue(tasks.nothing, turn)
                    if turn % 10 == 0:
                        _look(queue, turn)
                    if turn % 50 == 0:
                        _add(found, watch)
                    time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
                _add(found, watch)
            left = queue.counts().waiting
            rows: Rows = {name: _row(found[name]) for name in sorted(found)}
            if percentiles:
                rows["all of them, by INFO latencystats"] = _told(watch)
    aims = [
        Aim(f"p99.9 of {name}, {DUE:,} due, ms", rows[name]["p99.9"], at_most=MOST_MS)
        for name in ("claim", "settle", "enqueue")
    ]
    title = f"Time of scripts with {DUE:,} jobs due and a worker draining, ms"
    note = f"p99.9: of fewer than 1,000 calls the maximum; still due at the end: {left:,}"
    return [Report(title, rows, "script", note, aims)]


def _look(queue: Queue, turn: int) -> None:
    """What users and their screens do."""
    queue.enqueue_many([queue.prepare(tasks.nothing, (n,)) for n in range(250)])
    queue.counts()
    queue.jobs("waiting", start=turn, count=50)
    queue.upcoming(20)
    ids = [job.id for job in queue.jobs("completed", count=20)]
    queue.fetch_many(ids)


def _add(found: dict[str, list[int]], watch: Stopwatch) -> None:
    for name, times in watch.read().items():
        found[name] += times


def _track(watch: Stopwatch) -> bool:
    """Have the server keep percentiles of its own, if it can (Redis 7, Valkey)."""
    if not watch.client.config_get("latency-tracking-info-percentiles"):
        return False
    watch.client.config_set("latency-tracking-info-percentiles", "50 99 99.9")
    watch.client.config_resetstat()
    return True


def _told(watch: Stopwatch) -> Row:
    told = watch.client.info("latencystats")["latency_percentiles_usec_evalsha"]
    return {"p50": told["p50"] / 1e3, "p99": told["p99"] / 1e3, "p99.9": told["p99.9"] / 1e3}


def _row(times: list[int]) -> Row:
    ordered = sorted(times)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e3

    return {
        "p50": at(0.5),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "max": ordered[-1] / 1e3,
        "over 5 ms": sum(us > 1e3 * MOST_MS for us in ordered),
        "calls": len(ordered),
    }
