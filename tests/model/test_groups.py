"""Groups in any order of what may happen to them, against a plain Python model.

Which jobs a claim takes, and in which order, is the model's list exactly; so is what the server
knows of each group: its priority, how many run at once, where its marker stands. The clock stands
still but for what the test moves it by. Suspects, leases that end and jobs that lapse are not of
this model: `tests/chaos/test_group_order.py` has those, without saying whose turn it is.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bide.client import blocking
from bide.model.job import Claimed
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SHARED_CLOCK
from tests.model.turns import BEGIN, Job, Model
from tests.support.probe import BODY, SECOND

NAMES = ("a", "b", "c")
LEASE = 10**10

_prefixes = itertools.count()


class Real:
    """The same queue on a server."""

    def __init__(self, client: blocking.Client, direct: Any) -> None:
        prefix = f"m{next(_prefixes)}"
        self.client = client
        self.direct = direct
        self.keys = keys_of("mail", prefix)
        self.clock = f"{prefix}:test_clock"
        self.held: dict[str, Claimed] = {}
        self.seq = 0

    def set_clock(self, now: int) -> None:
        self.direct.hset(self.clock, "held_us", now)

    def add(self, jobs: list[Job], now: int) -> None:
        self.client.run_many(
            [
                command
                for trip in enqueue_commands.enqueue_many(
                    self.keys, [_prepared(job, now) for job in jobs]
                )
                for command in trip
            ]
        )

    def claim(self, count: int) -> list[str]:
        self.seq += 1
        claim = self.client.run(worker_commands.claim(self.keys, "w", self.seq, count, LEASE, 1))
        self.held |= {job.id: job for job in claim.jobs}
        return [job.id for job in claim.jobs]

    def settle(self, id: str, outcome: Any, seconds: int) -> None:
        when = f"+{seconds * SECOND}" if outcome in ("retry", "snooze") else ""
        if outcome == "release begun":
            outcome, when = "release", "+0"
        job = self.held.pop(id)
        assert self.client.run(
            worker_commands.settle(self.keys, [Settle(id, job.token, outcome, when)])
        )

    def known(self) -> dict[str, tuple[int, ...]]:
        """What the server knows of each group."""
        found = {}
        for name, line in self.direct.hgetall(self.keys["groups"]).items():
            words = line.decode().split()
            found[name.decode()] = tuple(map(int, words[:7]))
        return found

    def resting(self) -> dict[str, int]:
        found = self.direct.zrange(self.keys["resting"], 0, -1, withscores=True)
        return {name.decode(): int(score) for name, score in found}

    def markers(self) -> list[str]:
        return [marker.decode() for marker in self.direct.zrange(self.keys["turns"], 0, -1)]


def _prepared(job: Job, now: int) -> Prepared:
    constraints = f"g={job.group}" if job.group else ""
    constraints += f" n={job.at_once}" if job.at_once and job.group else ""
    return Prepared(job.id, f"+{job.due - now}", job.priority, BODY, constraints=constraints)


def known(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        group.name: (
            *(group.priority, group.asked, group.set, int(group.paused), group.level, group.turn),
            *([group.free] if group.stores_rate else []),
        )
        for group in model.groups.values()
    }


def resting(model: Model) -> dict[str, int]:
    return {group.name: group.turn for group in model.groups.values() if group.rests()}


def markers(model: Model) -> list[str]:
    return sorted(
        f"{'abcdefghij'[g.level - 1]} {g.turn:017} {g.name}"
        for g in model.groups.values()
        if g.level
    )


def play(real: Real, model: Model, steps: list[tuple[str, Any]]) -> None:
    for verb, what in steps:
        if verb == "move":
            model.now += what
            real.set_clock(model.now)
        elif verb == "add":
            jobs = [
                Job(f"{next(model.ids):04}", name, model.now + delay * SECOND, priority, at_once)
                for name, delay, priority, at_once in what
            ]
            jobs = [job for job in jobs if bool(job.group) == bool(jobs[0].group)]
            real.add(jobs, model.now)
            model.add(jobs)
        elif verb == "claim":
            assert real.claim(what) == model.claim(what)
        elif verb == "settle":
            which, outcome, seconds = what
            if real.held:
                id = sorted(real.held)[which % len(real.held)]
                real.settle(id, outcome, seconds)
                model.settle(model.jobs[id], outcome, seconds)
        elif verb == "change":
            which, how, seconds = what
            if model.jobs:
                id = sorted(model.jobs)[which % len(model.jobs)]
                _change(real, id, how, seconds)
                model.move_job(model.jobs[id], how, seconds)
        else:
            name, value = what
            _arrange(real, name, verb, value)
            model.arrange(name, verb, value)
        assert real.known() == known(model), (verb, what)
        assert real.markers() == markers(model), (verb, what)
        assert real.resting() == resting(model), (verb, what)


def _change(real: Real, id: str, how: str, seconds: int) -> None:
    if how == "cancel":
        real.client.run(job_commands.cancel(real.keys, [id], False))
    elif how == "promote":
        real.client.run(job_commands.promote(real.keys, [id]))
    else:
        real.client.run(job_commands.reschedule(real.keys, [id], f"+{seconds * SECOND}"))


def _arrange(real: Real, name: str, verb: str, value: Any) -> None:
    if verb == "pause":
        command = queue_commands.configure(real.keys, name, paused=value)
    elif verb == "shared rate":
        rate = "none" if value is None else " ".join(map(str, value))
        command = job_commands.limit(real.keys, "keep", "keep", rate)
    elif verb == "concurrency":
        command = queue_commands.configure(real.keys, name, concurrency=value)
    else:
        rate = "none" if value is None else " ".join(map(str, value))
        command = queue_commands.configure(real.keys, name, rate=rate)
    real.client.run(command)


IN = st.sampled_from(NAMES)
JOBS = st.lists(
    st.tuples(
        st.sampled_from(("", *NAMES, *NAMES)),
        st.sampled_from((0, 0, 0, 1, 5)),
        st.sampled_from((5, 5, 5, 9, 0)),
        st.sampled_from((0, 0, 1, 2, 3)),
    ),
    min_size=1,
    max_size=5,
)
OUTCOMES = ("complete", "complete", "retry", "snooze", "release", "release begun", "fail")
RATES = (None, (1, 4 * SECOND, 1), (3, 10 * SECOND, 2), (7, SECOND // 10, 3))
STEP = st.one_of(
    *[st.tuples(st.just("add"), JOBS)] * 3,
    *[st.tuples(st.just("claim"), st.sampled_from((1, 1, 2, 3, 8)))] * 3,
    *[
        st.tuples(
            st.just("settle"),
            st.tuples(st.integers(0, 5), st.sampled_from(OUTCOMES), st.sampled_from((0, 1, 3))),
        )
    ]
    * 3,
    *[st.tuples(st.just("move"), st.sampled_from((1, SECOND // 3, SECOND, 5 * SECOND)))] * 2,
    st.tuples(
        st.just("change"),
        st.tuples(
            st.integers(0, 20),
            st.sampled_from(("cancel", "promote", "reschedule")),
            st.sampled_from((0, 2)),
        ),
    ),
    st.tuples(st.just("pause"), st.tuples(IN, st.booleans())),
    st.tuples(st.just("concurrency"), st.tuples(IN, st.sampled_from((0, 1, 2)))),
    st.tuples(st.just("rate"), st.tuples(IN, st.sampled_from(RATES))),
    st.tuples(st.just("shared rate"), st.tuples(st.just("all"), st.sampled_from(RATES))),
)

RATE_MADE_ITS_OWN = [
    ("shared rate", ("all", (3, 10 * SECOND, 2))),
    ("add", [("a", 0, 5, 0), ("a", 0, 5, 0)]),
    ("claim", 1),
    ("rate", ("a", (3, 10 * SECOND, 2))),
    ("settle", (0, "release", 0)),
]
"""A token taken under the rate of all groups does not come back to the group's own rate."""


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEP, min_size=12, max_size=40))
@example(steps=RATE_MADE_ITS_OWN)
def test_each_claim_takes_whose_turn_it_is(
    one_url: str, direct: redis.Redis, steps: list[tuple[str, Any]]
) -> None:
    client = blocking.Client(one_url, clock=SHARED_CLOCK)
    try:
        real, model = Real(client, direct), Model()
        real.set_clock(BEGIN)
        play(real, model, steps)
    finally:
        client.close()
