"""Reschedule and promote: a job that has not been taken gets another due time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.errors import ScriptBug, UsageError
from bide.model.durations import at_to_us
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import ChangeResult
from bide.protocol.commands.worker import Outcome
from tests.support.probe import LEASE, SECOND, Probe

Move = Callable[..., list[ChangeResult]]


@pytest.fixture(params=["reschedule", "promote"])
def move(request: pytest.FixtureRequest, q: Probe) -> Move:
    if request.param == "promote":
        return lambda *ids: q.run(job_commands.promote(q.keys, ids))
    return lambda *ids: q.run(job_commands.reschedule(q.keys, ids, f"+{SECOND}"))


def test_a_delay_counts_from_now(q: Probe) -> None:
    q.add("a", when=f"+{3600 * SECOND}", priority=2)
    _ok, now, word, due_us = q.reply(job_commands.reschedule(q.keys, ["a"], f"+{5 * SECOND}"))
    assert (word, due_us) == (b"ok", now + 5 * SECOND)
    assert q.holding().sets["due:2"] == {"a": due_us}


def test_a_job_is_moved_forward_back_and_to_a_moment(q: Probe) -> None:
    q.add("a")
    assert q.reschedule("a", f"+{SECOND}").result == "ok"
    assert q.taken() == []
    at = q.now + 60 * SECOND
    assert q.reschedule("a", f"={at}") == ("ok", at)
    q.move(59)
    assert q.taken() == []
    q.move(1)
    assert q.taken() == ["a"]


def test_a_moment_that_has_passed_means_now(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    _ok, now, _word, due_us = q.reply(job_commands.reschedule(q.keys, ["a"], "=1"))
    assert due_us == now


def test_a_repeat_of_a_moment_changes_nothing(q: Probe) -> None:
    q.add("a")
    at = f"={q.now + SECOND}"
    q.reschedule("a", at)
    before = q.holding()
    assert q.reschedule("a", at).result == "ok"
    assert q.holding() == before


def test_from_when_to_when_is_noted(q: Probe) -> None:
    q.add("a", when="=4000000000000000")
    first = 4_000_000_000_000_000
    dues = [first]
    for i in range(7):
        dues.append(q.reschedule("a", f"={first + (i + 1) * SECOND}").due_us)
    q.run(job_commands.promote(q.keys, ["a"]))
    moves = q.notes("a").moves
    assert len(moves) == 5, "the newest"
    assert [at_to_us(move.was) for move in moves] == dues[-5:]
    assert [at_to_us(move.due) for move in moves[:-1]] == dues[-4:]
    assert moves[-1].due == moves[-1].at
    q.run(job_commands.promote(q.keys, ["a"]))
    assert q.notes("a").moves == moves, "it was due already"


def test_what_was_rescheduled_and_ran_keeps_both(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    q.reschedule("a", "+0")
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    assert len(q.notes("a").moves) == 1
    q.run(job_commands.delete(q.keys, ["a"]))
    assert q.holding().hashes["notes"] == {}


@pytest.mark.parametrize("at", ["", "5", "-5", "+", "+1e6", "=now", "+99999999999999999"])
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, at: str
) -> None:
    q.add("a")
    before = q.holding()
    with pytest.raises(ScriptBug, match="BADARG reschedule at"):
        q.reschedule("a", at)
    assert q.holding() == before


def test_promote_makes_a_delayed_job_due_now(q: Probe) -> None:
    q.add("a", when=f"+{3600 * SECOND}", priority=2)
    _ok, now, word, due_us = q.reply(job_commands.promote(q.keys, ["a"]))
    assert (word, due_us) == (b"ok", now)
    assert q.holding().sets["due:2"] == {"a": now}
    assert q.taken() == ["a"]


def test_promote_leaves_a_job_that_waits_in_its_place(q: Probe) -> None:
    (receipt,) = q.add("a")
    q.move(1)
    q.add("b")
    assert q.promote("a") == ("ok", receipt.due_us)
    assert q.taken() == ["a", "b"]


def test_a_job_that_waits_for_its_retry_is_moved_too(q: Probe, move: Move) -> None:
    q.settle(q.take("a"), "retry", f"+{3600 * SECOND}")
    assert move("a")[0].result == "ok"
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
    assert move("a")[0].result == "ok"
    assert list(q.holding().sets["due:alone"]) == ["a"]


def test_a_job_that_runs_is_not_moved(q: Probe, move: Move) -> None:
    job = q.take("a")
    before = q.holding()
    assert move("a") == [("active", 0)]
    assert q.holding() == before
    assert q.settle(job, "complete") == "ok"


@pytest.mark.parametrize(("outcome", "state"), [("complete", "completed"), ("fail", "failed")])
def test_a_job_that_has_ended_is_not_moved(
    q: Probe, move: Move, outcome: Outcome, state: str
) -> None:
    q.settle(q.take("a"), outcome)
    before = q.holding()
    assert move("a") == [(state, 0)]
    assert q.holding() == before


def test_nor_is_one_that_was_cancelled_or_never_was(q: Probe, move: Move) -> None:
    q.add("a")
    q.cancel("a")
    before = q.holding()
    assert move("a", "nobody") == [("cancelled", 0), ("gone", 0)]
    assert q.holding() == before


def test_many_in_one_call_each_with_its_answer(q: Probe, move: Move) -> None:
    q.add("run", priority=9)
    q.claim()
    q.add("a", when=f"+{60 * SECOND}", priority=2)
    q.add("b", when=f"+{60 * SECOND}")
    words = move("b", "run", "nobody", "a", "b")
    assert [moved.result for moved in words] == ["ok", "active", "gone", "ok", "ok"]
    assert {words[0].due_us, words[3].due_us} == {*q.holding().due.values()}
    assert len({moved.due_us for moved in words if moved.result == "ok"}) == 1


def test_one_call_takes_a_bounded_number(q: Probe) -> None:
    ids = [f"j{i}" for i in range(job_commands.MOST_CHANGED)]
    q.add(*ids)
    with pytest.raises(UsageError, match="101 jobs are too many for one call"):
        job_commands.reschedule(q.keys, [*ids, "one-more"], "+0")
    with pytest.raises(UsageError, match="101 jobs are too many for one call"):
        job_commands.promote(q.keys, [*ids, "one-more"])
    moved = q.run(job_commands.reschedule(q.keys, ids, f"+{SECOND}"))
    assert {m.result for m in moved} == {"ok"}
    assert q.holding().due == {id: m.due_us for id, m in zip(ids, moved, strict=True)}
