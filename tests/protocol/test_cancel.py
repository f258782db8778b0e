"""Cancel: jobs are taken back before they run, and stay known as cancelled."""

from __future__ import annotations

import pytest

from bide.errors import UsageError
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Outcome
from tests.support.probe import BODY, LEASE, SECOND, Probe


@pytest.mark.parametrize("when", ["+0", f"+{60 * SECOND}"])
@pytest.mark.parametrize("priority", [0, 5, 9])
def test_a_job_that_waits_or_is_delayed_is_cancelled(q: Probe, when: str, priority: int) -> None:
    q.add("a", when=when, priority=priority)
    word, now, *verdicts = q.reply(job_commands.cancel(q.keys, ["a"]))
    assert (word, verdicts) == (b"ok", [b"ok"])
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {"cancelled": {"a": now}}
    assert holding.hashes["jobs"] == {"a": BODY}
    assert holding.total("cancelled") == 1


def test_a_cancelled_job_never_runs(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    q.cancel("a")
    q.move(3600)
    assert q.taken() == []


def test_a_repeat_says_that_it_is_cancelled_and_counts_nothing(q: Probe) -> None:
    q.add("a")
    q.cancel("a")
    before = q.holding()
    assert q.cancel("a") == ["cancelled"]
    assert q.cancel("a", "a") == ["cancelled", "cancelled"]
    assert q.holding() == before


def test_twice_in_one_call_counts_once(q: Probe) -> None:
    q.add("a")
    assert q.cancel("a", "a") == ["ok", "cancelled"]
    assert q.holding().total("cancelled") == 1


def test_a_job_that_runs_is_left_alone_where_that_is_wanted(q: Probe) -> None:
    job = q.take("a")
    before = q.holding()
    assert q.cancel("a", running=False) == ["active"]
    assert q.holding() == before
    assert q.settle(job, "complete") == "ok"


@pytest.mark.parametrize(("outcome", "state"), [("complete", "completed"), ("fail", "failed")])
def test_a_job_that_has_ended_is_not_cancelled(q: Probe, outcome: Outcome, state: str) -> None:
    q.settle(q.take("a"), outcome)
    before = q.holding()
    assert q.cancel("a", "nobody") == [state, "gone"]
    assert q.holding() == before


def test_a_job_that_waits_for_its_retry_keeps_its_error_when_cancelled(q: Probe) -> None:
    q.settle(q.take("a"), "retry", "+60000000", b'{"type":"E","message":"x"}')
    assert q.cancel("a") == ["ok"]
    holding = q.holding()
    assert holding.where("a") == "cancelled"
    assert holding.records["a"].attempt == 1
    assert q.errors("a") == ["x"]


def test_a_suspect_is_cancelled_like_any_other(q: Probe) -> None:
    q.add("a")
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert list(q.holding().sets["due:alone"]) == ["a"]
    assert q.cancel("a") == ["ok"]
    assert q.where("a") == "cancelled"


def test_many_in_one_call_each_with_its_answer(q: Probe) -> None:
    q.add("run", priority=9)
    q.claim()
    q.add("a", "b")
    words = q.cancel("a", "run", "nobody", "b")
    assert words == ["ok", "asked", "gone", "ok"]
    assert q.zset("cancelled").keys() == {"a", "b"}


def test_one_call_takes_a_bounded_number(q: Probe) -> None:
    ids = [f"j{i}" for i in range(job_commands.MOST_CHANGED)]
    q.add(*ids)
    with pytest.raises(UsageError, match="101 jobs are too many for one call"):
        job_commands.cancel(q.keys, [*ids, "one-more"])
    with pytest.raises(UsageError, match="101 jobs are too many for one call"):
        job_commands.delete(q.keys, [*ids, "one-more"])
    assert q.run(job_commands.cancel(q.keys, ids)) == ["ok"] * job_commands.MOST_CHANGED
