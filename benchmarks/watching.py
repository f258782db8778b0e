"""What it is worth to watch for a reply rather than to sleep until it comes.

One producer that enqueues one by one, with and without watching, with the server on a processor of
its own, on the same one, and wherever the kernel puts them; and four threads of one.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis

from benchmarks import tasks
from benchmarks.child import answer, child
from benchmarks.lab import QUEUE, Lab
from benchmarks.peer import server_s
from benchmarks.places import Place, placed
from benchmarks.report import Report, Row
from benchmarks.rounds import in_turn, medians
from bide import Queue
from bide.client import blocking as connections

JOBS = 2_000
LONGEST_S = 60.0
QUICK_S, THOROUGH_S = 20, 60
WAYS: dict[str, tuple[Place, int]] = {
    "apart": ("apart", 1),
    "on one processor": ("together", 1),
    "anywhere": ("anywhere", 1),
    "anywhere, 4 threads": ("anywhere", 4),
}


def run(lab: Lab) -> list[Report]:
    """Each way in turn, watching and sleeping, several times."""
    rounds = in_turn(
        lab.seconds(QUICK_S, THOROUGH_S),
        {
            f"{name}, {how}": partial(_time, lab, place, threads, how)
            for name, (place, threads) in WAYS.items()
            for how in ("sleeping", "watching")
        },
    )
    note = "CPU µs: the producer's; server µs: the server's CPU"
    return [Report("Watching for replies", medians(rounds, "jobs/s"), "where", note)]


def _time(lab: Lab, place: Place, threads: int, how: str) -> Row:
    lab.empty()
    with child("benchmarks.watching.add", lab.server.url, place, threads, how) as producer:
        row: Row = answer(producer, LONGEST_S)
        return row


def add(url: str, place: Place, threads: str, how: str) -> None:
    """Enqueue jobs; tell what it took."""
    if how == "sleeping":
        connections.SHORT = -1  # type: ignore[misc]
    direct = redis.Redis.from_url(url, decode_responses=True)
    server = int(direct.info("server")["process_id"])
    queue = Queue(QUEUE, url=url)
    queue.enqueue(tasks.nothing)
    each = JOBS // int(threads)

    def enqueue(_: int) -> None:
        for number in range(each):
            queue.enqueue(tasks.nothing, number)

    with placed(place, server, os.getpid()), ThreadPoolExecutor(int(threads)) as pool:
        before = server_s(direct)
        began, cpu = time.perf_counter(), time.process_time()
        [*pool.map(enqueue, range(int(threads)))]
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        used = server_s(direct) - before
    row = {"jobs/s": JOBS / wall, "CPU µs": cpu * 1e6 / JOBS, "server µs": used * 1e6 / JOBS}
    print(json.dumps(row))
