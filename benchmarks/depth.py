"""What enqueue, claim and settle cost with 10,000, a million and ten million delayed jobs.

Each size has a server of its own; all stand side by side and take turns within every round, so
that what else the machine does falls on all. What is added is due anywhere among what is there,
each time elsewhere, which is the worst that can be for the processor's caches; or, as with a delay
that all have, where the last was. What is claimed is due now, before all of it.

The floors are scripts that add members and fields to the same keys, anywhere, and take them off
again: what a sorted set and a hash of that size cost the server, with no bide in it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks import tasks
from benchmarks.filling import check, fill
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Aim, Report, Row, Rows, percentiles
from benchmarks.stopwatch import Stopwatch
from bide import Queue
from bide.client import blocking
from bide.embedded import Server
from bide.model.job import Claimed
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of

SIZES = (10_000, 1_000_000, 10_000_000)
NAMED = {10_000: "10 k", 1_000_000: "1 M", 10_000_000: "10 M"}
SPAN_S = 86_400
BEGIN_S = 3_600
CALLS = 50
"""Calls of each kind per round, one after another; of those that carry many jobs, `BATCHES`."""
BATCH = 100
BATCHES = 5
MOST = 1.5
"""How much more a large queue may cost."""

_FLOOR = """
for i = 1, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('HSET', KEYS[2], ARGV[i + 1], '{"task":"benchmarks.tasks:nothing","args":[0]}')
end
for i = 1, #ARGV, 2 do
  redis.call('ZREM', KEYS[1], ARGV[i + 1])
  redis.call('HDEL', KEYS[2], ARGV[i + 1])
end
"""

Samples = dict[str, list[float]]
"""What was done -> microseconds of each time."""


class Place:
    """One server with a queue of one size."""

    def __init__(self, server: Server, size: int) -> None:
        self.size = size
        fill(server, size, BEGIN_S * 1_000_000, SPAN_S * 1_000_000)
        self._keys = keys_of(QUEUE)
        self._queue = Queue(QUEUE, url=server.url)
        self._client = blocking.Client(server.url)
        self._watch = Stopwatch(server)
        self._floor = self._watch.know("floor", _FLOOR)
        self._seq = 0
        self.server_us: list[Samples] = []
        """One of each round; of calls that carry many jobs, per job."""
        self.wall_us: list[Samples] = []

    def close(self) -> None:
        """Close all connections."""
        self._queue.close()
        self._client.close()
        self._watch.close()

    def round(self) -> None:
        """Do each thing some times."""
        self.server_us.append(defaultdict(list))
        self.wall_us.append(defaultdict(list))
        for how, times, count in (("one", CALLS, 1), (f"{BATCH} a call", BATCHES, BATCH)):
            ways = {
                f"floor: add and remove, {how}": ("floor", partial(self._touch, count)),
                f"enqueue anywhere, {how}": ("enqueue", partial(self._enqueue, count, _anywhere)),
                f"enqueue, one delay, {how}": ("enqueue", partial(self._enqueue, count, _same)),
            }
            for what, (script, do) in ways.items():
                self._time(what, script, times, do)
            for _ in range(times):
                self._enqueue(count, _now)
            self._consume(how, times, count)

    def _time(self, what: str, script: str, times: int, do: Callable[[], int]) -> None:
        """Time calls that carry as many jobs as they return."""
        self._watch.read()
        wall = self.wall_us[-1][what]
        jobs = 1
        for _ in range(times):
            began = time.perf_counter_ns()
            jobs = do()
            wall.append((time.perf_counter_ns() - began) / 1e3 / jobs)
        self.server_us[-1][what] += [us / jobs for us in self._watch.read()[script]]

    def _consume(self, how: str, times: int, count: int) -> None:
        """Claim and settle in turn."""
        held: list[Claimed] = []

        def claim() -> int:
            self._seq += 1
            command = worker_commands.claim(self._keys, "bench", self._seq, count, 60_000_000, 0)
            held[:] = self._client.run(command).jobs
            if len(held) != count:
                raise RuntimeError(f"a claim for {count} brought {len(held)} jobs")
            return count

        def settle() -> int:
            done = [Settle(job.id, job.token, "complete") for job in held]
            self._client.run(worker_commands.settle(self._keys, done))
            return count

        for _ in range(times):
            self._time(f"claim, {how}", "claim", 1, claim)
            self._time(f"settle, {how}", "settle", 1, settle)

    def _touch(self, count: int) -> int:
        now = time.time_ns() // 1000
        ats = [now + round(_anywhere() * 1e6) for _ in range(count)]
        members = [part for i, at in enumerate(ats) for part in (at, f"{at:016d}{i:04d}")]
        self._floor([self._keys.names["due"][4], self._keys["jobs"]], members)
        return count

    def _enqueue(self, count: int, delay: Callable[[], float]) -> int:
        """As users do: one by one, or many in one call."""
        if count == 1:
            self._queue.enqueue(tasks.nothing, 0, delay=delay())
        else:
            prepare = self._queue.prepare
            jobs = [prepare(tasks.nothing, (0,), delay=delay()) for _ in range(count)]
            self._queue.enqueue_many(jobs)
        return count


def _anywhere() -> float:
    return BEGIN_S + random.random() * SPAN_S


def _same() -> float:
    return BEGIN_S + SPAN_S / 2


def _now() -> float:
    return 0


def run(lab: Lab) -> list[Report]:
    """Fill all, then round after round."""
    binary = lab.server.binary
    check(binary)
    with ExitStack() as stack:
        places: list[Place] = []
        for size in SIZES[:2] if lab.quick else SIZES:
            place = Place(stack.enter_context(Server.start(binary=binary)), size)
            stack.callback(place.close)
            place.round()  # what is done first pays for connecting and for cold memory
            place.server_us.clear()
            place.wall_us.clear()
            places.append(place)
        for _ in range(10 if lab.quick else 40):
            for place in places:
                place.round()
    rows: Rows = {}
    aims: list[Aim] = []
    for what in places[0].server_us[0]:
        for place in places:
            rows[f"{what}: {NAMED[place.size]}"] = row = _row(place, places[0], what)
            if place is not places[0] and not what.startswith("floor"):
                told = f"server µs of {what}, {NAMED[place.size]} delayed, × {NAMED[SIZES[0]]}"
                aims.append(Aim(told, row["server ×"], at_most=MOST))
    note = (
        "µs per job: the median over rounds of a round's mean; ×: what the same costs beside "
        f"{SIZES[0]:,}, the median over rounds"
    )
    title = "Cost by the number of delayed jobs in the queue"
    return [Report(title, rows, "what: with how many", note, aims)]


def _row(place: Place, least: Place, what: str) -> Row:
    row: Row = {}
    for name, here, there in (
        ("server", place.server_us, least.server_us),
        ("wall", place.wall_us, least.wall_us),
    ):
        means = [statistics.mean(samples[what]) for samples in here]
        base = [statistics.mean(samples[what]) for samples in there]
        row[f"{name} µs"] = statistics.median(means)
        row[f"{name} p99"] = percentiles(us for samples in here for us in samples[what])["p99"]
        row[f"{name} ×"] = statistics.median(a / b for a, b in zip(means, base, strict=True))
    return row
