"""What is left of jobs that others waited for, or that waited: until when, and to whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import CHUNK
from bide.protocol.keys import keys_of
from tests.protocol.test_deps import add, end, job, state
from tests.support.probe import SECOND, Probe

REMOVALS: list[Callable[[Probe], object]] = [
    lambda q: q.run(job_commands.delete(q.keys, ["a"])),
    lambda q: q.cancel("a"),
]


@pytest.mark.parametrize("remove", REMOVALS)
def test_what_is_removed_is_as_good_as_cancelled(
    q: Probe, remove: Callable[[Probe], object]
) -> None:
    add(q, job("a"), job("b", "a"), job("c", "a", d="-e"))
    q.watch("b")
    remove(q)
    assert [state(q, id) for id in "bc"] == ["cancelled", "waiting"]
    assert q.zset("waiters") == {}
    assert q.hear() == "-"


def test_to_delete_one_that_waits_leaves_nothing(q: Probe) -> None:
    add(q, job("a"), job("b", "a"), job("c", "b"))
    assert q.run(job_commands.delete(q.keys, ["b"])) == ["ok"]
    assert state(q, "c") == "cancelled"
    assert q.holding().edges == set()


def test_a_parent_that_is_no_more_is_kept_for_nobody(q: Probe) -> None:
    """However many waited for it, and had been told or not when it was deleted."""
    children = [f"c{i:03}" for i in range(350)]
    add(q, job("a"), job("x", "a", d="-e"), job("b"), *(job(id, "b", d="-e") for id in children))
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["ok"]
    assert state(q, "x") == "waiting"
    assert not any(member.startswith("=a ") for member in q.holding().edges)
    b = next(one for one in q.claim().jobs if one.id == "b")
    q.settle(b, "complete")
    assert len([member for member in q.holding().edges if member.startswith("=b ")]) == 101
    while q.zset("blocked"):
        q.claim("w2", 0)
    assert q.run(job_commands.delete(q.keys, ["b"])) == ["ok"]
    for _ in range(3):
        q.claim("w2", 0)
    assert q.holding().edges == set()


def test_a_purge_removes_what_waits_too(q: Probe) -> None:
    add(q, job("z"))
    (z,) = q.claim().jobs
    add(q, job("a"), job("b", "a"), job("c", "z"), job("d", "z", d="-e"))
    assert q.run(job_commands.purge(q.keys, "e1")).aside == 4
    while q.run(job_commands.purge(q.keys, None)).more:
        pass
    q.settle(z, "complete")
    assert q.taken() == []
    assert q.holding().ids == {"z"}
    assert q.holding().edges == set()


def test_a_parent_that_is_swept_frees_what_was_added_since(q: Probe) -> None:
    add(q, job("a"))
    (claimed,) = q.claim().jobs
    add(q, job("p"))
    add(q, job("b", "p", "a", d="-e"))
    q.run(job_commands.purge(q.keys, "e1"))
    add(q, job("b2", "a"))
    q.settle(claimed, "complete")
    assert q.taken() == ["b2"]


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


def test_what_many_have_waited_for_is_removed_in_its_time(q: Probe) -> None:
    """Though it takes more than one look to see that all of them have ended."""
    q.configure(completed="1m")
    children = [f"c{i:03}" for i in range(350)]
    add(q, job("a"), *(job(id, "a") for id in children))
    end(q, "a")
    while jobs := q.claim(count=250).jobs:
        q.settle_many(*(worker_commands.Settle(one.id, one.token, "cancel") for one in jobs))
    q.move(61)
    for _ in range(6):
        q.claim()
        q.move(2)
    assert state(q, "a") is None
    assert q.holding().edges == set()


def test_of_a_parent_that_is_purged_other_queues_hear(q: Probe) -> None:
    add(q, job("a"))
    q.run(enqueue_commands.subscribe(q.keys, [("{other}b", "a")]))
    q.run(job_commands.purge(q.keys, "e1"))
    while q.run(job_commands.purge(q.keys, None)).more:
        pass
    assert q.claim().post
    assert q.holding().edges == {"@{other}b a X"}


def test_a_namesake_waits_for_nothing_that_its_name_waited_for(q: Probe) -> None:
    add(q, job("a"), job("c"))
    add(q, job("b", "a"))
    q.cancel("b")
    q.run(job_commands.delete(q.keys, ["b"]))
    add(q, job("b", "c"))
    a, c = q.claim().jobs
    q.settle(a, "fail")
    assert state(q, "b") == "blocked"
    q.settle(c, "complete")
    assert q.taken() == ["b"]


def test_a_namesake_of_what_was_purged_waits_for_nothing_of_its_either(q: Probe) -> None:
    """It is in the trash yet, with its body."""
    parents = [f"p{i:03}" for i in range(CHUNK)]
    add(q, job("a"), *(job(id) for id in parents))
    running = q.claim(count=1 + CHUNK).jobs
    add(q, job("b", "a"), job("c", *parents))
    q.run(job_commands.purge(q.keys, "e1"))
    add(q, job("z"))
    add(q, job("b", "z"), job("c", "z"))
    assert {member for member in q.holding().edges if member[0] == "<"} == {"<b z", "<c z"}
    q.settle_many(*(worker_commands.Settle(one.id, one.token, "fail") for one in running))
    assert [state(q, id) for id in "bc"] == ["blocked", "blocked"]
    end(q, "z")
    assert q.taken() == ["b", "c"]


def test_a_namesake_of_a_parent_is_another_job(q: Probe) -> None:
    """What the children of the one that was removed are told, its namesake's are not."""
    ids = [f"c{i:04}" for i in range(500)]
    add(q, job("a"), *(job(id, "a") for id in ids))
    q.run(job_commands.delete(q.keys, ["a"]))
    assert len(q.zset("blocked")) == 400
    add(q, job("a"))
    add(q, job("new", "a"))
    assert list(q.zset("blocked")) == ["new"]
    end(q, "a")
    assert q.taken() == ["new"]


def test_a_namesake_of_a_parent_has_its_children_in_later_calls(q: Probe) -> None:
    """Its own call must come again, because not all children of the removed one have been told."""
    add(q, job("p"), *(job(f"old{i:03}", "p") for i in range(300)))
    q.run(job_commands.delete(q.keys, ["p"]))
    assert "!p X" in q.holding().edges
    ids = [f"c{i:03}" for i in range(CHUNK)]
    assert all(r.created for r in add(q, job("p"), *(job(id, "p") for id in ids)))
    assert sorted(q.zset("blocked")) == ids


def test_a_namesake_of_a_parent_is_another_job_to_other_queues_too(q: Probe) -> None:
    """What the children of the one that was removed are yet to be told, its own are not."""
    add(q, job("a"), *(job(f"c{i:03}", "a") for i in range(450)))
    q.run(job_commands.delete(q.keys, ["a"]))
    add(q, job("a"))
    q.run(enqueue_commands.EnqueueFull(keys_of("other"), job("b", "{mail}a"), ()).begin())
    assert q.zset("blocked") == {}
    end(q, "a")
    assert {member for member in q.holding().edges if "other" in member} == {"@{other}b a C"}


def test_what_waits_no_more_leaves_nothing(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(enqueue_commands.CHUNK)]
    add(q, *(job(id, when=f"+{1000 * SECOND}") for id in parents), job("z", *parents))
    q.cancel("z")
    for _ in range(3):
        q.claim()
    assert q.holding().edges == set()
    assert q.zset("expiring") == {}
