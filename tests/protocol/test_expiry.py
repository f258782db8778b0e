"""Expiry: a job that has not begun by its time is cancelled, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from bide.model.job import State
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, SECOND, Probe


def add(q: Probe, *ids: str, constraints: str, when: str = "+0", priority: int = 5) -> list[int]:
    jobs = [Prepared(id, when, priority, BODY, constraints=constraints) for id in ids]
    return [receipt.due_us for receipt in q.add_many(*jobs)]


def expired(q: Probe, id: str) -> bool:
    seen = q.fetch(id)
    assert seen
    return seen.state == State.CANCELLED and seen.constraints.expired_us is not None


@pytest.mark.parametrize("priority", [5, 9])
def test_what_has_not_begun_in_time_is_cancelled_by_whoever_looks(q: Probe, priority: int) -> None:
    (due_us,) = add(q, "a", constraints=f"x=+{5 * SECOND}", priority=priority)
    q.run(job_commands.pause(q.keys))
    assert q.claim().deadline_us == due_us + 5 * SECOND
    q.move(6)
    assert q.taken() == []
    assert expired(q, "a")
    seen = q.fetch("a")
    assert seen
    assert seen.priority in (None, priority)
    holding = q.holding()
    assert (holding.total("cancelled"), holding.total("expired")) == (1, 1)
    assert q.zset("expiring") == {}


def test_what_begins_in_time_goes_on(q: Probe) -> None:
    add(q, "a", constraints=f"x=+{5 * SECOND}")
    (job,) = q.claim().jobs
    q.move(6)
    assert q.taken("w2") == []
    assert q.settle(job, "complete") == "ok"
    assert q.zset("expiring") == {}


def test_nothing_is_taken_at_the_moment_it_expires(q: Probe) -> None:
    """More than a claim looks for by itself."""
    ids = [f"j{i:03}" for i in range(50)]
    add(q, *ids, constraints=f"x=+{5 * SECOND}")
    q.add("z")
    q.move(5)
    assert q.taken(count=100) == ["z"]
    while q.zset("expiring"):
        assert q.taken() == []
    assert all(expired(q, id) for id in ids)


def test_a_claim_ends_a_bounded_number(q: Probe) -> None:
    add(q, *(f"j{i:03}" for i in range(50)), constraints=f"x=+{5 * SECOND}")
    q.run(job_commands.pause(q.keys))
    q.move(5)
    claim = q.claim()
    assert (claim.more, q.holding().total("expired")) == (True, 20)


def test_a_duration_counts_from_the_due_time_also_from_a_later_one(q: Probe) -> None:
    add(q, "a", "b", constraints=f"x=+{5 * SECOND}", when=f"+{10 * SECOND}")
    q.reschedule("a", f"+{20 * SECOND}")
    q.move(16)
    assert q.taken() == []
    assert (q.where("a"), expired(q, "b")) == ("due", True)
    q.move(8)
    assert q.taken() == ["a"]


@pytest.mark.parametrize("group", ["", "g=g "])
@pytest.mark.parametrize("verb", ["promote", "reschedule"])
def test_a_duration_counts_from_an_earlier_due_time_too(q: Probe, verb: str, group: str) -> None:
    add(q, "a", when=f"+{1000 * SECOND}", constraints=f"{group}x=+{5 * SECOND}")
    q.run(job_commands.pause(q.keys))  # so that no claim comes to it by its turn
    moved = q.promote("a") if verb == "promote" else q.reschedule("a", "+0")
    assert moved.result == "ok"
    q.move(4)
    assert q.taken() == []
    assert not expired(q, "a")
    q.move(2)
    assert q.taken() == []
    assert expired(q, "a")


def test_a_moment_is_that_moment_whenever_it_is_due(q: Probe) -> None:
    add(q, "a", constraints=f"x=@{q.now + 5 * SECOND}", when=f"+{10 * SECOND}")
    q.move(6)
    assert q.taken() == []
    assert expired(q, "a")


def test_what_has_begun_once_does_not_expire(q: Probe) -> None:
    add(q, "a", "b", "c", "d", constraints=f"x=+{5 * SECOND}")
    a, b, c, d = q.claim().jobs
    assert q.settle(a, "retry", f"+{10 * SECOND}") == "ok"
    assert q.settle(b, "snooze", f"+{10 * SECOND}") == "ok"
    assert q.settle(c, "crash") == "ok"
    assert q.settle(d, "release", "+0") == "ok", "which says that it had begun"
    q.move(11)
    assert sorted(q.taken()) == ["a", "b", "c", "d"]


def test_what_was_given_back_unbegun_expires(q: Probe) -> None:
    add(q, "a", constraints=f"x=+{5 * SECOND}")
    (job,) = q.claim().jobs
    assert q.settle(job, "release") == "ok"
    q.move(6)
    assert q.taken() == []
    assert expired(q, "a")


@pytest.mark.parametrize("way", ["+", "@"])
def test_what_is_run_again_after_it_has_expired_runs(q: Probe, way: str) -> None:
    add(q, "a", constraints=f"x={way}{5 * SECOND + (0 if way == '+' else q.now)}")
    q.move(6)
    assert q.taken() == []
    assert q.retry("a") == ["ok"]
    assert q.taken() == ["a"]
    assert not expired(q, "a")


def test_a_repeat_changes_nothing(q: Probe) -> None:
    (first,) = q.add_many(Prepared("a", "+0", 5, BODY, constraints=f"x=+{5 * SECOND}"))
    (again,) = q.add_many(Prepared("a", "+9", 5, BODY, constraints=f"x=+{9 * SECOND}"))
    assert (first.created, again.created) == (True, False)
    assert q.holding().hashes["terms"] == {"a": f"x=+{5 * SECOND}".encode()}


def test_a_namesake_has_no_constraints_of_what_was_removed(q: Probe) -> None:
    removals: list[Command[Any]] = [
        job_commands.delete(q.keys, ["a"]),
        job_commands.purge(q.keys, "e1"),
    ]
    for remove in removals:
        add(q, "a", constraints=f"x=+{5 * SECOND}")
        q.run(remove)
        q.add("a")
        q.move(6)
        assert q.taken() == ["a"]
        (job,) = q.claim(seq=q._seq["w1"]).jobs
        assert q.settle(job, "complete") == "ok"
        q.run(job_commands.delete(q.keys, ["a"]))


def test_whoever_waits_for_its_end_is_told(q: Probe) -> None:
    add(q, "a", constraints=f"x=+{5 * SECOND}")
    assert q.watch("a") == "due"
    q.move(6)
    q.taken()
    assert q.zset("waiters") == {}


def test_its_end_is_an_event(q: Probe) -> None:
    q.listen()
    add(q, "a", constraints=f"x=+{5 * SECOND}")
    q.move(6)
    q.taken()
    assert [(e.kind, e.verb, e.job_id) for e in q.told()] == [
        ("added", "enqueue", "a"),
        ("cancelled", "expire", "a"),
    ]


def test_an_expiry_before_every_deadline_wakes_someone(q: Probe) -> None:
    q.raw.zadd(q.keys["keep"], {"k1": q.now + 20 * SECOND})
    add(q, "a", constraints=f"x=@{q.now + 10 * SECOND}", when=f"+{30 * SECOND}")
    assert q.hear() == "-"


def test_constraints_go_with_their_job(q: Probe) -> None:
    add(q, "a", constraints=f"x=+{60 * SECOND}")
    q.configure(completed=0)
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    q.move(30)
    q.settle(q.take("b"), "complete")
    holding = q.holding()
    assert (list(holding.hashes["jobs"]), holding.hashes["terms"]) == (["b"], {})


@pytest.mark.parametrize(
    "outcome", ["complete", "fail", "cancel", "reclaim", "pop", "delete", "purge"]
)
def test_what_has_ended_is_looked_for_no_more(q: Probe, outcome: Any) -> None:
    """Else a queue that ends jobs long before they expire would keep an entry of each."""
    add(q, "a", "b", constraints=f"x=+{86_400 * SECOND}")
    if outcome in ("complete", "fail"):
        for job in q.claim().jobs:
            assert q.settle(job, outcome, data=b'{"type":"E","message":""}') == "ok"
    elif outcome == "cancel":
        assert q.cancel("a", "b") == ["ok", "ok"]
    elif outcome == "reclaim":
        q.claim(lease=1)
        assert q.cancel("a", "b") == ["asked", "asked"]
        q.move(2)
        assert q.taken("w2") == []
    elif outcome == "pop":
        q.push("data")
        assert q.pop(count=3).refused == 2
    elif outcome == "delete":
        assert q.run(job_commands.delete(q.keys, ["a", "b"])) == ["ok", "ok"]
    else:
        q.run(job_commands.purge(q.keys, "p"))
        q.run(job_commands.purge(q.keys, None))
    assert q.zset("expiring") == {}


@pytest.mark.parametrize("outcome", ["release", "snooze"])
def test_what_was_given_back_after_its_time_expires(q: Probe, outcome: Any) -> None:
    """A claim has passed over it while a worker held it; a paused queue takes nothing."""
    add(q, "a", constraints=f"x=+{5 * SECOND}")
    (job,) = q.claim(lease=60).jobs
    q.run(job_commands.pause(q.keys))
    q.move(6)
    assert q.taken("w2") == []
    if outcome == "release":
        assert q.settle(job, "release") == "ok"
    else:
        assert q.settle(job, "snooze", "+0", b'{"type":"bide.UnknownTask","message":""}') == "ok"
    assert q.taken("w2") == []
    assert expired(q, "a")
