"""What a job that fails at once costs, against one that ends well: a job behind a flood of failing
jobs waits as much longer as these cost more.

Counts and processor times are compared, because no busy machine changes what is counted, and it
changes processor times of both alike. The least time of a few rounds counts. The server's time is
too short to be compared alone: what it does is counted, by its commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
import redis

from bide import Queue, Retry
from tests.cost import flood_jobs
from tests.support.workers import burst

JOBS: Final = 2_000
MOST: Final = 2.0
ROUNDS: Final = 3
PATIENCE: Final = 20
"""Rounds at most, on a busy machine."""

NAME: Final = "tests.cost.flood_jobs:nothing"
"""The name of a task; arguments are not checked where jobs are made by it."""
LATER: Final = Retry(backoff=["1h"])


class Kind(NamedTuple):
    """Jobs that fail at once, and jobs that end well and have the same options."""

    prepare: Callable[[Queue, int], Any]
    good: Callable[[Queue, int], Any]
    is_malformed: bool = False


def _good(queue: Queue, n: int) -> Any:
    return queue.prepare(flood_jobs.nothing, (n,))


KINDS: Final = {
    "raise": Kind(lambda queue, n: queue.prepare(flood_jobs.fail, (n,)), _good),
    "retry": Kind(
        lambda queue, n: queue.prepare(flood_jobs.fail, (n,), retry=LATER),
        lambda queue, n: queue.prepare(flood_jobs.nothing, (n,), retry=LATER),
    ),
    "arguments": Kind(lambda queue, n: queue.prepare(NAME, ("no number",)), _good),
    "malformed": Kind(_good, _good, is_malformed=True),
}
"""Their attempt is the last, and raises; or is followed by another, an hour later; they have an
argument of the wrong type; or their body is no JSON."""


class Cost(NamedTuple):
    """What a flood costs."""

    scripts: int
    """That the server runs for the worker."""
    commands: int
    """The server runs them, most of them inside scripts."""
    cpu_ms: float
    """Processor time of this process, in which the worker runs, and of the server."""


def flood(
    queue: Queue, direct: redis.Redis, prepare: Callable[[Queue, int], Any], spoil: bool
) -> Cost:
    """Have a worker run a flood of jobs until nothing is due."""
    direct.flushall()
    for start in range(0, JOBS, 500):
        queue.enqueue_many([prepare(queue, n) for n in range(start, start + 500)])
    if spoil:
        ids: Any = direct.hkeys(queue.keys["jobs"])
        direct.hset(queue.keys["jobs"], mapping=dict.fromkeys(ids, b"{spoilt"))
    server = ~int(direct.info("server")["process_id"]) << 3 | 2  # its clock: clock_getcpuclockid
    direct.config_resetstat()
    cpu_s = time.process_time() + time.clock_gettime(server)
    burst(queue, modules=["tests.cost.flood_jobs"], concurrency=100)
    cpu_s = time.process_time() + time.clock_gettime(server) - cpu_s
    stats: Any = direct.info("commandstats")
    counts = queue.counts()
    assert counts.waiting + counts.active == 0
    commands = sum(each["calls"] for each in stats.values())
    return Cost(stats["cmdstat_evalsha"]["calls"], commands, cpu_s * 1e3)


@pytest.fixture
def queue(one_url: str) -> Any:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_job_costs_less_than_two_that_end_well(
    queue: Queue, direct: redis.Redis, kind: str
) -> None:
    made = KINDS[kind]
    goods: list[Cost] = []
    fails: list[Cost] = []
    for number in range(1, PATIENCE + 1):
        goods.append(flood(queue, direct, made.good, False))
        fails.append(flood(queue, direct, made.prepare, made.is_malformed))
        good = Cost(*map(min, zip(*goods, strict=True)))
        fail = Cost(*map(min, zip(*fails, strict=True)))
        ratios = [more / less for more, less in zip(fail, good, strict=True)]
        if number >= ROUNDS and max(ratios) < MOST:
            break
    for name, less, more, ratio in zip(Cost._fields, good, fail, ratios, strict=True):
        print(f"{name}: {more / JOBS:.4f} a job, {ratio:.2f} times {less / JOBS:.4f}")
    assert max(ratios) < MOST
