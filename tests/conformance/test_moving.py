"""Reschedule and promote: a job that has not been taken gets another due time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.command import Command
from bide.errors import ScriptBug
from bide.keys import Keys
from bide.ops import manage
from bide.ops.consume import Outcome
from bide.ops.manage import Moved
from tests.conformance.probe import LEASE, SECOND, Probe

Move = Callable[[Keys, str], Command[Moved]]


@pytest.fixture(params=["reschedule", "promote"])
def move(request: pytest.FixtureRequest) -> Move:
    if request.param == "promote":
        return manage.promote
    return lambda keys, id: manage.reschedule(keys, id, f"+{SECOND}")


def test_a_delay_counts_from_now(q: Probe) -> None:
    q.add("a", when=f"+{3600 * SECOND}", priority=2)
    word, now, due_us = q.reply(manage.reschedule(q.keys, "a", f"+{5 * SECOND}"))
    assert (word, due_us) == (b"ok", now + 5 * SECOND)
    assert q.holding().sets["due:2"] == {"a": due_us}


def test_a_job_is_moved_forward_back_and_to_a_moment(q: Probe) -> None:
    q.add("a")
    assert q.run(manage.reschedule(q.keys, "a", f"+{SECOND}")).word == "ok"
    assert q.taken() == []
    at = q.now + 60 * SECOND
    assert q.run(manage.reschedule(q.keys, "a", f"={at}")) == ("ok", at)
    q.move(59)
    assert q.taken() == []
    q.move(1)
    assert q.taken() == ["a"]


def test_a_moment_that_has_passed_means_now(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    _, now, due_us = q.reply(manage.reschedule(q.keys, "a", "=1"))
    assert due_us == now


def test_a_repeat_of_a_moment_changes_nothing(q: Probe) -> None:
    q.add("a")
    at = f"={q.now + SECOND}"
    q.run(manage.reschedule(q.keys, "a", at))
    before = q.holding()
    assert q.run(manage.reschedule(q.keys, "a", at)).word == "ok"
    assert q.holding() == before


@pytest.mark.parametrize("at", ["", "5", "-5", "+", "+1e6", "=now", "+99999999999999999"])
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, at: str
) -> None:
    q.add("a")
    before = q.holding()
    with pytest.raises(ScriptBug, match="BADARG reschedule at"):
        q.run(manage.reschedule(q.keys, "a", at))
    assert q.holding() == before


def test_promote_makes_a_delayed_job_due_now(q: Probe) -> None:
    q.add("a", when=f"+{3600 * SECOND}", priority=2)
    word, now, due_us = q.reply(manage.promote(q.keys, "a"))
    assert (word, due_us) == (b"ok", now)
    assert q.holding().sets["due:2"] == {"a": now}
    assert q.taken() == ["a"]


def test_promote_leaves_a_job_that_waits_in_its_place(q: Probe) -> None:
    (receipt,) = q.add("a")
    q.move(1)
    q.add("b")
    assert q.run(manage.promote(q.keys, "a")) == ("ok", receipt.due_us)
    assert q.taken() == ["a", "b"]


def test_a_job_that_waits_for_its_retry_is_moved_too(q: Probe, move: Move) -> None:
    q.settle(q.take("a"), "retry", f"+{3600 * SECOND}")
    assert q.run(move(q.keys, "a")).word == "ok"
    q.move(1)
    (again,) = q.claim().jobs
    assert again.attempt == 2
    assert q.record("a").due_us == again.due_us


def test_a_suspect_stays_apart_when_it_is_moved(q: Probe, move: Move) -> None:
    q.add("a")
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert q.run(move(q.keys, "a")).word == "ok"
    assert list(q.holding().sets["due:alone"]) == ["a"]


def test_a_job_that_runs_is_not_moved(q: Probe, move: Move) -> None:
    job = q.take("a")
    before = q.holding()
    assert q.run(move(q.keys, "a")) == ("active", 0)
    assert q.holding() == before
    assert q.settle(job, "complete") == "ok"


@pytest.mark.parametrize(("outcome", "state"), [("complete", "completed"), ("fail", "failed")])
def test_a_job_that_has_ended_is_not_moved(
    q: Probe, move: Move, outcome: Outcome, state: str
) -> None:
    q.settle(q.take("a"), outcome)
    before = q.holding()
    assert q.run(move(q.keys, "a")) == (state, 0)
    assert q.holding() == before


def test_nor_is_one_that_was_cancelled_or_never_was(q: Probe, move: Move) -> None:
    q.add("a")
    q.run(manage.cancel(q.keys, ["a"]))
    before = q.holding()
    assert q.run(move(q.keys, "a")) == ("cancelled", 0)
    assert q.run(move(q.keys, "nobody")) == ("gone", 0)
    assert q.holding() == before
