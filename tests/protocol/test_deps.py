"""Jobs that wait for others of their queue: when they are freed, and when they are cancelled."""

from __future__ import annotations

import pytest

from bide.model.job import State
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from tests.support.probe import BODY, SECOND, Probe


def job(
    id: str, *parents: str, d: str = "-", when: str = "+0", priority: int = 5, x: str = ""
) -> Prepared:
    constraints = f"{x} d={d}".strip() if parents else x
    return Prepared(id, when, priority, BODY, constraints=constraints, parents=parents)


def add(q: Probe, *jobs: Prepared) -> list[Receipt]:
    trips = enqueue_commands.enqueue_many(q.keys, jobs)
    return [receipt for trip in trips for page in q.executor.run_many(trip) for receipt in page]


def end(q: Probe, id: str, outcome: worker_commands.Outcome = "complete") -> None:
    """Claim the one job that is due, and have it end."""
    (claimed,) = q.claim().jobs
    assert claimed.id == id
    assert q.settle(claimed, outcome) == "ok"


def state(q: Probe, id: str) -> str | None:
    seen = q.fetch(id)
    return seen and str(seen.state)


def cause(q: Probe, id: str) -> str | None:
    seen = q.fetch(id)
    assert seen
    return seen.constraints.cause


def test_it_waits_until_its_parent_has_completed_and_runs_at_once(q: Probe) -> None:
    (a, b) = add(q, job("a"), job("b", "a"))
    assert (a.created, b.created, b.due_us) == (True, True, 0)
    assert state(q, "b") == "blocked"
    (claimed,) = q.claim().jobs
    assert q.taken("w2") == []
    assert q.settle(claimed, "complete") == "ok"
    assert q.taken("w2") == ["b"]
    assert q.holding().edges == {"=a b"}


def test_its_parent_knows_it_until_it_has_ended(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a"), job("ab"), job("d", "ab"), job("e", "d"))

    def children(id: str, most: int = 10) -> enqueue_commands.Children:
        return q.run(enqueue_commands.children(q.keys, id, most))

    assert children("a") == (2, ["b", "c"])
    assert children("a", 1) == (2, ["b"])
    assert children("a", 0) == (2, [])
    assert (children("b"), children("nobody")) == ((0, []), (0, []))
    for claimed in q.claim().jobs:
        q.settle(claimed, "complete")
    assert children("a") == (2, ["b", "c"]), "freed, and not ended"
    assert children("ab") == (1, ["d"])


@pytest.mark.parametrize("priority", [5, 9, 0])
def test_it_has_its_priority_once_it_is_freed(q: Probe, priority: int) -> None:
    add(q, job("a"), job("b", "a", priority=priority))
    seen = q.fetch("b")
    assert seen
    assert seen.priority == priority
    end(q, "a")
    assert "b" in q.holding().sets[f"due:{priority}"]


def test_its_delay_counts_from_its_parents_end(q: Probe) -> None:
    add(q, job("a"), job("b", "a", when=f"+{10 * SECOND}"))
    q.move(20)
    end(q, "a")
    assert state(q, "b") == "delayed"
    q.move(10)
    assert q.taken() == ["b"]


def test_a_moment_is_that_moment(q: Probe) -> None:
    at = q.now + 30 * SECOND
    add(q, job("a"), job("b", "a", when=f"={at}"))
    seen = q.fetch("b")
    assert seen
    assert seen.due_us == at
    end(q, "a")
    assert q.holding().due["b"] == at


@pytest.mark.parametrize(("d", "outcome"), [("-", "complete"), ("-e", "fail")])
def test_it_waits_for_all_of_its_parents(
    q: Probe, d: str, outcome: worker_commands.Outcome
) -> None:
    add(q, job("a"), job("b"), job("c", "a", "b", d=d))
    a, b = q.claim().jobs
    q.settle(a, outcome)
    seen = q.fetch("c")
    assert seen
    assert (seen.state, seen.awaits, seen.awaited) == (State.BLOCKED, 1, ("b",))
    q.settle(b, "complete")
    assert q.taken() == ["c"]


def test_parents_that_have_ended_are_not_waited_for(q: Probe) -> None:
    add(q, job("a"))
    end(q, "a")
    (b,) = add(q, job("b", "a"))
    assert b.due_us
    assert q.taken() == ["b"]


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(
    ("d", "outcome", "wanted"),
    [
        ("-", "fail", "cancelled"),
        ("-", "cancel", "cancelled"),
        ("-e", "fail", "waiting"),
        ("-e", "cancel", "waiting"),
        ("-f", "fail", "waiting"),
        ("-f", "cancel", "waiting"),
        ("-f", "complete", "cancelled"),
    ],
)
def test_what_a_parents_end_means_is_for_the_child_to_say(
    q: Probe, d: str, outcome: worker_commands.Outcome, wanted: str, ended: bool
) -> None:
    """Whether the end comes after it was enqueued, or before."""
    add(q, job("a"))
    (claimed,) = q.claim().jobs
    if ended:
        q.settle(claimed, outcome)
    add(q, job("b", "a", d=d))
    if not ended:
        q.settle(claimed, outcome)
    assert state(q, "b") == wanted
    expected = "a" if wanted == "cancelled" and outcome != "complete" else None
    assert cause(q, "b") == expected


def test_an_alarm_goes_off_with_the_first_that_fails(q: Probe) -> None:
    add(q, job("a"), job("b"), job("c", "a", "b", d="-f"))
    a, b = q.claim().jobs
    q.settle(b, "fail")
    assert q.taken() == ["c"]
    q.settle(a, "complete")
    assert q.holding().edges == {"=b c"}


def test_what_is_cancelled_takes_along_what_waits_for_it(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "b", priority=9), job("d", "c", d="-e"))
    assert q.cancel("a") == ["ok"]
    assert [state(q, id) for id in "abcd"] == ["cancelled", "cancelled", "cancelled", "waiting"]
    assert [cause(q, id) for id in "bc"] == ["a", "b"]
    assert q.holding().total("cancelled") == 3
    assert q.taken() == ["d"]


def test_a_job_that_waits_can_be_cancelled_moved_and_made_to_run(q: Probe) -> None:
    add(q, job("a"), *(job(id, "a") for id in "bcd"))
    assert q.cancel("b") == ["ok"]
    assert q.reschedule("c", f"+{10 * SECOND}").result == "ok"
    assert q.promote("d").result == "ok"
    assert [state(q, id) for id in "bcd"] == ["cancelled", "blocked", "waiting"]
    assert q.retry("c") == ["blocked"]
    assert q.watch("c") == "blocked"
    assert q.taken() == ["a", "d"]
    assert "c" in q.zset("blocked")


def test_what_was_cancelled_runs_when_it_is_asked_to(q: Probe) -> None:
    add(q, job("a"), job("b", "a"))
    end(q, "a", "fail")
    assert q.retry("b") == ["ok"]
    assert q.taken() == ["b"]
    assert cause(q, "b") is None


def test_a_parent_that_is_given_up_has_failed(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a", d="-e"))
    for _ in range(40):
        q.claim()
        if state(q, "a") == "failed":
            break
        q.move(11)
    assert [state(q, id) for id in "abc"] == ["failed", "cancelled", "active"]


def test_a_parent_that_expires_is_cancelled(q: Probe) -> None:
    add(q, job("a", x=f"x=+{5 * SECOND}"), job("b", "a"), job("c", "a", d="-e"))
    q.move(6)
    assert q.taken() == ["c"]
    assert state(q, "b") == "cancelled"


def test_a_child_may_expire_while_it_waits_only_at_a_moment(q: Probe) -> None:
    at = q.now + 5 * SECOND
    add(q, job("a", when=f"+{60 * SECOND}"))
    add(q, job("b", "a", x=f"x=@{at}"), job("c", "a", x=f"x=+{5 * SECOND}"), job("d", "b", d="-e"))
    q.move(6)
    assert q.taken() == ["d"]
    assert [state(q, id) for id in "bc"] == ["cancelled", "blocked"]
    seen = q.fetch("b")
    assert seen
    assert seen.constraints.expired_us
    q.move(55)
    end(q, "a")
    q.run(job_commands.pause(q.keys))
    q.move(6)
    q.claim()
    assert state(q, "c") == "cancelled"


def test_its_life_is_told(q: Probe) -> None:
    q.listen()
    add(q, job("a"), job("b", "a"), job("c", "b"))
    end(q, "a")
    end(q, "b", "fail")
    told = [(e.kind, e.verb) for e in q.told() if e.job_id in ("b", "c")]
    assert told == [
        ("added", "enqueue"),
        ("added", "enqueue"),
        ("freed", "free"),
        ("active", "claim"),
        ("failed", "fail"),
        ("cancelled", "drop"),
    ]


def test_they_are_counted_and_listed(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a"))
    counts = q.run(job_commands.counts(q.keys))
    assert (counts.blocked, counts.waiting, counts.delayed) == (2, 1, 0)
    listed: list[str] = q.run(job_commands.listing(q.keys, "blocked", 0, 10))
    assert sorted(listed) == ["b", "c"]


def test_who_frees_wakes(q: Probe) -> None:
    add(q, job("a"), job("b", "a"))
    (claimed,) = q.claim().jobs
    q.hear()
    q.raw.zadd(q.keys["keep"], {"k1": q.now + 20 * SECOND})
    q.settle(claimed, "complete")
    assert q.hear() == "-"


def test_a_wide_fan_out_is_told_in_bounded_steps(q: Probe) -> None:
    ids = [f"c{i:04}" for i in range(1000)]
    add(q, job("a"), *(job(id, "a") for id in ids))
    (claimed,) = q.claim().jobs
    q.settle(claimed, "complete")
    assert len(q.zset("blocked")) == 899
    assert q.hear() == "-"
    claim = q.claim("w2", 250)
    assert claim.more
    assert len(q.zset("blocked")) == 699
    while q.zset("blocked"):
        assert q.claim("w2", 0).more
    assert not any(member[0] == "!" for member in q.holding().edges)


def test_a_wide_fan_in_waits_for_every_one(q: Probe) -> None:
    parents = [f"p{i:04}" for i in range(1000)]
    add(q, *(job(id) for id in parents), job("z", *parents))
    seen = q.fetch("z")
    assert seen
    assert (seen.awaits, len(seen.awaited)) == (1000, 20)
    ended = 0
    while ended < 1000:
        claimed = q.claim(count=250).jobs
        assert "z" not in [one.id for one in claimed]
        q.settle_many(*(worker_commands.Settle(one.id, one.token, "complete") for one in claimed))
        ended += len(claimed)
    assert q.taken() == ["z"]
