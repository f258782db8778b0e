"""Finished jobs are kept up to a count and an age, and removed whole, in bounded pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from tests.support.probe import BODY, Probe

SPARE = 15
"""Seconds for which a job that has finished is kept in any case."""

YEAR = 365 * 86_400

Finish = Callable[..., None]


def keep(q: Probe, state: str, count: int, age: float) -> None:
    """Have the queue keep so many jobs, those of one state for so long, all others for years."""
    q.configure(**{"completed": YEAR, "failed": YEAR, "cancelled": YEAR, state: age}, count=count)


@pytest.fixture(params=["completed", "failed", "cancelled"])
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def finish(q: Probe, state: str) -> Finish:
    """Bring jobs to the state, in one call, keeping so many for so long."""

    def finish(*ids: str, count: int = 10_000, age: float = YEAR) -> None:
        q.add(*ids)
        if state == "cancelled":
            keep(q, state, count, age)
            assert q.cancel(*ids) == ["ok"] * len(ids)
            return
        outcome: Outcome = "complete" if state == "completed" else "fail"
        data = b"1" if state == "completed" else b'{"type":"E","message":""}'
        jobs = q.claim("w1", len(ids)).jobs  # before, because a claim sees to retention, too
        keep(q, state, count, age)
        settles = [Settle(job.id, job.token, outcome, "", data) for job in jobs]
        assert q.settle_many(*settles) == ["ok"] * len(ids)

    return finish


def kept(q: Probe, state: str) -> list[str]:
    return list(q.zset(state))


def test_those_over_the_count_are_removed_oldest_first(
    q: Probe, state: str, finish: Finish
) -> None:
    for id in "abcd":
        finish(id)
        q.move(1)
    q.move(SPARE)
    finish("e", count=3)
    assert kept(q, state) == ["c", "d", "e"]


def test_those_over_the_age_are_removed(q: Probe, state: str, finish: Finish) -> None:
    finish("old")
    q.move(60)
    finish("young")
    q.move(50)
    finish("new", age=100)
    assert kept(q, state) == ["young", "new"]


def test_every_trace_is_removed(q: Probe, state: str, finish: Finish) -> None:
    finish("a")
    q.move(SPARE + 1)
    finish("b", count=1)
    holding = q.holding()
    assert {id for hash in holding.hashes.values() for id in hash} == {"b"}
    assert holding.ids == {"b"}
    assert q.add("a")[0].created, "its id is free again"


@pytest.mark.parametrize(("count", "age"), [(0, YEAR), (10_000, 0), (0, 0)])
def test_what_finished_in_the_last_fifteen_seconds_is_spared(
    q: Probe, state: str, finish: Finish, count: int, age: float
) -> None:
    """Whoever repeats a call for ten seconds must find the record that makes it harmless."""
    finish("a")
    q.move(SPARE - 1)
    finish("b", count=count, age=age)
    assert kept(q, state) == ["a", "b"]
    q.move(1)
    finish("c", count=count, age=age)
    assert kept(q, state) == ["b", "c"]


def test_within_count_and_age_nothing_is_removed(q: Probe, state: str, finish: Finish) -> None:
    finish("a", "b", "c")
    q.move(1000)
    finish("d", count=4, age=1001)
    assert kept(q, state) == ["a", "b", "c", "d"]


def test_a_call_removes_a_bounded_number_and_the_next_ones_the_rest(
    q: Probe, state: str, finish: Finish
) -> None:
    ids = [f"j{i:03}" for i in range(200)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    if state == "cancelled":
        q.cancel(*ids[:100])
        q.cancel(*ids[100:])
    else:
        outcome: Outcome = "complete" if state == "completed" else "fail"
        q.settle_many(*(Settle(j.id, j.token, outcome) for j in q.claim("w1", 200).jobs))
    q.move(SPARE + 1)
    sizes = []
    for id in "abcd":
        finish(id, count=0, age=0)
        sizes.append(len(kept(q, state)))
    assert sizes == [200 + 1 - 65, 200 + 2 - 130, 200 + 3 - 195, 4]


def test_a_call_removes_of_each_state_as_many_as_it_brings_there_and_some_more(q: Probe) -> None:
    """Not as many as it has outcomes: two states would make its work twice as long."""
    ids = [f"j{i:03}" for i in range(400)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    outcomes: list[Outcome] = ["complete", "fail"]
    for outcome in outcomes:
        q.settle_many(*(Settle(j.id, j.token, outcome) for j in q.claim("w1", 200).jobs))
    q.move(SPARE + 1)
    q.add_many(*(Prepared(f"k{i}", "+0", 5, BODY) for i in range(10)))
    jobs = q.claim("w1", 10).jobs
    q.configure(completed=0, failed=0, count=0)
    q.settle_many(*(Settle(j.id, j.token, outcomes[i >= 7]) for i, j in enumerate(jobs)))
    assert (len(kept(q, "completed")), len(kept(q, "failed"))) == (200 - 64, 200 - 64)


def test_claims_see_to_it_too_about_once_a_second(q: Probe, state: str, finish: Finish) -> None:
    """So that a queue in which nothing ends any more forgets what is old."""
    finish("a", "b")
    q.claim("w1", 0)
    q.move(SPARE + 1)
    keep(q, state, 1, YEAR)
    q.claim("w1", 0)
    assert kept(q, state) == ["b"]
    q.move(0.5)
    keep(q, state, 0, 0)
    q.claim("w1", 0)
    assert kept(q, state) == ["b"], "not at every claim"
    q.move(0.6)
    q.claim("w1", 0)
    assert kept(q, state) == []


def test_a_repeat_of_a_settle_whose_job_was_removed_is_no_error(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "complete")
    q.move(SPARE + 1)
    other = q.take("b")
    q.configure(count=1)
    q.settle(other, "complete")
    assert q.where("a") is None
    assert q.settle(job, "complete") == "gone"


def test_retention_of_one_state_leaves_the_others_alone(q: Probe) -> None:
    q.settle(q.take("done"), "complete")
    q.settle(q.take("broken"), "fail")
    q.add("unwanted")
    q.cancel("unwanted")
    q.move(SPARE + 1)
    q.configure(completed=0)
    q.settle(q.take("last"), "complete")
    assert q.holding().ids == {"broken", "unwanted", "last"}


def test_a_claim_removes_as_many_as_expire_by_it(q: Probe) -> None:
    """Also where hundreds expire each second, and none is ever settled."""
    keep(q, "cancelled", count=20, age=YEAR)
    for round in range(4):
        for half in range(2):
            ids = [f"{round}-{half}-{i}" for i in range(200)]
            q.add_many(*(Prepared(id, "+0", 5, BODY, constraints="x=+1") for id in ids))
        q.move(SPARE + 1)
        while q.zset("expiring"):
            q.claim(count=100)
    assert len(kept(q, "cancelled")) <= 400 + 20, "those of the last 15 s"


def test_a_settle_removes_as_many_as_it_cancels(q: Probe) -> None:
    """Children of jobs that fail are cancelled, hundreds each second."""
    keep(q, "cancelled", count=20, age=YEAR)
    for round in range(4):
        q.move(SPARE + 1)
        for third in range(3):
            names = [f"{round}-{third}-{i}" for i in range(100)]
            parents = [Prepared(f"p{name}", "+0", 5, BODY) for name in names]
            children = [
                Prepared(f"c{name}", "+0", 5, BODY, constraints="d=-", parents=(f"p{name}",))
                for name in names
            ]
            q.run(enqueue_commands.enqueue(q.keys, [*parents, *children], full=True))
            jobs = q.claim(count=100).jobs
            data = b'{"type":"E","message":""}'
            q.settle_many(*(Settle(job.id, job.token, "fail", "", data) for job in jobs))
    assert q.holding().total("cancelled") == 1200
    assert len(kept(q, "cancelled")) <= 300 + 20, "those of the last 15 s"
