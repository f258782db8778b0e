"""Jobs that wait for others of their queue: when they are freed, and when they are cancelled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.errors import JobNotFound
from bide.ops import consume, inspect, manage, produce
from bide.ops.produce import CHUNK, Prepared, Receipt
from bide.states import State
from tests.conformance.probe import BODY, SECOND, Probe


def job(
    id: str, *parents: str, d: str = "-", when: str = "+0", priority: int = 5, x: str = ""
) -> Prepared:
    terms = f"{x} d={d}".strip() if parents else x
    return Prepared(id, when, priority, BODY, terms=terms, parents=parents)


def add(q: Probe, *jobs: Prepared) -> list[Receipt]:
    trips = produce.enqueue_many(q.keys, jobs)
    return [receipt for trip in trips for page in q.executor.run_many(trip) for receipt in page]


def end(q: Probe, id: str, outcome: consume.Outcome = "complete") -> None:
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
    return seen.terms.cause


def test_it_waits_until_its_parent_has_completed_and_runs_at_once(q: Probe) -> None:
    (a, b) = add(q, job("a"), job("b", "a"))
    assert (a.new, b.new, b.due_us) == (True, True, 0)
    assert state(q, "b") == "blocked"
    (claimed,) = q.claim().jobs
    assert q.taken("w2") == []
    assert q.settle(claimed, "complete") == "ok"
    assert q.taken("w2") == ["b"]
    assert q.holding().edges == {"=a b"}


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


def test_it_waits_for_all_of_its_parents(q: Probe) -> None:
    add(q, job("a"), job("b"), job("c", "a", "b"))
    a, b = q.claim().jobs
    q.settle(a, "complete")
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
        ("-f", "fail", "waiting"),
        ("-a", "fail", "waiting"),
        ("-a", "complete", "cancelled"),
        ("-", "cancel", "cancelled"),
        ("-f", "cancel", "cancelled"),
        ("-c", "cancel", "waiting"),
        ("-ac", "cancel", "waiting"),
        ("-a", "cancel", "cancelled"),
    ],
)
def test_what_a_parents_end_means_is_for_the_child_to_say(
    q: Probe, d: str, outcome: consume.Outcome, wanted: str, ended: bool
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
    add(q, job("a"), job("b"), job("c", "a", "b", d="-a"))
    a, b = q.claim().jobs
    q.settle(b, "fail")
    assert q.taken() == ["c"]
    q.settle(a, "complete")
    assert q.holding().edges == {"=b c"}


def test_what_is_cancelled_takes_along_what_waits_for_it(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "b", priority=9), job("d", "c", d="-c"))
    assert q.cancel("a") == ["ok"]
    assert [state(q, id) for id in "abcd"] == ["cancelled", "cancelled", "cancelled", "waiting"]
    assert [cause(q, id) for id in "bc"] == ["a", "b"]
    assert q.holding().total("cancelled") == 3
    assert q.taken() == ["d"]


def test_a_job_that_waits_can_be_cancelled_moved_and_made_to_run(q: Probe) -> None:
    add(q, job("a"), *(job(id, "a") for id in "bcd"))
    assert q.cancel("b") == ["ok"]
    assert q.reschedule("c", f"+{10 * SECOND}").word == "ok"
    assert q.promote("d").word == "ok"
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


REMOVALS: list[Callable[[Probe], object]] = [
    lambda q: q.run(manage.delete(q.keys, ["a"])),
    lambda q: q.cancel("a"),
]


@pytest.mark.parametrize("remove", REMOVALS)
def test_what_is_removed_is_as_good_as_cancelled(
    q: Probe, remove: Callable[[Probe], object]
) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a", d="-c"))
    q.watch("b")
    remove(q)
    assert [state(q, id) for id in "bc"] == ["cancelled", "waiting"]
    assert q.zset("waiters") == {}
    assert q.hear() == "-"


def test_to_delete_one_that_others_go_on_without_leaves_nothing(q: Probe) -> None:
    add(q, job("a"), job("b", "a", d="-c"))
    q.run(manage.delete(q.keys, ["a"]))
    assert (state(q, "b"), q.holding().edges) == ("waiting", frozenset())


def test_to_delete_one_that_was_kept_for_many_leaves_nothing(q: Probe) -> None:
    add(q, job("p"), job("a"), *(job(f"b{i}", "p", "a") for i in range(250)))
    a, p = q.claim(count=2).jobs
    assert q.settle(a, "complete") == "ok"
    for _ in range(3):
        q.claim()
    q.run(manage.delete(q.keys, ["a"]))
    for _ in range(3):
        q.claim()
    assert not [edge for edge in q.holding().edges if edge[1:2] == "a"]
    assert q.settle(p, "complete") == "ok"


def test_to_delete_one_that_waits_leaves_nothing(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "b"))
    assert q.run(manage.delete(q.keys, ["b"])) == ["ok"]
    assert state(q, "c") == "cancelled"
    assert q.holding().edges == set()


def test_to_empty_a_queue_removes_what_waits_too(q: Probe) -> None:
    add(q, job("z"))
    (z,) = q.claim().jobs
    add(q, job("a"), job("b", "a"), job("c", "z"), job("d", "z", d="-c"))
    assert q.run(manage.empty(q.keys, "e1")).aside == 4
    while q.run(manage.empty(q.keys, None)).more:
        pass
    q.settle(z, "complete")
    assert q.taken() == []
    assert q.holding().ids == {"z"}
    assert q.holding().edges == set()


def test_a_parent_that_is_swept_frees_what_was_added_since(q: Probe) -> None:
    add(q, job("a"))
    (claimed,) = q.claim().jobs
    add(q, job("p"))
    add(q, job("b", "p", "a", d="-c"))
    q.run(manage.empty(q.keys, "e1"))
    add(q, job("b2", "a"))
    q.settle(claimed, "complete")
    assert q.taken() == ["b2"]


def test_a_namesake_of_what_was_set_aside_waits_for_its_own_parents_only(q: Probe) -> None:
    add(q, job("old"), job("a", "old"))
    q.run(manage.empty(q.keys, "e1"))
    assert (q.where("old"), q.where("a")) == ("trash", "trash"), "nothing is swept yet"
    add(q, job("new"), job("a", "new"))
    for _ in range(2):  # they sweep
        q.claim(count=0)
    end(q, "new")
    assert q.taken() == ["a"]


def test_a_parent_that_is_given_up_has_failed(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a", d="-f"))
    for _ in range(40):
        q.claim()
        if state(q, "a") == "failed":
            break
        q.move(11)
    assert [state(q, id) for id in "abc"] == ["failed", "cancelled", "active"]


def test_a_parent_that_expires_is_cancelled(q: Probe) -> None:
    add(q, job("a", x=f"x=+{5 * SECOND}"), job("b", "a"), job("c", "a", d="-c"))
    q.move(6)
    assert q.taken() == ["c"]
    assert state(q, "b") == "cancelled"


def test_a_child_may_expire_while_it_waits_only_at_a_moment(q: Probe) -> None:
    at = q.now + 5 * SECOND
    add(q, job("a", when=f"+{60 * SECOND}"))
    add(q, job("b", "a", x=f"x=@{at}"), job("c", "a", x=f"x=+{5 * SECOND}"), job("d", "b", d="-c"))
    q.move(6)
    assert q.taken() == ["d"]
    assert [state(q, id) for id in "bc"] == ["cancelled", "blocked"]
    seen = q.fetch("b")
    assert seen
    assert seen.terms.expired_us
    q.move(55)
    end(q, "a")
    q.run(manage.pause(q.keys))
    q.move(6)
    q.claim()
    assert state(q, "c") == "cancelled"


def test_an_unknown_parent_is_an_error_and_nothing_is_added(q: Probe) -> None:
    with pytest.raises(JobNotFound, match="no job 'nobody' to wait for"):
        add(q, job("x", x="x=+1"), job("b", "x", "nobody"))
    assert q.holding().ids == set()
    add(q, job("a"))
    many = [f"p{i}" for i in range(2 * CHUNK)]
    add(q, *(job(id, x=f"x=+{SECOND}") for id in many))
    with pytest.raises(JobNotFound, match="no job 'nobody' to wait for"):
        add(q, job("b", *many, "nobody"))
    assert q.holding().ids == {"a", *many}
    add(q, job("b", "a"))
    seen = q.fetch("b")
    assert seen
    assert seen.awaited == ("a",)


def test_a_repeat_changes_nothing_whatever_became_of_its_parents(q: Probe) -> None:
    add(q, job("a"), job("b", "a"))
    assert [r.new for r in add(q, job("b", "a"))] == [False]
    end(q, "a")
    q.run(manage.delete(q.keys, ["a"]))
    assert [r.new for r in add(q, job("b", "a"))] == [False]
    assert q.taken() == ["b"]


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
    counts = q.run(inspect.counts(q.keys))
    assert (counts.blocked, counts.waiting, counts.delayed) == (2, 1, 0)
    listed: list[str] = q.run(inspect.listing(q.keys, "blocked", 0, 10))
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
        q.settle_many(*(consume.Settle(one.id, one.token, "complete") for one in claimed))
        ended += len(claimed)
    assert q.taken() == ["z"]


def test_what_a_child_needs_is_kept_until_it_has_ended(q: Probe) -> None:
    q.configure(completed=1)
    add(q, job("a"), job("b", when=f"+{1000 * SECOND}"), job("z", "a", "b"))
    (a,) = q.claim().jobs
    q.settle(a, "complete", data=b"1")
    finished = q.fetch("a")
    assert finished
    for n in range(3):
        q.move(30)
        q.settle(q.take(f"n{n}"), "complete")
    seen = q.fetch("a")
    assert seen
    assert (seen.raw_result, seen.finished_us) == (b"1", finished.finished_us)
    q.promote("b")
    end(q, "b")
    end(q, "z")
    for n in range(6):
        q.move(30)
        q.settle(q.take(f"m{n}"), "complete")
    assert state(q, "a") is None
    assert not any(member.startswith("=a") for member in q.holding().edges)


def test_what_a_dead_producer_left_half_placed_is_removed(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(CHUNK + 1)]
    add(q, *(job(id) for id in parents))
    add_first = produce.Placing(q.keys, job("z", *parents), ()).begin()
    q.run(add_first._replace(rest=None))
    add(q, job("y", "z"))
    for _ in range(2):
        ended = q.claim(count=250).jobs
        q.settle_many(*(consume.Settle(one.id, one.token, "complete") for one in ended))
    assert state(q, "z") == "blocked"
    q.move(31)
    assert q.claim().jobs == []
    assert [state(q, id) for id in "yz"] == ["cancelled", None]
    assert not any(member.startswith("<") for member in q.holding().edges)


def test_what_was_left_half_placed_is_completed_by_a_repeat(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(CHUNK + 1)]
    add(q, *(job(id) for id in parents))
    q.run(produce.Placing(q.keys, job("z", *parents), ()).begin()._replace(rest=None))
    (again,) = add(q, job("z", *parents))
    assert not again.new
    assert "<z {}" not in q.holding().edges
    for _ in range(2):
        ended = q.claim(count=250).jobs
        q.settle_many(*(consume.Settle(one.id, one.token, "complete") for one in ended))
    assert q.taken() == ["z"]


def test_a_namesake_waits_for_nothing_that_its_name_waited_for(q: Probe) -> None:
    add(q, job("a"), job("c"))
    add(q, job("b", "a"))
    q.cancel("b")
    q.run(manage.delete(q.keys, ["b"]))
    add(q, job("b", "c"))
    a, c = q.claim().jobs
    q.settle(a, "fail")
    assert state(q, "b") == "blocked"
    q.settle(c, "complete")
    assert q.taken() == ["b"]


def test_a_namesake_of_a_parent_is_another_job(q: Probe) -> None:
    """What the children of the one that was removed are told, its namesake's are not."""
    ids = [f"c{i:04}" for i in range(500)]
    add(q, job("a"), *(job(id, "a") for id in ids))
    q.run(manage.delete(q.keys, ["a"]))
    assert len(q.zset("blocked")) == 400
    add(q, job("a"))
    add(q, job("new", "a"))
    assert list(q.zset("blocked")) == ["new"]
    end(q, "a")
    assert q.taken() == ["new"]


def test_what_waits_no_more_leaves_nothing(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(produce.CHUNK)]
    add(q, *(job(id, when=f"+{1000 * SECOND}") for id in parents), job("z", *parents))
    q.cancel("z")
    for _ in range(3):
        q.claim()
    assert q.holding().edges == set()
    assert q.zset("expiring") == {}
