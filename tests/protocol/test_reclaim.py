"""An expired lease is one more thing that is due: the next claim of anyone finds it."""

from __future__ import annotations

from msgspec.structs import replace

from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Lost
from tests.support.probe import BODY, LEASE, SECOND, Probe


def test_an_expired_lease_puts_the_job_back_at_its_old_due_time(q: Probe) -> None:
    (receipt,) = q.add("a", priority=7)
    q.claim("w1")
    q.move(LEASE + 1)
    q.claim("w2", 0)
    holding = q.holding()
    assert holding.sets["due:7"] == {"a": receipt.due_us}
    assert holding.sets["active"] == {}
    assert holding.total("reclaimed") == 1


def test_it_runs_again_before_what_became_due_later(q: Probe) -> None:
    q.add("z-oldest")
    q.claim("w1")
    q.add("a-newer")
    q.move(LEASE + 1)
    assert q.taken("w2") == ["z-oldest", "a-newer"]


def test_a_lease_that_holds_is_left_alone(q: Probe) -> None:
    q.take("a", "w1")
    q.move(LEASE - 1)
    assert q.taken("w2") == []
    assert q.where("a") == "active"
    assert q.holding().total("reclaimed") == 0


def test_a_reclaim_uses_no_attempt(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    (again,) = q.claim("w2").jobs
    assert (job.attempt, again.attempt) == (1, 1)
    assert q.settle(again, "retry", "+0") == "ok"
    (third,) = q.claim("w2").jobs
    assert third.attempt == 2


def test_a_reclaim_gives_a_new_token_and_the_old_one_is_lost(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    (again,) = q.claim("w2").jobs
    assert again.token > job.token
    assert q.settle(job, "complete", data=b"1") == "lost"
    assert q.extend(job) == ["lost"]
    assert q.where("a") == "active"
    assert q.settle(again, "complete", data=b"2") == "ok"
    assert q.holding().hashes["results"] == {"a": b"2"}


def test_the_old_token_is_lost_as_soon_as_the_lease_is_reclaimed(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    q.claim("w2", 0)
    assert q.settle(job, "complete") == "lost"
    assert q.extend(job) == ["lost"]
    assert q.where("a") == "due"


def test_until_then_a_late_settle_still_counts(q: Probe) -> None:
    """The job has not passed to anyone: refusing the outcome would only run it twice."""
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    assert q.settle(job, "complete") == "ok"
    assert q.taken("w2") == []


def test_a_worker_reclaims_its_own_expired_leases_too(q: Probe) -> None:
    q.take("a", "w1")
    q.move(LEASE + 1)
    assert q.taken("w1") == ["a"]


def test_one_claim_reclaims_ten_and_says_that_there_is_more(q: Probe) -> None:
    q.add_many(*(Prepared(f"j{i:02}", "+0", 5, BODY) for i in range(25)))
    assert len(q.claim("w1", 25).jobs) == 25
    q.move(LEASE + 1)
    seen = []
    for left in (15, 5, 0):
        claim = q.claim("w2", 0)
        assert len(q.zset("active")) == left
        seen.append(claim.more)
    assert seen == [True, True, False]
    assert q.taken("w2", 25) == [f"j{i:02}" for i in range(25)]


def test_a_claim_that_left_leases_behind_tells_another_worker(q: Probe) -> None:
    q.add_many(*(Prepared(f"j{i:02}", "+0", 5, BODY) for i in range(12)))
    q.claim("w1", 12)
    q.hear()
    q.move(LEASE + 1)
    assert q.claim("w2", 20).more
    assert q.wakeups() == 1


def test_the_oldest_leases_are_reclaimed_first(q: Probe) -> None:
    q.add("a")
    q.claim("w1")
    q.move(1)
    q.add_many(*(Prepared(f"j{i:02}", "+0", 5, BODY) for i in range(10)))
    q.claim("w1", 10)
    q.move(LEASE + 1)
    q.claim("w2", 0)
    assert q.where("a") == "due"
    assert list(q.zset("active")) == ["j09"]


def test_a_lease_without_a_readable_record_is_due_again_now(q: Probe) -> None:
    q.take("a", "w1")
    q.raw.hset(q.keys["run"], "a", "not a record of this version")
    q.move(LEASE + 1)
    claim = q.claim("w2", 0)
    assert q.holding().sets["due:5"] == {"a": claim.now_us}
    assert q.record("a").attempt == 0
    assert q.taken("w2") == ["a"]


def test_a_reclaimed_job_keeps_its_last_error(q: Probe) -> None:
    job = q.take("a", "w1")
    q.settle(job, "retry", "+0", b'{"type":"E","message":"first"}')
    q.claim("w1")
    q.move(LEASE + SECOND // SECOND)
    q.claim("w2")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.notes.error is not None
    assert snapshot.notes.error.message == "first"


# -- what the claim says of it


def test_a_claim_names_what_it_has_found_lost(q: Probe) -> None:
    job = q.take("a", "w1")
    q.settle(job, "retry", "+0", b'{"type":"E","message":""}')
    (job,) = q.claim("w1").jobs
    q.move(LEASE + 1)
    (lost,) = q.claim("w2", 0).lost
    assert lost == Lost(replace(job, body=b"", reclaims=1), "w1", has_failed=False)
    assert list(q.claim("w2", 0).lost) == []


def test_a_job_that_has_failed_by_that_is_named_so(q: Probe) -> None:
    q.add("a")
    found: list[Lost] = []
    for n in range(1, 6):  # two strikes, then three crashes alone
        assert q.taken(f"w{n}") == ["a"]
        q.leave(f"w{n}")
        q.move(LEASE + 1)
        found += q.claim("undertaker", 0).lost
    assert [(lost.worker, lost.has_failed) for lost in found] == [
        *((f"w{n}", False) for n in range(1, 5)),
        ("w5", True),
    ]
    assert [(lost.claimed.reclaims, lost.claimed.crashes) for lost in found] == [
        *((1, 0), (2, 0), (3, 1), (4, 2), (5, 3)),
    ]
    assert {lost.claimed.attempt for lost in found} == {1}
    assert q.where("a") == "failed"


def test_a_job_that_was_asked_to_stop_is_not_named(q: Probe) -> None:
    q.take("a", "w1")
    q.cancel("a")
    q.move(LEASE + 1)
    assert list(q.claim("w2", 0).lost) == []
    assert q.where("a") == "cancelled"


def test_a_repeat_of_the_claim_does_not_name_it_again(q: Probe) -> None:
    q.take("a", "w1")
    q.move(LEASE + 1)
    assert len(q.claim("w2", seq=1).lost) == 1
    assert list(q.claim("w2", seq=1).lost) == []
