"""Whatever is done with jobs of groups: one runs at a time, in due order, and nobody is starved.

What is drawn never depends on what came back. After each step all that is known of groups agrees
(`assert_legal`); after each claim no more of a group run than may, and what was taken had been due
for longer than anything of its group that was left. At the end all is worked off, a job at a time:
whoever waits, waits a turn of each other at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bide.model.job import Claimed
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.invariants import assert_legal
from tests.support.probe import BODY, LEASE, SECOND, Probe, open_executor

LIMITS = {"a": 1, "b": 1, "c": 2}
NAMES = (*LIMITS, "")
"""The groups; and what has none."""

TURNS = 2 * len(NAMES)
"""How often others may be served before one that waits: single jobs have every second turn."""

STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.integers(0, 20)),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.integers(0, 20)),
    st.tuples(st.just("claim"), st.sampled_from(("w1", "w2", "w3")), st.integers(1, 4)),
    st.tuples(st.just("claim"), st.sampled_from(("w1", "w2", "w3")), st.integers(1, 4)),
    st.tuples(
        st.just("settle"),
        st.sampled_from(("complete", "retry", "release", "crash", "snooze", "fail")),
        st.integers(0, 9),
    ),
    st.tuples(
        st.just("change"),
        st.sampled_from(("cancel", "promote", "reschedule", "delete", "retry")),
        st.integers(0, 30),
    ),
    st.tuples(st.just("pause"), st.sampled_from(tuple(LIMITS)), st.integers(0, 1)),
    st.tuples(st.just("purge"), st.just(""), st.just(0)),
    st.tuples(st.just("move"), st.just(""), st.sampled_from((1, 1, 3, 11))),
)


class World:
    """A queue, and what of it runs."""

    def __init__(self, q: Probe) -> None:
        self.q = q
        self.held: dict[str, Claimed] = {}
        self.group: dict[str, str] = {}
        self.paused: set[str] = set()

    def add(self, name: str, seconds: int) -> None:
        id = f"{len(self.group):03}-{name or 'single'}"
        constraints = f"g={name} n={LIMITS[name]}" if name else ""
        self.q.add_many(Prepared(id, f"+{seconds * SECOND}", 5, BODY, constraints=constraints))
        self.group[id] = name

    def claim(self, worker: str, count: int) -> list[Claimed]:
        claim = self.q.claim(worker, count)
        holding = self.q.holding()
        for job in claim.jobs:
            name = self.group[job.id]
            self.held[job.id] = job
            assert job.due_us <= claim.now_us
            assert name not in self.paused
            left = [at for id, at in holding.sets["due:grouped"].items() if self.group[id] == name]
            assert job.due_us <= min(left, default=job.due_us), f"{job.id} overtook another"
        running = [self.group[id] for id in holding.sets["active"]]
        assert all(running.count(name) <= most for name, most in LIMITS.items()), running
        return claim.jobs

    def settle(self, outcome: Any, which: int) -> None:
        if self.held:
            id = sorted(self.held)[which % len(self.held)]
            when = f"+{3 * SECOND}" if outcome in ("retry", "snooze") else ""
            self.q.settle(self.held.pop(id), outcome, when)

    def change(self, verb: str, which: int) -> None:
        if not self.group:
            return
        id = sorted(self.group)[which % len(self.group)]
        if verb == "reschedule":
            self.q.reschedule(id, f"+{7 * SECOND}")
        elif verb == "delete":
            self.q.run(job_commands.delete(self.q.keys, [id]))
        else:
            getattr(self.q, verb)(id)

    def pause(self, name: str, paused: int) -> None:
        self.q.run(queue_commands.configure(self.q.keys, name, paused=bool(paused)))
        (self.paused.add if paused else self.paused.discard)(name)

    def purge(self, _: str, __: int) -> None:
        self.q.run(job_commands.purge(self.q.keys, f"e{self.q.now}"))

    def move(self, _: str, seconds: int) -> None:
        self.q.move(seconds)

    def work_off(self) -> None:
        """All that is left, one job at a time."""
        for name in LIMITS:
            self.pause(name, 0)
        self.q.move(3 * LEASE)
        while self.q.holding().sets["active"]:  # leases that have ended
            self.q.claim("w", 1, busy=1)
            self.settle_all()
            self.q.move(LEASE + 1)
        waited: dict[str, int] = {}
        for _ in range(20 * len(self.group) + 50):
            due = self.q.holding().sets
            waits = {self.group[id] for p in ("5", "grouped") for id in due[f"due:{p}"]}
            if not waits and not due["due:alone"]:
                return
            jobs = self.claim("w", 1)
            self.settle_all()
            served = {self.group[job.id] for job in jobs}
            alone = any(job.reclaims >= 2 for job in jobs)  # a suspect has a turn of its own
            for name in waits - served:
                waited[name] = waited.get(name, 0) + (not alone and bool(jobs))
                assert waited[name] <= TURNS, f"{name or 'what has no group'} is starved"
            for name in served:
                waited[name] = 0
        raise AssertionError(f"left: {self.q.holding().due}")

    def settle_all(self) -> None:
        for job in self.held.values():
            self.q.settle(job, "complete")
        self.held.clear()


@pytest.fixture
def probe(one_url: str, direct: redis.Redis) -> Iterator[Probe]:
    executor = open_executor("sync", one_url)
    yield Probe(executor, direct)
    executor.end()


@settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=5, max_size=50))
def test_one_at_a_time_in_due_order_and_nobody_is_starved(
    probe: Probe, steps: list[tuple[str, str, int]]
) -> None:
    probe.raw.flushdb()
    probe._seq.clear()
    world = World(probe)
    for verb, what, number in steps:
        getattr(world, verb)(what, number)
        assert_legal(probe.raw, probe.queue)
    world.work_off()
    assert_legal(probe.raw, probe.queue)
