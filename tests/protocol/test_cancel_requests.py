"""A running job that is asked to stop: who is told, and where its attempt leads then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from tests.support.listener import ChannelListener
from tests.support.probe import BODY, LEASE, SECOND, Probe

ERROR = b'{"type":"E","message":"no"}'


def test_the_word_is_asked_and_the_job_runs_on(q: Probe) -> None:
    job = q.take("a")
    assert q.cancel("a") == ["asked"]
    holding = q.holding()
    assert holding.where("a") == "active"
    assert holding.total("cancelled") == 0
    assert holding.asked.keys() == {"a"}
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.asked
    assert q.settle(job, "cancel") == "ok"


def test_its_worker_is_told_over_the_channel(q: Probe, listener: ChannelListener) -> None:
    q.take("a")
    q.take("b")
    q.cancel("b", "nobody", "a")
    assert listener.heard() == [("asked", "b"), ("asked", "a")]


def test_a_repeat_asks_once_more_and_counts_nothing(q: Probe, listener: ChannelListener) -> None:
    """The message may have been what was lost."""
    q.take("a")
    first = q.cancel("a")
    before = q.holding()
    assert q.cancel("a") == first == ["asked"]
    after = q.holding()
    assert after.asked["a"] >= before.asked["a"]
    assert (after.sets, after.hashes, after.meta) == (before.sets, before.hashes, before.meta)
    assert listener.heard() == [("asked", "a")] * 2


def test_whoever_does_not_want_that_asks_nobody(q: Probe, listener: ChannelListener) -> None:
    q.take("a")
    assert q.cancel("a", running=False) == ["active"]
    assert q.holding().asked == {}
    assert listener.heard() == []


def test_a_job_that_does_not_run_is_not_asked(q: Probe, listener: ChannelListener) -> None:
    q.settle(q.take("done"), "complete")
    q.add("waits")
    q.cancel("waits", "done", "nobody")
    assert q.holding().asked == {}
    assert listener.heard() == []


def test_every_renewal_of_its_lease_says_so(q: Probe) -> None:
    q.add("a", "b")
    a, b = q.claim().jobs
    q.cancel("a")
    for _ in range(2):
        q.move(LEASE - 1)
        assert q.extend(a, b) == ["asked", "ok"]
    assert q.where("a") == "active", "it is renewed all the same"
    assert q.extend(replace(a, token=a.token - 1)) == ["lost"]


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
@pytest.mark.parametrize("when", ["+0", f"+{60 * SECOND}"])
def test_it_is_not_run_again(
    q: Probe, listener: ChannelListener, outcome: Outcome, when: str
) -> None:
    job = q.take("a")
    q.cancel("a")
    data = ERROR if outcome == "retry" else b""
    assert q.settle(job, outcome, when, data) == "ok"
    holding = q.holding()
    assert holding.where("a") == "cancelled"
    assert holding.asked == {}
    assert [holding.total(name) for name in ("cancelled", "retried")] == [1, 0]
    assert q.errors("a") == (["no"] if data else [])
    q.move(61)
    assert q.taken() == []


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
def test_whose_settle_is_ok_again_when_repeated_and_lost_in_another_way(
    q: Probe, outcome: Outcome
) -> None:
    job = q.take("a")
    q.cancel("a")
    q.settle(job, outcome, "+0")
    before = q.holding()
    assert q.settle(job, outcome, "+0") == "ok"
    assert q.settle(job, "complete") == "lost"
    assert q.settle(job, "cancel") == "lost"
    assert q.holding() == before


@pytest.mark.parametrize(("outcome", "state"), [("complete", "completed"), ("fail", "failed")])
def test_what_had_ended_before_it_could_ends_as_it_did(
    q: Probe, outcome: Outcome, state: str
) -> None:
    job = q.take("a")
    q.cancel("a")
    assert q.settle(job, outcome) == "ok"
    holding = q.holding()
    assert (holding.where("a"), holding.asked) == (state, {})
    assert holding.total("cancelled") == 0


def test_one_settle_of_many_turns_only_those_that_were_asked(q: Probe) -> None:
    q.add("a", "b", "c")
    a, b, c = q.claim().jobs
    q.cancel("b")
    settles = [Settle(job.id, job.token, "retry", "+0") for job in (a, b, c)]
    assert q.settle_many(*settles) == ["ok"] * 3
    assert [q.where(id) for id in "abc"] == ["due", "cancelled", "due"]
    assert q.holding().total("retried") == 2


def test_a_request_ends_with_the_attempt(q: Probe) -> None:
    """One that is retried afterwards runs in peace."""
    job = q.take("a")
    q.cancel("a")
    q.settle(job, "cancel")
    assert q.retry("a") == ["ok"]
    (again,) = q.claim().jobs
    assert q.extend(again) == ["ok"]
    assert q.settle(again, "retry", "+0") == "ok"
    assert q.where("a") == "due"


def test_if_its_worker_dies_it_is_cancelled(q: Probe) -> None:
    q.add("a", "b")
    q.claim("doomed")
    q.cancel("a")
    q.move(LEASE + 1)
    claim = q.claim("w2", 0)
    holding = q.holding()
    assert [holding.where(id) for id in "ab"] == ["cancelled", "due"]
    assert holding.sets["cancelled"] == {"a": claim.now_us}
    assert holding.asked == {}
    assert [holding.total(name) for name in ("cancelled", "reclaimed")] == [1, 2]
    assert [a.crashed for a in q.notes("a").attempts] == [True]


def test_also_one_that_would_have_failed_by_that(q: Probe) -> None:
    q.add("a")
    for crash in range(5):
        assert q.taken("doomed") == ["a"]
        if crash == 4:
            q.cancel("a")
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    holding = q.holding()
    assert holding.where("a") == "cancelled"
    assert (holding.total("failed"), q.errors("a")) == (0, [])


def test_its_old_worker_has_lost_it_then(q: Probe) -> None:
    job = q.take("a")
    q.cancel("a")
    q.move(LEASE + 1)
    q.claim("w2", 0)
    assert q.settle(job, "complete", data=b"1") == "lost"
    assert q.extend(job) == ["lost"]
    assert q.where("a") == "cancelled"


def test_a_repeated_claim_brings_a_job_that_was_asked_meanwhile(q: Probe) -> None:
    """Its worker learns of it with the first renewal."""
    q.add("a")
    first = q.claim("w1", seq=1)
    q.cancel("a")
    again = q.claim("w1", seq=1)
    assert again.jobs == first.jobs
    assert q.extend(again.jobs[0]) == ["asked"]


def test_a_hundred_in_one_call(q: Probe, listener: ChannelListener) -> None:
    ids = [f"j{i:02}" for i in range(job_commands.MOST_CHANGED)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = q.claim(count=len(ids)).jobs
    assert q.cancel(*ids) == ["asked"] * len(ids)
    assert listener.heard() == [("asked", id) for id in ids]
    assert q.extend(*jobs) == ["asked"] * len(ids)


def test_a_full_server_takes_the_request(q: Probe, listener: ChannelListener) -> None:
    job = q.take("a")
    q.raw.config_set("maxmemory", "1")
    try:
        assert q.cancel("a") == ["asked"]
        assert q.settle(job, "release") == "ok"
    finally:
        q.raw.config_set("maxmemory", "0")
    assert q.where("a") == "cancelled"
    assert listener.heard() == [("asked", "a")]
