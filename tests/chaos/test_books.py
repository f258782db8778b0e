"""The books find what they are to find: each wrong entry is called by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from bide.model.job import RunRecord
from bide.protocol.commands.enqueue import Prepared
from tests.chaos.books import Account, Books, Happened, Missed, in_order, missed_in, starvations
from tests.chaos.load import Asked, Given
from tests.support.cpu_waits import MACHINE, SERVER, Look
from tests.support.invariants import Holding
from tests.support.ledger import Line

T = 1_795_000_000_000_000
"""When the job is enqueued; it is due at once, claimed at 10 and ends at 20."""


def line(what: str, at: int, token: int = T + 10, id: str = "job", worker: str = "w1") -> Line:
    return Line(what, id, 1, token, T, f"{worker}.abc", 1, T + at, T + at)


def record(token: int = T + 10, attempt: int = 1) -> RunRecord:
    return RunRecord(token, "C", 5, attempt, 0, 0, False, token, "w1.abc", T, T, 0)


@dataclass
class World:
    """One job that has run, as everything should be."""

    lines: list[Line] = field(default_factory=lambda: [line("begun", 10), line("done", 20)])
    sets: dict[str, dict[str, int]] = field(
        default_factory=lambda: {"due:5": {}, "active": {}, "completed": {"job": T}, "failed": {}}
    )
    records: dict[str, RunRecord] = field(default_factory=lambda: {"job": record()})
    results: dict[str, bytes] = field(default_factory=lambda: {"job": b"%d" % (T + 10)})
    meta: dict[str, str] = field(default_factory=lambda: {"completed": "1"})
    happened: list[Happened] = field(default_factory=list)
    job: Given = field(default_factory=lambda: Given(Prepared("job", "+0", 5, b"")))

    def account(self, **delay: float) -> Account:
        hashes = {"jobs": {"job": b""}, "run": {}, "results": self.results, "notes": {}}
        holding = Holding(self.sets, {}, {}, hashes, self.records, self.meta)
        jobs = {"job": self.job}
        asked = {"job": Asked(T, T + 5)}
        return Books(jobs, asked, self.lines, holding, self.happened).account()


def rerun(worker: str = "w2", at: int = 30) -> list[Line]:
    """The job is begun, and begun and done again elsewhere."""
    token = T + at
    again = [line(what, at + i, token, worker=worker) for i, what in enumerate(("begun", "done"))]
    return [line("begun", 10), *again]


def test_a_job_that_ran_as_it_should_has_no_finding() -> None:
    account = World().account()
    assert account == Account(jobs=1)


WRONG: dict[str, Callable[[World], object]] = {
    "acknowledged, and is gone": lambda w: w.sets.update(completed={}),
    "is due, not completed": lambda w: w.sets.update({"completed": {}, "due:5": {"job": T}}),
    "is failed, not completed": lambda w: w.sets.update(completed={}, failed={"job": T}),
    "took 2 attempts, not 1": lambda w: w.records.update(job=record(attempt=2)),
    "no run of it came to its end": lambda w: w.lines.pop(),
    "so often that was: 2": lambda w: w.meta.update(completed="2"),
    "retries, where attempts say 0": lambda w: w.meta.update(retried="1"),
    "result of a run that did not end": lambda w: w.results.update(job=b"7"),
    "another run than the one that held it": lambda w: w.records.update(job=record(T + 99)),
    "ran twice under one token": lambda w: w.lines.append(line("begun", 15)),
    "has become less": lambda w: w.records.update(job=record(T + 9)),
    "0.0 ms early": lambda w: w.lines.insert(0, line("begun", -1, T + 1)),
}


@pytest.mark.parametrize("finding", WRONG)
def test_what_is_wrong_is_found(finding: str) -> None:
    world = World()
    WRONG[finding](world)
    assert finding in "\n".join(world.account().findings)


def test_a_job_that_began_before_its_delay_had_passed_is_early_whatever_the_server_says() -> None:
    world = World()
    world.job = world.job._replace(delay=0.001)
    account = world.account()
    assert account.early == 1
    assert account.findings == ["job began 1.0 ms early"]


def as_rerun(world: World) -> World:
    world.lines = rerun()
    world.records = {"job": record(T + 30)}
    world.results = {"job": b"%d" % (T + 30)}
    return world


@pytest.mark.parametrize(
    ("happened", "explains"),
    [
        (Happened(T + 15, T + 15, frozenset({"w1"})), True),
        (Happened(T + 15, T + 15), True),
        (Happened(T + 5, T + 12), True),
        (Happened(T + 15, T + 15, frozenset({"w2"})), False),
        (Happened(T + 15, T + 15, excuses=False), False),
        (Happened(T + 5, T + 9), False),
        (Happened(T + 31, T + 40), False),
    ],
)
def test_a_second_run_is_explained_by_a_fault_that_hit_the_first(
    happened: Happened, explains: bool
) -> None:
    world = as_rerun(World())
    world.happened = [happened]
    account = world.account()
    assert (account.explained, account.unexplained) == ((1, 0) if explains else (0, 1))
    assert bool(account.findings) is not explains


def test_one_fault_explains_one_run_of_a_job_and_no_more() -> None:
    world = as_rerun(World())
    first, *again = world.lines
    world.lines = [first, replace_token(first, 12), *again]
    world.happened = [Happened(T + 11, T + 25)]
    account = world.account()
    assert (account.explained, account.unexplained) == (1, 1)


def test_starvation_explains_what_no_fault_does_and_is_counted_apart() -> None:
    world = as_rerun(World())
    starved = Happened(T + 5, T + 25, frozenset({"w1"}), is_starvation=True)
    world.happened = [starved]
    account = world.account()
    assert (account.explained, account.starved, account.unexplained) == (1, 1, 0)
    assert account.recoveries == [], "the machine's time is no fault's"
    world.happened = [starved, Happened(T + 15, T + 15, frozenset({"w1"}))]
    assert (world.account().explained, world.account().starved) == (1, 0)
    world.happened = [starved._replace(workers=frozenset({"w2"}))]
    assert world.account().unexplained == 1


LEASE = 10e-6
"""Seconds: what a lease is in the world above."""


@pytest.mark.parametrize(
    ("waited_us", "explained"),
    [
        ({"w1": 5}, True),
        ({"w1": 4}, False),  # less than half a lease
        ({"w2": 9}, False),  # another worker
        ({"w1": 3, f"{SERVER} 7": 2}, True),  # and the server, which it waited for
        ({f"{SERVER} 7": 4}, False),
        ({MACHINE: 5}, True),
    ],
)
def test_a_lease_that_was_lost_is_explained_by_the_witness_or_found(
    waited_us: dict[str, int], explained: bool
) -> None:
    world = as_rerun(World())
    seen = dict.fromkeys(("w1", "w2"), 0)
    looks = [Look(T + 15, seen), Look(T + 25, seen | waited_us)]
    world.happened = starvations(looks, LEASE)
    account = world.account()
    assert (account.starved, account.unexplained) == ((1, 0) if explained else (0, 1))
    assert account.findings == (
        []
        if explained
        else ["job ran again in attempt 1, by w2.abc after w1.abc, and no fault explains it"]
    )


def test_what_the_witness_saw_at_another_time_explains_nothing() -> None:
    world = as_rerun(World())
    for at in (-30, 45):
        looks = [Look(T + at, {"w1": 0}), Look(T + at + 10, {"w1": 9})]
        world.happened = starvations(looks, LEASE)
        assert len(world.happened) == 1
        assert world.account().unexplained == 1


@pytest.mark.parametrize(
    ("worker", "at", "waited", "unexplained"),
    [("w1", 12, 2, 0), ("w1", 12, 1, 1), ("w2", 12, 2, 1), ("w1", -10, 2, 1)],
)
def test_a_renewal_that_failed_leaves_a_worker_less_time(
    worker: str, at: int, waited: int, unexplained: int
) -> None:
    world = as_rerun(World())
    looks = [Look(T + 15, {"w1": 0}), Look(T + 25, {"w1": waited})]
    world.happened = starvations(looks, LEASE, [Missed(worker, T + at)])
    assert world.account().unexplained == unexplained


def test_a_log_says_when_leases_were_not_renewed() -> None:
    log = (
        "2026-11-23 08:00:00.250+0000 INFO w1 serves chaos\n"
        "2026-11-23 08:00:00.500+0000 WARNING The leases of queue chaos could not be renewed: no\n"
        "2026-11-23 09:00:00.500+0100 WARNING The leases of queue chaos could not be renewed: no\n"
        "2026-11-23 08:00:01.500+0000 WARNING job a: The leases of queue q could not be renewed\n"
    )
    at_us = 1_795_420_800_500_000
    assert missed_in("w1", log) == [Missed("w1", at_us)] * 2


@pytest.mark.parametrize("is_starvation", [False, True])
def test_a_worker_that_stood_still_between_claim_and_run_begins_after_it(
    is_starvation: bool,
) -> None:
    """Claimed at 10; elsewhere claimed and run at 30; begun by the first at 40."""
    late = line("begun", 40, T + 10)
    world = as_rerun(World())
    world.lines = [*world.lines[1:], late]
    still = Happened(T + 11, T + 38, frozenset({"w1"}), is_starvation=is_starvation)
    for happened, unexplained in (
        (still, 0),
        (still._replace(from_us=T + 1, until_us=T + 9), 1),  # over before the claim
        (still._replace(from_us=T + 31), 1),  # it came when the other had begun
    ):
        world.happened = [happened]
        assert world.account().unexplained == unexplained


def replace_token(line: Line, at: int) -> Line:
    return line._replace(token=T + at, real_us=T + at)


def test_recovery_is_from_the_fault_to_the_end_of_what_it_held_up() -> None:
    world = as_rerun(World())
    world.happened = [Happened(T + 15, T + 25, frozenset({"w1"}))]
    assert world.account().recoveries == [16e-6]
    world.happened = [Happened(T + 15, T + 25)]
    assert world.account().recoveries == [6e-6]
    world.happened = [Happened(T + 50, T + 60)]
    assert world.account().recoveries == []


def test_what_runs_out_of_order_is_found() -> None:
    runs = [line("begun", at, id=id) for at, id in ((1, "a"), (2, "b"), (3, "c"))]
    assert list(in_order(runs)) == []
    assert len(list(in_order([runs[1], runs[0], runs[2]]))) == 1
    later = runs[0]._replace(due_us=T + 9)
    assert len(list(in_order([later, runs[1]]))) == 1


def test_a_world_is_not_shared() -> None:
    assert replace(World()).lines == World().lines
