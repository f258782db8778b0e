"""Limits: no more begins in a time, and no more runs at once, than the queue lets."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bide.errors import BideError, UsageError
from bide.model.limits import Limits
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Claim, Settle
from tests.support.probe import BODY, SECOND, Probe

HOUR = 3600 * SECOND
IDS = [f"job-{n:02}" for n in range(20)]


def begins_in(q: Probe, claim: Claim) -> float:
    """Seconds from a claim to the next deadline; the test itself takes some of them."""
    assert claim.deadline_us > claim.now_us
    return math.ceil((claim.deadline_us - claim.now_us) / SECOND * 2) / 2


# -- what is set


def test_a_limit_is_read_back_as_it_was_set_and_removed(q: Probe) -> None:
    assert q.limits == Limits()
    q.limit(rate="100/s", burst=5, concurrency=3)
    assert q.limits == Limits("100/s", 5, 3)
    q.limit(concurrency=7)
    assert q.limits == Limits("100/s", 5, 7)
    q.limit(rate=None)
    assert q.limits == Limits(None, None, 7)
    q.limit(concurrency=None)
    assert q.limits == Limits()
    q.claim()
    assert not {"limited", "rate", "spent", "concurrency"} & q.holding().meta.keys()


@pytest.mark.parametrize("rate", ["0 1 1", "1 0 1", "1 1 0", "1 1", "x", "1 1 1 1", "9" * 60])
def test_a_rate_that_cannot_be_meant_is_refused(q: Probe, rate: str) -> None:
    with pytest.raises(BideError, match="BADARG limit rate"):
        q.run(job_commands.limit(q.keys, rate, "none"))
    assert "rate" not in q.holding().meta


@pytest.mark.parametrize("most", ["0", "-1", "1.5", "x", "9" * 10])
def test_a_number_at_once_that_cannot_be_meant_is_refused(q: Probe, most: str) -> None:
    with pytest.raises(BideError, match="BADARG limit concurrency"):
        q.run(job_commands.limit(q.keys, "none", most))
    assert "concurrency" not in q.holding().meta


def test_limits_can_be_changed_on_a_queue_without_jobs_and_wake_who_may_go_on(q: Probe) -> None:
    q.limit(rate="1/h")
    assert q.hear() == "-"
    q.add("a", "b")
    assert q.taken() == ["a"]
    q.hear()
    q.limit(rate=None)
    assert q.hear() == "-"
    assert q.taken() == ["b"]


# -- the rate


def test_as_many_begin_as_the_rate_lets_and_the_next_when_a_token_has_come(q: Probe) -> None:
    q.limit(rate="2/10s")
    q.add(*IDS[:5])
    claim = q.claim(lease=60)
    assert [job.id for job in claim.jobs] == IDS[:1]
    assert (begins_in(q, claim), claim.more) == (5, False)
    assert q.taken() == []
    q.move(5)
    assert q.taken() == IDS[1:2]
    q.move(4.9)
    assert q.taken() == []
    q.move(0.1)
    assert q.taken() == IDS[2:3]


def test_a_burst_begins_at_once_and_comes_back_bit_by_bit(q: Probe) -> None:
    q.limit(rate="1/s", burst=3)
    q.add(*IDS)
    assert q.taken() == IDS[:3]
    q.move(2)
    assert q.taken() == IDS[3:5]
    q.move(3600)
    assert q.taken() == IDS[5:8]
    assert begins_in(q, q.claim()) == 1


def test_nothing_is_lost_to_rounding_over_many_periods(q: Probe) -> None:
    """Three in a second: each third of one cannot be told in microseconds."""
    q.limit(rate="3/s", burst=3)
    q.add(*IDS[:3])
    q.claim("w1", 1)
    full_at, taken, _ = map(int, q.holding().meta["spent"].split())
    assert taken == 1
    q.claim("w1", 1)
    q.claim("w1", 1)
    assert q.holding().meta["spent"].split()[:2] == [str(full_at + SECOND), "0"]


def test_the_deadline_is_not_before_what_is_due_and_not_before_the_rate(q: Probe) -> None:
    q.limit(rate="1/10s")
    q.add("a")
    q.add("b", when="+30000000")
    assert begins_in(q, q.claim(lease=60)) == 30  # not when the token comes
    q.add("c", when="+5000000")
    assert begins_in(q, q.claim(lease=60)) == 10  # not when it is due


def test_to_set_the_same_rate_again_sets_nothing_free(q: Probe) -> None:
    q.limit(rate="1/h")
    q.add(*IDS[:3])
    assert len(q.claim(lease=7200).jobs) == 1
    q.limit(rate="1/h")
    assert q.taken() == []
    q.limit(rate="1/30m")
    claim = q.claim(lease=7200)
    assert (claim.jobs, begins_in(q, claim)) == ([], 1800)


def test_the_tokens_of_a_faster_rate_come_from_when_it_is_set(q: Probe) -> None:
    q.limit(rate="1/h")
    q.add(*IDS[:5])
    assert q.taken() == IDS[:1]
    q.limit(rate="1/s", burst=2)
    q.move(2)
    assert q.taken() == IDS[1:3]


def test_to_set_the_same_rate_again_leaves_what_was_taken_as_it_was(q: Probe) -> None:
    q.limit(rate="3/h", burst=3)
    q.add("a", "b")
    q.taken("w1", 1)
    before = q.holding().meta["spent"]
    q.limit(rate="3/h", burst=3, concurrency=2)
    assert q.holding().meta["spent"] == before


def test_however_far_the_clock_is_set_back_the_next_waits_for_no_longer_than_a_token_takes(
    q: Probe,
) -> None:
    q.limit(rate="2/10s", burst=2)
    q.add(*IDS[:5])
    q.taken()
    q.move(-3600)
    q.add("z")
    claim = q.claim(lease=60)
    assert (claim.jobs, begins_in(q, claim)) == ([], 5)
    q.move(5)
    assert q.taken() == ["z"]


def test_a_repeat_of_a_claim_takes_no_token(q: Probe) -> None:
    q.limit(rate="1/s", burst=2)
    q.add(*IDS[:3])
    first = q.claim("w1", 1, seq=1)
    assert q.claim("w1", 1, seq=1).jobs == first.jobs
    assert q.taken("w2") == IDS[1:2]


def test_what_is_given_back_unbegun_gives_its_token_back(q: Probe) -> None:
    q.limit(rate="1/h", burst=2)
    q.add(*IDS[:4])
    jobs = q.claim().jobs
    assert q.settle_many(*(Settle(job.id, job.token, "release") for job in jobs)) == ["ok", "ok"]
    assert q.taken() == IDS[:2]


def test_what_had_begun_and_is_given_back_does_not(q: Probe) -> None:
    q.limit(rate="1/h")
    (job,) = [q.take("a")]
    assert q.settle(job, "release", "+0") == "ok"
    assert q.taken() == []


def test_what_no_worker_serves_gives_its_token_back(q: Probe) -> None:
    q.limit(rate="1/h")
    job = q.take("a")
    assert q.settle(job, "snooze", "+0", b'{"type":"TaskNotFound","message":"no"}') == "ok"
    assert q.taken() == ["a"]


def test_a_token_does_not_come_back_after_another_was_taken(q: Probe) -> None:
    """By then the bucket had been full again: with one more, two would begin at once."""
    q.limit(rate="1/10s")
    early = q.take("a")
    q.move(9.99)
    q.extend(early)
    q.move(0.02)
    late = q.take("b")
    assert q.settle(early, "release") == "ok"
    assert q.taken() == []
    q.settle(late, "complete")


def test_a_token_comes_back_once(q: Probe) -> None:
    q.limit(rate="1/h", burst=2)
    q.add(*IDS[:5])
    job = q.claim("w1", 1).jobs[0]
    q.settle(job, "release")
    q.settle(job, "release")
    assert q.taken() == IDS[:2]


# -- how many at once


def test_no_more_run_at_once_than_the_queue_lets(q: Probe) -> None:
    q.limit(concurrency=2)
    q.add(*IDS[:5])
    jobs = q.claim("w1", 10).jobs
    assert [job.id for job in jobs] == IDS[:2]
    q.hear()
    assert q.taken("w2") == []
    assert q.hear() != "-"  # it may call the other to keep the time with it
    q.settle(jobs[0], "complete")
    assert q.hear() == "-"
    assert q.taken("w2") == IDS[2:3]


def test_who_ends_a_job_tells_nobody_while_slots_were_free_anyway(q: Probe) -> None:
    q.limit(concurrency=3)
    job = q.take("a")
    q.hear()
    q.settle(job, "complete")
    assert q.wakeups() == 0


def test_while_nothing_may_begin_the_only_deadline_is_a_leases_end(q: Probe) -> None:
    q.limit(concurrency=1)
    q.add("a", "b")
    q.claim("w1", lease=8)
    claim = q.claim("w2", lease=8)
    assert (begins_in(q, claim), claim.more) == (8, False)


def test_the_slots_of_a_dead_worker_are_filled_by_the_claim_that_reclaims_them(q: Probe) -> None:
    q.limit(concurrency=2)
    q.add(*IDS[:4])
    q.claim("w1", 2)
    q.move(11)
    assert q.taken("w2") == IDS[:2]
    assert q.taken("w3") == []


def test_fewer_than_run_may_be_set(q: Probe) -> None:
    q.add(*IDS[:4])
    jobs = q.claim("w1", 3).jobs
    q.limit(concurrency=1)
    q.settle_many(*(Settle(job.id, job.token, "complete") for job in jobs[:2]))
    assert q.taken() == []
    q.settle(jobs[2], "complete")
    assert q.taken() == IDS[3:4]


def test_a_suspect_counts_too_and_no_worker_drains_for_it_while_it_may_not_begin(q: Probe) -> None:
    q.add("a", "b")
    for _ in range(2):
        q.claim("w1", 2)
        q.move(11)
    q.limit(rate="1/h")
    assert q.taken("w1") == ["a"]  # the next of its kind waits for an hour
    q.move(12)
    claim = q.claim("w2", 1, busy=1)
    assert (claim.drain, claim.jobs) == (False, [])


# -- a hold


def test_a_job_holds_its_queue_and_is_due_when_that_ends(q: Probe) -> None:
    q.add("a", "b")
    job = q.claim("w1", 1).jobs[0]
    assert q.settle(job, "hold", "+30000000") == "ok"
    assert q.limits.held_until is not None
    q.hear()
    claim = q.claim("w2")
    assert (claim.jobs, begins_in(q, claim), claim.more) == ([], 30, False)
    assert q.wakeups() == 0
    q.move(30)
    assert q.taken("w2") == ["b", "a"]
    assert not {"held_until", "limited"} & q.holding().meta.keys()
    assert q.record("a").attempt == 1


def test_a_hold_is_repeated_without_harm_and_the_longest_counts(q: Probe) -> None:
    q.add("a", "b")
    one, other = q.claim("w1", 2).jobs
    q.settle(one, "hold", "+30000000")
    held = q.holding().meta["held_until"]
    q.move(1)
    assert q.settle(one, "hold", "+30000000") == "ok"
    q.settle(other, "hold", "+10000000")
    assert q.holding().meta["held_until"] == held


def test_resume_ends_a_hold(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "hold", "+30000000")
    q.add("b")
    q.hear()
    q.run(job_commands.resume(q.keys))
    assert q.hear() == "-"
    assert q.taken() == ["b"]


def test_a_job_that_was_asked_to_stop_holds_the_queue_all_the_same(q: Probe) -> None:
    job = q.take("a")
    q.cancel("a")
    assert q.settle(job, "hold", "+30000000") == "ok"
    assert q.where("a") == "cancelled"
    assert q.limits.held_until is not None


# -- who is told


def with_constraints(constraints: str) -> list[Prepared]:
    return [Prepared(id, "+0", 5, BODY, constraints=constraints) for id in IDS]


@pytest.mark.parametrize("constraints", ["", "g=one", f"x=+{HOUR}"])
def test_an_enqueue_wakes_nobody_while_a_timekeeper_waits_for_the_rate(
    q: Probe, constraints: str
) -> None:
    q.limit(rate="1/s")
    q.add("a", "b")
    q.claim("w1")
    q.claim("w2")
    q.hear()
    q.add_many(*with_constraints(constraints))
    assert q.wakeups() == 0


@pytest.mark.parametrize("constraints", ["", "g=one", f"x=+{HOUR}"])
def test_an_enqueue_wakes_nobody_while_a_timekeeper_waits_for_the_end_of_a_hold(
    q: Probe, constraints: str
) -> None:
    job = q.take("a")
    q.add("b")
    q.settle(job, "hold", "+1000000")
    q.claim("w1")
    q.claim("w2")
    q.hear()
    q.add_many(*with_constraints(constraints))
    assert q.wakeups() == 0


def test_what_may_expire_before_the_limits_let_it_start_wakes_someone(q: Probe) -> None:
    q.limit(rate="1/h")
    q.add("a")
    q.claim("w1")
    q.hear()
    q.add_many(*with_constraints(f"x=+{SECOND // 10}"))
    assert q.hear() == "-"


def test_a_worker_that_is_full_calls_another_for_what_the_rate_will_let_begin(q: Probe) -> None:
    q.limit(rate="1/s")
    q.claim("w2")  # waits
    q.add("a", "b")
    q.hear()
    q.claim("w1", 1)  # is full now
    assert q.hear() is not None


def test_counts_say_what_holds_back(q: Probe) -> None:
    q.limit(rate="1/10s")
    assert q.limits.limited_until is None
    taken = q.take("a").token
    limits = q.limits
    assert limits.limited_until is not None
    assert round(limits.limited_until.timestamp() * SECOND) == taken + 10 * SECOND


# -- what is said in Python


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rate": "100"}, "rate must be how many in which time"),
        ({"rate": 100}, "rate must be how many in which time"),
        ({"rate": "0/s"}, "from 1 to"),
        ({"rate": "9999999/s"}, "from 1 to"),
        ({"rate": "2/us"}, "over a million"),
        ({"rate": "0.5/s"}, "rate must be"),
        ({"rate": "1/s", "burst": 0}, "burst must be"),
        ({"rate": "1/52w", "burst": 1000}, "hundred years"),
        ({"burst": 3}, "give it along with rate="),
        ({"rate": None, "burst": 3}, "give it along with rate="),
        ({"concurrency": 0}, "concurrency must be"),
        ({"concurrency": True}, "concurrency must be"),
        ({"max_activ": 3}, "There is no option"),
        ({}, "Give a setting to configure"),
    ],
)
def test_what_cannot_be_meant_is_refused(q: Probe, settings: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        q.limit(**settings)


@pytest.mark.parametrize(
    ("rate", "read", "burst"),
    [
        ("100/s", "100/s", 1),
        ("1000/s", "1000/s", 10),
        (" 5 / 10m", "5/10m", 1),
        ("7/1h30m", "7/90m", 1),
        ("3/250ms", "3/250ms", 1),
        ("86400/d", "86400/d", 1),
    ],
)
def test_a_rate_and_what_comes_at_once_by_default(
    q: Probe, rate: str, read: str, burst: int
) -> None:
    q.limit(rate=rate)
    assert q.limits == Limits(read, burst)
