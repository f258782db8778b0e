"""Limits hold whatever happens: in any order of calls, and while workers are killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bide import Queue
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.probe import SECOND, Probe, open_executor
from tests.support.server_state import end_leases
from tests.support.worker_pool import JOBS, WorkerPool

pytestmark = pytest.mark.slow

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("claim"), st.integers(0, 6)),
        st.tuples(st.just("move"), st.sampled_from([0.1, 0.3, 0.5, 1, 2.5, 4])),
        st.tuples(
            st.just("end"),
            st.sampled_from(["complete", "retry", "release", "begun", "snooze", "missing", "die"]),
        ),
    ),
    max_size=60,
)
RATES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
MOST = st.sampled_from([None, 1, 2, 3])
ERROR = b'{"type":"E","message":"no"}'
UNBEGUN = ("release", "missing")


def assert_within(begun: Sequence[int], count: int, period_us: int, burst: int) -> None:
    """From any start to any later one there are no more than the burst and what came in between."""
    ordered = sorted(begun)
    for i, first in enumerate(ordered):
        for n, at in enumerate(ordered[i:], start=1):
            if n > burst:
                assert (n - burst) * period_us <= (at - first) * count, (ordered, n)


def test_no_window_of_the_rate_is_ever_exceeded_and_nothing_is_starved(
    one_url: str, direct: redis.Redis
) -> None:
    executor = open_executor("sync", one_url)

    @settings(
        max_examples=120,
        suppress_health_check=list(HealthCheck),
    )
    @given(rate=RATES, most=MOST, steps=STEPS)
    def holds(rate: tuple[int, int, int], most: int | None, steps: list[tuple[str, Any]]) -> None:
        direct.flushdb()
        _live(Probe(executor, direct), rate, most, steps)

    try:
        holds()
    finally:
        executor.end()


def _live(
    q: Probe, rate: tuple[int, int, int], most: int | None, steps: list[tuple[str, Any]]
) -> None:
    count, seconds, burst = rate
    q.limit(rate=f"{count}/{seconds}s", burst=burst, concurrency=most)
    begun: dict[tuple[str, int], int] = {}
    held: list[Any] = []
    added = 0

    def claim(n: int) -> int:
        claim = q.claim(f"w{n % 3}", n or 1, lease=5)
        for job in claim.jobs:
            begun[job.id, job.token] = claim.now_us
            held.append(job)
        assert most is None or q.raw.zcard(q.keys["active"]) <= most
        return claim.deadline_us - claim.now_us if claim.deadline_us else 0

    def end(how: str) -> None:
        job = held.pop(0)
        if how == "die":  # and its lease will end
            return
        outcome: Any = {"begun": "release", "missing": "snooze"}.get(how, how)
        when = "+0" if how in ("begun", "retry", "snooze", "missing") else ""
        data = ERROR if how in ("missing", "retry") else b""
        (verdict,) = q.settle_many(Settle(job.id, job.token, outcome, when, data))
        if verdict == "ok" and how in UNBEGUN:
            del begun[job.id, job.token]

    for what, value in steps:
        if what == "add":
            q.add(*(f"job-{added + i}" for i in range(value)))
            added += value
        elif what == "claim":
            claim(value)
        elif what == "move":
            q.move(value)
        elif held:
            end(value)
    for _ in range(400):  # from now on all goes well
        if q.raw.zcard(q.keys["completed"]) + q.raw.zcard(q.keys["failed"]) == added:
            break
        ahead = claim(5)
        while held:
            end("complete")
        q.move(min(ahead, 5 * SECOND) / SECOND)
    assert q.raw.zcard(q.keys["completed"]) + q.raw.zcard(q.keys["failed"]) == added, "starved"
    assert_within([*begun.values()], count, seconds * SECOND, burst)


def test_killed_workers_break_no_limit_and_hold_up_nothing(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    queue.configure(rate="40/s", burst=3, concurrency=3)
    options = ("-q", "mail", "--lease", "10m", "-c", "4")
    held = [queue.enqueue(f"{JOBS}:held", "gate", priority=9) for _ in range(3)]
    doomed = worker_pool.worker(one_url, *options)
    worker_pool.ledger.wait("begun", 3)
    worker_pool.workers_at_work(2, one_url, *options)
    rest = [queue.enqueue(f"{JOBS}:quick") for _ in range(40)]
    rest += [queue.enqueue(f"{JOBS}:fails_until", 2, retry=3) for _ in range(3)]
    assert len(worker_pool.ledger.lines("begun")) == 3
    doomed.kill()
    end_leases(direct, keys_of("mail"))
    worker_pool.ledger.wait("begun", 6)
    assert {line.id for line in worker_pool.ledger.lines("begun")} == {job.id for job in held}
    worker_pool.open_gate("gate")
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 3 + len(rest))
    queue.close()
    lines = worker_pool.ledger.lines()
    assert_within([line.token for line in lines if line.what == "begun"], 40, SECOND, 3)
    running: set[str] = set()
    for line in lines:  # one that begins again, its worker was killed
        (running.add if line.what == "begun" else running.discard)(line.id)
        assert len(running) <= 3
