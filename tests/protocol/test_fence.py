"""A settle carries the token of its claim: it counts once, and only for whoever holds the job.

`ok`: applied now, or by an earlier copy of this very settle. `lost`: the lease has passed to
another, or the job has ended in another way. `gone`: the job is no more.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Outcome, Settle
from tests.support.probe import LEASE, Probe

OUTCOMES: list[Outcome] = ["complete", "retry", "fail", "snooze", "release", "cancel"]
WHEN = {"retry": "+60000000", "snooze": "+60000000"}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_repeat_is_ok_and_changes_nothing(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    assert q.settle(job, outcome, WHEN.get(outcome, "")) == "ok"
    before = q.holding()
    q.move(3)
    for _ in range(2):
        assert q.settle(job, outcome, WHEN.get(outcome, "")) == "ok"
    after = q.holding()
    assert (after.sets, after.hashes) == (before.sets, before.hashes)
    assert {**after.meta, "test_offset_us": "0"} == {**before.meta, "test_offset_us": "0"}


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
def test_a_repeat_is_ok_even_when_the_job_was_taken_again_since(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    assert q.settle(job, outcome, "+0") == "ok"
    (again,) = q.claim("w2").jobs
    before = q.holding()
    assert q.settle(job, outcome, "+0") == "ok"
    assert q.holding() == before
    assert q.settle(again, "complete") == "ok"


def test_a_repeat_is_ok_when_the_job_was_taken_again_and_settled_since(q: Probe) -> None:
    job = q.take("a")
    assert q.settle(job, "retry", "+0") == "ok"
    (again,) = q.claim("w2").jobs
    assert q.settle(again, "complete") == "ok"
    assert q.settle(job, "retry", "+0") == "ok"
    assert q.where("a") == "completed"


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", OUTCOMES)
def test_another_outcome_under_the_same_token_is_lost(
    q: Probe, first: Outcome, second: Outcome
) -> None:
    job = q.take("a")
    assert q.settle(job, first, WHEN.get(first, "")) == "ok"
    before = q.holding()
    verdict = q.settle(job, second, WHEN.get(second, ""))
    assert verdict == ("ok" if first == second else "lost")
    assert q.holding() == before


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_token_settles_nothing(q: Probe, outcome: Outcome, difference: int) -> None:
    job = q.take("a")
    before = q.holding()
    other = replace(job, token=job.token + difference)
    assert q.settle(other, outcome, WHEN.get(outcome, "")) == "lost"
    assert q.holding() == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_one_that_was_paused_past_its_lease_is_told_so(q: Probe, outcome: Outcome) -> None:
    job = q.take("a", "paused")
    q.move(LEASE + 1)
    (again,) = q.claim("w2").jobs
    before = q.holding()
    assert q.settle(job, outcome, WHEN.get(outcome, "")) == "lost"
    assert q.holding() == before
    assert q.settle(again, outcome, WHEN.get(outcome, "")) == "ok"


def test_the_outcome_of_a_claim_before_the_last_two_is_forgotten(q: Probe) -> None:
    """The record remembers two settles: a repeat has ten seconds, not the life of a job."""
    first = q.take("a")
    q.settle(first, "release")
    (second,) = q.claim().jobs
    q.settle(second, "release")
    (third,) = q.claim().jobs
    assert q.settle(second, "release") == "ok"
    assert q.settle(first, "release") == "lost"
    assert q.settle(third, "complete") == "ok"


def test_a_job_that_waits_cannot_be_settled(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "release")
    assert q.settle(job, "complete") == "lost"
    assert q.where("a") == "due"


def test_a_job_that_never_ran_has_no_token_to_settle_with(q: Probe) -> None:
    q.add("a")
    assert q.settle_many(Settle("a", 0, "complete")) == ["gone"]
    assert q.where("a") == "due"


def test_a_job_that_was_deleted_is_gone(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "fail")
    q.run(job_commands.delete(q.keys, ["a"]))
    assert q.settle(job, "fail") == "gone"
    assert q.where("a") is None


def test_a_job_that_was_cancelled_after_its_lease_ended_is_lost(q: Probe) -> None:
    job = q.take("a")
    q.move(LEASE + 1)
    q.claim("w2", 0)
    assert q.cancel("a") == ["ok"]
    assert q.settle(job, "complete") == "lost"
    assert q.where("a") == "cancelled"


def test_the_same_settle_twice_in_one_call_counts_once(q: Probe) -> None:
    job = q.take("a")
    settle = Settle("a", job.token, "complete", "", b"1")
    assert q.settle_many(settle, settle) == ["ok", "ok"]
    assert q.holding().total("completed") == 1


def test_of_two_outcomes_in_one_call_the_first_counts(q: Probe) -> None:
    job = q.take("a")
    verdicts = q.settle_many(
        Settle("a", job.token, "complete", "", b"1"), Settle("a", job.token, "fail")
    )
    assert verdicts == ["ok", "lost"]
    holding = q.holding()
    assert holding.where("a") == "completed"
    assert (holding.total("completed"), holding.total("failed")) == (1, 0)


def test_a_stale_and_a_good_token_in_one_call(q: Probe) -> None:
    stale = q.take("a", "paused")
    q.move(LEASE + 1)
    (good,) = q.claim("w2").jobs
    verdicts = q.settle_many(Settle("a", stale.token, "fail"), Settle("a", good.token, "complete"))
    assert verdicts == ["lost", "ok"]
    assert q.where("a") == "completed"
