"""Jobs that wait for others, while they are added: in steps, again, and for what there is not."""

from __future__ import annotations

import pytest

from bide.errors import JobNotFound
from bide.model.job import State
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import CHUNK
from bide.protocol.keys import keys_of
from tests.protocol.test_deps import add, end, job, state
from tests.support.probe import SECOND, Probe


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
    assert [r.created for r in add(q, job("b", "a"))] == [False]
    end(q, "a")
    q.run(job_commands.delete(q.keys, ["a"]))
    assert [r.created for r in add(q, job("b", "a"))] == [False]
    assert q.taken() == ["b"]


def test_what_a_dead_producer_left_half_placed_is_removed(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(CHUNK + 1)]
    add(q, *(job(id) for id in parents))
    add_first = enqueue_commands.EnqueueFull(q.keys, job("z", *parents), ()).begin()
    q.run(add_first._replace(followup=None))
    with pytest.raises(JobNotFound, match="no job 'z' to wait for"):
        add(q, job("y", "z"))
    for _ in range(2):
        ended = q.claim(count=250).jobs
        q.settle_many(*(worker_commands.Settle(one.id, one.token, "complete") for one in ended))
    assert state(q, "z") == "blocked"
    q.move(31)
    assert q.claim().jobs == []
    assert [state(q, id) for id in "yz"] == [None, None]
    assert not any(member.startswith("<") for member in q.holding().edges)


def test_two_that_are_placed_at_the_same_time_cannot_wait_for_each_other(q: Probe) -> None:
    """Neither is there for the other until all that it waits for is known."""
    other = keys_of("other")
    first = enqueue_commands.EnqueueFull(q.keys, job("a", "{other}b"), ()).begin()
    second = enqueue_commands.EnqueueFull(other, job("b", "{mail}a"), ()).begin()
    for begin in (first, second):
        q.run(begin._replace(followup=None))
    with pytest.raises(JobNotFound, match=r"no job '\{mail\}a' to wait for"):
        q.run(second)
    with pytest.raises(JobNotFound, match=r"no job '\{other\}b' to wait for"):
        q.run(first)
    assert q.holding().edges == set()


def test_nor_can_one_wait_for_another_that_is_placed_in_steps(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(CHUNK)]
    add(q, *(job(id) for id in parents))
    begin = enqueue_commands.EnqueueFull(q.keys, job("z", *parents, "y"), ()).begin()
    q.run(begin._replace(followup=None))
    many = [f"q{i:03}" for i in range(CHUNK)]
    add(q, *(job(id) for id in many))
    for of_z in (["z"], [*many, "z"]):
        with pytest.raises(JobNotFound, match="no job 'z' to wait for"):
            add(q, job("y", *of_z))
    with pytest.raises(JobNotFound, match="no job 'y' to wait for"):
        q.run(begin)
    assert [state(q, id) for id in "yz"] == [None, None]
    for _ in range(6):  # forget what is left of them
        q.claim(count=0)
    assert q.holding().edges == set()


def test_what_expires_while_it_is_placed_is_an_expired_job(q: Probe) -> None:
    """And not taken for what a dead producer has left."""
    parents = [f"p{i:03}" for i in range(CHUNK + 1)]
    add(q, *(job(id) for id in parents))
    placed = job("z", *parents, x=f"x=@{q.now + 5 * SECOND}")
    q.run(enqueue_commands.EnqueueFull(q.keys, placed, ()).begin()._replace(followup=None))
    q.move(6)
    q.claim(count=0)
    assert state(q, "z") == "blocked"
    (receipt,) = add(q, placed)
    assert (receipt.id, receipt.due_us) == ("z", 0)
    q.claim(count=0)
    seen = q.fetch("z")
    assert seen
    assert (seen.state, seen.constraints.expired_us is not None) == (State.CANCELLED, True)
    q.move(31)
    assert (q.claim(count=0).jobs, state(q, "z")) == ([], "cancelled")


def test_what_was_left_half_placed_is_completed_by_a_repeat(q: Probe) -> None:
    parents = [f"p{i:03}" for i in range(CHUNK + 1)]
    add(q, *(job(id) for id in parents))
    q.run(
        enqueue_commands.EnqueueFull(q.keys, job("z", *parents), ()).begin()._replace(followup=None)
    )
    (again,) = add(q, job("z", *parents))
    assert not again.created
    assert "<z {}" not in q.holding().edges
    for _ in range(2):
        ended = q.claim(count=250).jobs
        q.settle_many(*(worker_commands.Settle(one.id, one.token, "complete") for one in ended))
    assert q.taken() == ["z"]
