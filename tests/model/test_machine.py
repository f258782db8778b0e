"""Every verb in any order, against the real scripts and a plain Python model of the protocol.

After each step the whole queue on the server is what the model says, every reply was the one the
model gives, and what needs no model holds: each job is in one set, has its body and its record, ran
not before it was due, ended once, and its tokens only grew; no key has no name.

The clock moves by what the test adds to it, and by the microseconds that the test takes; the model
is told the time that each reply names. What is drawn never depends on what came back, so a failure
can be repeated. `BIDE_MODEL=3000,100` runs 3,000 examples of 100 steps, and
`--hypothesis-profile=random` other examples each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bide.model.job import State
from bide.model.limits import Retention
from tests.model.driver import LEASE, Driver
from tests.model.server import Server

IDS = st.sampled_from([f"job-{c}" for c in "abcdef"])
WORKERS = st.sampled_from(["w1", "w2", "w3", "w4"])
WHENS = st.sampled_from(
    ["+0"] * 6 + ["+12000", "+1000000", "+4000000", "+25000000", "@-60", "@15", "@70"]
)
PRIORITIES = st.sampled_from([5, 5, 0, 9])
JOBS = st.lists(st.tuples(IDS, WHENS, PRIORITIES), min_size=1, max_size=4)
SOME_IDS = st.lists(IDS, min_size=1, max_size=3)
LEASES = st.sampled_from([LEASE, LEASE, 25_000_000])
OUTCOMES = st.sampled_from(
    [
        "complete",
        "complete",
        "retry",
        "fail",
        "snooze",
        "hold",
        "release",
        "cancel",
        "crash",
        "crash",
    ]
)
UNIQUE = st.sampled_from(["uk,f", "ur,f", "uk,s", "ur,s", "uk,20000000", "ur,20000000"])
PICKS = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5])
KEEPS = st.sampled_from([Retention(), Retention(16, 16, 16, 1), Retention(0, 16, 70, 2)])
"""To keep everything, or so little that jobs are removed within an example."""

RATES = st.sampled_from(["keep", "none", "none", "1 4000000 1", "3 10000000 2", "7 1000 2"])
SAID = st.lists(st.tuples(PICKS, st.sampled_from("LLP"), st.booleans()), min_size=1, max_size=4)


class Machine(RuleBasedStateMachine):
    server: Server

    @initialize(jobs=JOBS)
    def begin(self, jobs: list[tuple[str, str, int]]) -> None:
        self.queue = Driver(self.server)
        self.queue.enqueue(jobs)

    @rule(seconds=st.sampled_from([1, 1, 2, 4, 11, 16, 26, 31, 70, -1, -3, -12]))
    def time_passes(self, seconds: int) -> None:
        self.server.move(seconds)

    @rule(jobs=JOBS)
    def enqueue(self, jobs: list[tuple[str, str, int]]) -> None:
        self.queue.enqueue(jobs)

    @rule(jobs=JOBS, expires=st.sampled_from(["+1000000", "+4000000", "+25000000", "@15", "@70"]))
    def enqueue_to_expire(self, jobs: list[tuple[str, str, int]], expires: str) -> None:
        self.queue.enqueue(jobs, expires)

    @rule(jobs=JOBS, key=st.sampled_from("kl"), way=UNIQUE)
    def enqueue_unique(self, jobs: list[tuple[str, str, int]], key: str, way: str) -> None:
        self.queue.enqueue(jobs, unique=f"k={key} f={way}")

    @rule(worker=WORKERS, count=st.sampled_from([1, 2, 2, 5]), lease=LEASES)
    def claim(self, worker: str, count: int, lease: int) -> None:
        self.queue.claim(worker, count, lease)

    @rule(worker=WORKERS, count=st.sampled_from([0, 1, 3]), busy=st.sampled_from([1, 2]))
    def claim_while_busy(self, worker: str, count: int, busy: int) -> None:
        self.queue.claim(worker, count, busy=busy)

    @rule(
        worker=WORKERS,
        count=st.sampled_from([0, 1, 3]),
        jobs=st.lists(st.tuples(IDS, st.just("+15000"), PRIORITIES), min_size=1, max_size=3),
        expires=st.sampled_from(["", "", "", "+5000", "+1000000"]),
        window=st.sampled_from([16_000, 20_000, 60_000]),
        slots=st.sampled_from([1, 2, 5]),
        then=st.sampled_from(["", "cancel", "reschedule", "promote", "delete", "pause", "purge"]),
    )
    def claim_ahead(
        self,
        worker: str,
        count: int,
        jobs: list[tuple[str, str, int]],
        expires: str,
        window: int,
        slots: int,
        then: str,
    ) -> None:
        """A claim of what is due a moment later; and perhaps it is changed before that."""
        self.queue.enqueue(jobs, expires)
        self.queue.claim(worker, count, ahead=(window, slots))
        if then in ("pause", "purge"):
            self.govern(then, 500, "this")
        elif then:
            self.manage(then, [id for id, *_ in jobs], "+1000000", running=True)

    @rule(worker=WORKERS, count=st.sampled_from([1, 2]), arm=st.sampled_from([0, 1, 1]))
    def take(self, worker: str, count: int, arm: int) -> None:
        """A claim of one that goes when it has something."""
        self.queue.claim(worker, count, arm=arm)

    @rule(worker=WORKERS, count=st.sampled_from([1, 2, 5]), previous=st.sampled_from([0, 0, 3]))
    def pop(self, worker: str, count: int, previous: int) -> None:
        self.queue.pop(worker, count, previous)

    @rule(picks=st.lists(st.tuples(PICKS, OUTCOMES, WHENS, st.booleans()), min_size=1, max_size=3))
    def settle(self, picks: list[tuple[int, Any, str, bool]]) -> None:
        self.queue.settle(picks)

    @rule(worker=WORKERS, outcome=OUTCOMES, when=WHENS, asked=st.booleans())
    def work(self, worker: str, outcome: Any, when: str, asked: bool) -> None:
        """A worker runs a job, the most usual thing of all."""
        self.queue.claim(worker, 1)
        if asked:
            self.queue.cancel([self.queue.held(0)[0]])
        self.queue.settle([(0, outcome, when, True)])

    @rule(said=SAID, difference=st.sampled_from([0, 0, 0, -1]))
    def say(self, said: list[tuple[int, str, bool]], difference: int) -> None:
        self.queue.note(said, difference)

    @rule(worker=WORKERS, count=st.sampled_from([1, 1, 2]))
    def die(self, worker: str, count: int) -> None:
        """A worker takes something, and its leases end."""
        self.queue.claim(worker, count)
        self.server.move(11)
        self.queue.claim("w4", 0)

    @rule(picks=st.lists(PICKS, min_size=1, max_size=3, unique=True), lease=LEASES)
    def extend(self, picks: list[int], lease: int) -> None:
        self.queue.extend(picks, lease)

    @rule(
        what=st.sampled_from(["enqueue", "claim", "claim", "settle", "settle", "retry"]),
        worker=WORKERS,
        lease=LEASES,
    )
    def repeat(self, what: str, worker: str, lease: int) -> None:
        """A reply was lost, and the same call is sent again."""
        if what == "enqueue":
            self.queue.enqueue_again()
        elif what == "claim":
            self.queue.claim_again(worker, lease)
        elif what == "retry":
            self.queue.retry_again()
        else:
            self.queue.settle_again()

    @rule(
        what=st.sampled_from(["cancel", "cancel", "reschedule", "promote", "retry", "delete"]),
        ids=SOME_IDS,
        when=WHENS,
        running=st.booleans(),
        states=st.sampled_from([(*State,), (State.FAILED,), (State.COMPLETED, State.CANCELLED)]),
    )
    def manage(
        self,
        what: str,
        ids: list[str],
        when: str,
        running: bool,
        states: tuple[State, ...] = tuple(State),
    ) -> None:
        if what == "cancel":
            self.queue.cancel(ids, running)
        elif what == "reschedule":
            self.queue.reschedule(ids, when)
        elif what == "promote":
            self.queue.promote(ids)
        elif what == "retry":
            self.queue.retry(ids, when, states)
        else:
            self.queue.delete(ids[:1], states)

    @rule(id=IDS, seconds=st.sampled_from([2, 12, 30]))
    def watch(self, id: str, seconds: int) -> None:
        self.queue.watch(id, seconds)

    @rule(keep=KEEPS)
    def configure(self, keep: Retention) -> None:
        self.queue.configure(keep)

    @rule(rate=RATES, concurrency=st.sampled_from(["keep", "none", "none", "1", "2"]))
    def limit(self, rate: str, concurrency: str) -> None:
        self.queue.limit(rate, concurrency)

    @rule(
        what=st.sampled_from(["pause", "resume", "resume", "resume", "purge", "sweep", "sweep"]),
        limit=st.sampled_from([1, 2, 500]),
        name=st.sampled_from(["this", "that", "another", "a-fourth"]),
    )
    def govern(self, what: str, limit: int, name: str) -> None:
        if what == "pause":
            self.queue.pause()
        elif what == "resume":
            self.queue.resume()
        else:
            self.queue.purge(name if what == "purge" else None, limit)

    @rule(
        what=st.sampled_from(["leave", "late claim", "forged settle", "hear", "hear"]),
        worker=WORKERS,
        pick=PICKS,
        difference=st.sampled_from([-1, 1]),
        outcome=OUTCOMES,
    )
    def trouble(self, what: str, worker: str, pick: int, difference: int, outcome: Any) -> None:
        if what == "leave":
            self.queue.leave(worker)
        elif what == "late claim":
            self.queue.claim_late(worker)
        elif what == "forged settle":
            self.queue.settle_forged(pick, difference, outcome)
        else:
            self.queue.hear()

    @rule(
        ids=SOME_IDS,
        state=st.sampled_from(list(State)),
        start=st.integers(0, 3),
        count=st.integers(0, 4),
    )
    def look(self, ids: list[str], state: State, start: int, count: int) -> None:
        self.queue.fetch(ids)
        self.queue.counts()
        self.queue.listing(state, start, count)
        self.queue.upcoming(30 * start, count)

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        self.queue.compare()

    @invariant()
    def the_queue_is_legal(self) -> None:
        self.queue.check()


@pytest.fixture
def server(one_url: str) -> Iterator[Server]:
    server = Server(one_url)
    yield server
    server.close()


@pytest.mark.slow
def test_any_order_of_verbs_does_what_the_model_says(server: Server) -> None:
    examples, _, steps = os.environ.get("BIDE_MODEL", "").partition(",")
    machine: Any = type("Machine", (Machine,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(examples or 150),
            stateful_step_count=int(steps or 40),
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
        ),
    )
