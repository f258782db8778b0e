"""A group of a million jobs, 100 small ones and 20,000 single jobs: who waits, and what it costs.

All are due at once. One worker claims 100 at a time and settles them before its next claim, so that
each group may have one of them. Times are the server's own, of the script alone.

    python -m benchmarks.groups [how many jobs the large group has]
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from typing import Any

import redis

from bide.client import blocking
from bide.embedded import Server
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of

KEYS = keys_of("mail")
BODY = encode_body(Body("app:task", (1,)))
LARGE, SMALL, EACH, SINGLES = 1_000_000, 100, 200, 20_000
CLAIM, CLAIMS, APART = 100, 350, 5_000
LEASE_US = 60_000_000


class Bench:
    """A server, and how long it took over each call."""

    def __init__(self, url: str) -> None:
        self.direct = redis.Redis.from_url(url)
        self.client = blocking.Client(url)
        self.seq = 0
        self.direct.config_set("slowlog-log-slower-than", 0)

    def add(self, name: str, count: int, groups: int = 1) -> float:
        """Jobs of a group, or of several; single ones where the name is empty; µs of each."""
        jobs = []
        for i in range(count):
            of = f"{name}{i % groups}" if groups > 1 else name
            constraints = f"g={of}" if name else ""
            jobs.append(
                Prepared(f"{of or 'single'}-{i:07}", "+0", 5, BODY, constraints=constraints)
            )
        before = self._busy_us()
        for calls in enqueue_commands.enqueue_many(KEYS, jobs):
            self.client.run_many(calls)
        return (self._busy_us() - before) / count

    def claim(self) -> tuple[list[Any], int]:
        """The jobs, and how many µs the script took."""
        self.seq += 1
        before = self._busy_us()
        jobs = self.client.run(worker_commands.claim(KEYS, "w", self.seq, CLAIM, LEASE_US, 0)).jobs
        return jobs, self._busy_us() - before

    def settle(self, jobs: list[Any]) -> int:
        """How many µs the script took."""
        settles = [Settle(job.id, job.token, "complete", "", b"") for job in jobs]
        before = self._busy_us()
        self.client.run(worker_commands.settle(KEYS, settles))
        return self._busy_us() - before

    def _busy_us(self) -> int:
        stats: Any = self.direct.info("commandstats")
        return int(stats.get("cmdstat_evalsha", {"usec": 0})["usec"])


def turns(bench: Bench, large: int) -> None:
    """Who has how many of the slots, and what a claim costs."""
    added = bench.add("large", large)
    bench.add("small", SMALL * EACH, SMALL)
    bench.add("", SINGLES)
    took, cost, settled = Counter[str](), [], []
    longest, since = Counter[str](), Counter[str]()
    for _ in range(CLAIMS):
        jobs, us = bench.claim()
        cost.append(us)
        for job in jobs:
            kind = job.id.partition("-")[0]
            took[kind] += 1
            since[kind] = 0
        for kind in ("large", "single", *(f"small{i}" for i in range(SMALL))):
            since[kind] += 1
            longest[kind] = max(longest[kind], since[kind] - 1)
        settled.append(bench.settle(jobs))
    groups = sum(took.values()) - took["single"]
    small = [took[f"small{i}"] for i in range(SMALL)]
    print(f"{large:,} jobs of one group, {SMALL} groups of {EACH}, {SINGLES:,} single jobs")
    print(
        f"{CLAIMS} claims of {CLAIM}: p50 {statistics.median(cost) / 1e3:.2f} ms, "
        f"max {max(cost) / 1e3:.2f} ms; settles p50 {statistics.median(settled) / 1e3:.2f} ms, "
        f"max {max(settled) / 1e3:.2f} ms"
    )
    print(
        f"the large group had {took['large']} of {groups} turns, "
        f"1 in {groups / took['large']:.1f}; "
        f"each small one {min(small)} to {max(small)}; single jobs had {took['single']}"
    )
    print(
        f"claims in a row without one of theirs, at most: large {longest['large']}, "
        f"small {max(longest[f'small{i}'] for i in range(SMALL))}, single {longest['single']}"
    )
    print(f"to enqueue a job of the large group: {added:.1f} µs of the server")


def apart(bench: Bench) -> None:
    """What a job costs the server, in a group of its own and in none."""
    for what, count in (("", 1), ("g", APART)):
        bench.direct.flushall()
        us = bench.add(what, APART, count)
        ran = 0
        while True:
            jobs, took = bench.claim()
            if not jobs:
                break
            ran += took + bench.settle(jobs)
        print(
            f"{'a job of a group' if what else 'a single job'}: {us:.1f} µs to enqueue, "
            f"{ran / APART:.1f} µs to claim and settle"
        )


def main() -> None:
    """Print all of it."""
    large = int(sys.argv[1]) if len(sys.argv) > 1 else LARGE
    with Server.start() as server:
        bench = Bench(server.url)
        apart(bench)
        bench.direct.flushall()
        turns(bench, large)


if __name__ == "__main__":
    main()
