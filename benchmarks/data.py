"""How much data a delay queue takes and gives in a second, by the way it is asked.

One process against an idle server; what is pushed is a small dict. The floor is what the same costs
without leases, records and repeats: a sorted set of JSON texts by due time, ZADD to push, and a Lua
script of ZRANGEBYSCORE and ZREM to pop; a reply that is lost loses what it popped. Beside it stand
the functions' own: `enqueue_many`, and a worker process that runs coroutines which do nothing. All
take turns within each round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import redis

from benchmarks import tasks
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Report, Row, Rows, median, spread
from benchmarks.throughput import JOBS, drain
from bide import DelayQueue

PUSHED, TAKEN, KEY = 500, 100, "bare"
DATA = {"user": 1234, "action": "remind", "channel": "mail"}

POP = """
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #found > 0 then redis.call('ZREM', KEYS[1], unpack(found)) end
return found
"""

Way = Callable[[Lab, int], float]
"""Deals with so many items; seconds that it took."""


def run(lab: Lab) -> list[Report]:
    """Measure each way in turn, several times."""
    few, many = (1_000, 10_000) if lab.quick else (3_000, 20_000)
    ways: dict[str, tuple[Way, int]] = {
        "push, one by one": (lambda lab, n: _push(lab, n, 1), few),
        "  floor: ZADD": (lambda lab, n: _zadd(lab, n, 1), few),
        f"push_many, {PUSHED} a call": (lambda lab, n: _push(lab, n, PUSHED), many),
        f"  floor: ZADD, {PUSHED} a call": (lambda lab, n: _zadd(lab, n, PUSHED), many),
        f"  functions: enqueue_many, {PUSHED} a call": (_enqueue, many),
        "pop, one by one": (lambda lab, n: _pop(lab, n, 1), few),
        "  floor: bare pop": (lambda lab, n: _bare_pop(lab, n, 1), few),
        f"pop, {TAKEN} a call": (lambda lab, n: _pop(lab, n, TAKEN), many),
        f"  floor: bare pop, {TAKEN} a call": (lambda lab, n: _bare_pop(lab, n, TAKEN), many),
        f"take and ack, {TAKEN} a call": (_take, many),
        "  functions: a worker, 100 at once": (_work, JOBS),
    }
    rounds: dict[str, list[Row]] = {name: [] for name in ways}
    for _ in range(3 if lab.quick else 7):
        for name, (way, count) in ways.items():
            lab.empty()
            seconds = way(lab, count)
            rounds[name].append({"items/s": count / seconds, "wall µs": seconds * 1e6 / count})
    rows: Rows = {name: median(r) | spread(r, "items/s") for name, r in rounds.items()}
    return [Report("A delay queue of data", rows, "way", "medians over rounds")]


def _pile(lab: Lab) -> DelayQueue:
    return DelayQueue(QUEUE, url=lab.server.url)


def _push(lab: Lab, count: int, size: int) -> float:
    with closing(_pile(lab)) as pile:
        pile.push(DATA, delay=3600)  # connects
        began = time.perf_counter()
        for _ in range(0, count, size):
            if size == 1:
                pile.push(DATA, delay=3600)
            else:
                pile.push_many([DATA] * size, delay=3600)
        return time.perf_counter() - began


def _pop(lab: Lab, count: int, size: int) -> float:
    with closing(_pile(lab)) as pile:
        pile.push_many([DATA] * count)
        began = time.perf_counter()
        popped = 0
        while popped < count:
            popped += len(pile.pop(num=size))
        return time.perf_counter() - began


def _take(lab: Lab, count: int) -> float:
    with closing(_pile(lab)) as pile:
        pile.push_many([DATA] * count)
        began = time.perf_counter()
        taken = 0
        while taken < count:
            with pile.take(num=TAKEN) as items:
                taken += len(items)
                items.ack()
        return time.perf_counter() - began


def _zadd(lab: Lab, count: int, size: int) -> float:
    client: Any = redis.Redis.from_url(lab.server.url, protocol=2)
    with closing(client):
        client.ping()
        began = time.perf_counter()
        for i in range(0, count, size):
            due = time.time() + 3600
            client.zadd(KEY, {json.dumps(DATA | {"n": n}): due for n in range(i, i + size)})
        return time.perf_counter() - began


def _bare_pop(lab: Lab, count: int, size: int) -> float:
    client: Any = redis.Redis.from_url(lab.server.url, protocol=2)
    with closing(client):
        now = time.time()
        for i in range(0, count, PUSHED):
            client.zadd(KEY, {json.dumps(DATA | {"n": n}): now for n in range(i, i + PUSHED)})
        pop = client.register_script(POP)
        pop(keys=[KEY], args=[0, size])
        began = time.perf_counter()
        popped = 0
        while popped < count:
            popped += len([json.loads(one) for one in pop(keys=[KEY], args=[now, size])])
        return time.perf_counter() - began


def _enqueue(lab: Lab, count: int) -> float:
    with closing(lab.queue()) as queue:
        queue.enqueue(tasks.nothing, delay=3600)
        began = time.perf_counter()
        for i in range(0, count, PUSHED):
            jobs = [queue.prepare(tasks.nothing, (n,), delay=3600) for n in range(i, i + PUSHED)]
            queue.enqueue_many(jobs)
        return time.perf_counter() - began


def _work(lab: Lab, count: int) -> float:
    return count / drain(lab, "async", 100)["jobs/s"]
