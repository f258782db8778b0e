"""The server's clock may jump: nothing runs early, and nothing is reclaimed from who still lives.

A mark in the queue, written by claims and extends at most once a second, shows the jump.
"""

from __future__ import annotations

import pytest

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, LEASE, SECOND, Probe

LEASE_US = round(LEASE * SECOND)


def meta(q: Probe, field: str) -> int:
    return int(q.holding().meta[field])


def test_the_mark_is_written_at_most_once_a_second(q: Probe) -> None:
    first = q.claim().now_us
    assert meta(q, "clock") == first
    q.claim()
    assert meta(q, "clock") == first
    q.move(1)
    second = q.claim().now_us
    assert meta(q, "clock") == second


def test_extends_write_it_too(q: Probe) -> None:
    """A worker whose slots are full claims nothing, but renews."""
    job = q.take("a")
    for _ in range(5):
        q.move(LEASE - 1)
        q.extend(job)
    q.move(LEASE + 1)
    assert q.taken("w2") == ["a"], "no jump, however long ago the last claim"


# -- forward


def test_after_a_jump_forward_no_lease_is_reclaimed_for_the_time_of_one(q: Probe) -> None:
    """Its holder lives, and had no chance to renew it."""
    job = q.take("a", "w1")
    q.move(3600)
    claim = q.claim("w2")
    assert claim.jobs == []
    assert claim.now_us < claim.until_us <= claim.now_us + LEASE_US
    assert q.where("a") == "active"
    q.move(LEASE - 1)
    assert q.taken("w2") == []
    assert q.extend(job) == ["ok"]
    q.move(2)
    assert q.taken("w2") == []
    assert q.settle(job, "complete") == "ok"


def test_and_then_it_is(q: Probe) -> None:
    q.take("a", "w1")
    q.move(3600)
    assert q.taken("w2") == []
    q.move(LEASE)
    assert q.taken("w2") == ["a"]


def test_a_lease_that_had_ended_before_the_jump_is_reclaimed_at_once(q: Probe) -> None:
    """Its holder had its chance."""
    q.add("dead")
    q.claim("w1", lease=1)
    q.add("alive")
    (alive,) = q.claim("w2", lease=60).jobs
    q.move(2)
    assert q.extend(alive, lease=60) == ["ok"]
    q.move(3600)
    q.claim("w3", 0)
    assert q.where("dead") == "due"
    assert q.where("alive") == "active"


def test_the_calm_is_five_minutes_at_most_however_long_the_leases(q: Probe) -> None:
    q.add("a")
    q.claim("w1", lease=3600)
    q.move(7200)
    q.claim("w2", lease=3600)
    for _ in range(10):
        q.move(29)
        q.claim("w2", 0)
        assert q.where("a") == "active"
    q.move(11)
    assert q.taken("w2") == ["a"]


def test_an_extend_that_meets_the_jump_first_calms_as_well(q: Probe) -> None:
    q.add("a", "b")
    a, _b = q.claim("w1").jobs
    q.move(3600)
    assert q.extend(a) == ["ok"]
    assert q.taken("w2") == []
    assert q.where("b") == "active"


def test_a_stretch_of_thirty_seconds_is_no_jump(q: Probe) -> None:
    q.take("a", "w1")
    q.move(29)
    assert q.taken("w2") == ["a"]
    assert "calm_until" not in q.holding().meta


def test_jobs_that_fall_due_inside_a_jump_run(q: Probe) -> None:
    q.claim("w1")
    q.add("a", when=f"+{1800 * SECOND}")
    q.move(3600)
    assert q.taken("w1") == ["a"]


def test_a_jump_is_reported(q: Probe) -> None:
    q.claim("w1")
    q.move(3600)
    at = q.claim("w1").now_us
    assert meta(q, "gap_at") == at
    assert q.run(job_commands.counts(q.keys)).gap_us == pytest.approx(
        3600 * SECOND, abs=30 * SECOND
    )
    q.move(-600)
    q.claim("w1")
    assert q.run(job_commands.counts(q.keys)).gap_us == pytest.approx(
        -600 * SECOND, abs=30 * SECOND
    )


# -- backward


def test_nothing_runs_early_when_the_clock_was_set_back(q: Probe) -> None:
    q.claim("w1")
    q.add("a")
    q.move(-60)
    assert q.taken("w1") == []
    q.move(60)
    assert q.taken("w1") == ["a"]


def test_leases_from_before_are_cut_to_the_length_of_one(q: Probe) -> None:
    q.claim("w2")
    q.take("a", "w1")
    q.move(-3600)
    q.claim("w2")
    now = q.claim("w2").now_us
    assert q.zset("active") == {"a": now + LEASE_US}
    q.move(LEASE + 1)
    assert q.taken("w2") == ["a"], "it was due, whatever the clock says now"


def test_whoever_renews_in_time_keeps_the_job(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(-3600)
    q.claim("w2")
    q.move(LEASE - 1)
    assert q.extend(job) == ["ok"]
    q.move(2)
    assert q.taken("w2") == []
    assert q.settle(job, "complete") == "ok"


def test_the_longest_lease_that_anyone_uses_is_respected(q: Probe) -> None:
    q.add("a")
    q.claim("patient", lease=60)
    q.move(-3600)
    q.claim("w2")
    now = q.claim("w2").now_us
    assert q.zset("active") == {"a": now + 60 * SECOND}


def test_deadlines_set_before_are_dropped(q: Probe) -> None:
    for worker in ("w1", "w2", "w3"):
        q.claim(worker)
    q.move(-60)
    claim = q.claim("w4")
    assert q.zset("keep") == {"w4": claim.now_us + 5 * SECOND}
    assert q.zset("park") == {}


def test_a_claim_cuts_ten_leases_and_says_that_there_is_more(q: Probe) -> None:
    q.add_many(*(Prepared(f"j{i:02}", "+0", 5, BODY) for i in range(25)))
    q.claim("w1", 25)
    q.move(-3600)
    q.claim("w2", 0)
    seen = []
    for left in (15, 5, 0):
        claim = q.claim("w2", 0)
        far = claim.now_us + LEASE_US
        assert sum(end > far for end in q.zset("active").values()) == left
        seen.append(claim.more)
    assert seen == [True, True, False]


def test_a_second_smaller_step_back_does_not_end_the_cutting(q: Probe) -> None:
    q.take("a", "w1")
    q.move(-3600)
    q.claim("w2", 0)
    q.move(-10)
    q.claim("w2", 0)
    q.move(60)
    q.claim("w2", 0)
    now = q.claim("w2", 0).now_us
    assert q.zset("active")["a"] <= now + LEASE_US


def test_setting_the_clock_right_again_after_a_jump_ends_the_calm(q: Probe) -> None:
    """Else nothing would be reclaimed for the length of the jump."""
    q.claim("w1")
    q.move(3600)
    q.claim("w1")
    q.move(-3600)
    q.claim("w1")
    q.take("a", "doomed")
    q.move(LEASE + 1)
    assert q.taken("w1") == ["a"]


def test_and_with_the_very_claim_that_notices(q: Probe) -> None:
    q.take("a", "doomed")
    q.move(3600)
    q.claim("w1")
    q.move(-3600 + LEASE + 1)
    assert q.taken("w1") == ["a"]


def test_a_step_back_of_two_seconds_is_nothing(q: Probe) -> None:
    q.claim("w1")
    q.claim("w2")
    q.move(-1.5)
    q.claim("w3")
    assert len(q.zset("keep")) == 3
    assert "rewound_until" not in q.holding().meta


def test_a_released_job_is_due_again_at_once_though_the_clock_was_set_back(q: Probe) -> None:
    q.add("a")
    (job,) = q.claim("w1").jobs
    q.move(-60)
    assert q.settle(job, "release") == "ok"
    assert q.taken("w1") == ["a"]
