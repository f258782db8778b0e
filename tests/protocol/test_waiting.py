"""Waiting: two workers keep the time, all others sleep until they are woken.

For every deadline a timekeeper claims at it, and a backup 50 ms after it, should the timekeeper
have died. All others park, one waking after another. Whoever claims renews its own part, and sees
that the other parts are played.
"""

from __future__ import annotations

from bide.protocol.commands import jobs as job_commands
from tests.support.probe import LEASE, SECOND, Probe

GRACE = 50_000
LONGEST = 10 * SECOND
HORIZON = 2 * SECOND
ALONE = 5 * SECOND


def settle_down(q: Probe, first: str, second: str, *others: str) -> None:
    """All claim, and the first, which was alone at first, is called and claims again."""
    q.claim(first)
    q.claim(second)
    assert q.hear() == second
    q.claim(first)
    for worker in others:
        q.claim(worker)


def test_the_first_keeps_the_second_backs_it_up_the_others_sleep(q: Probe) -> None:
    (receipt,) = q.add("a", when=f"+{SECOND}")
    first, second, third, fourth = (q.claim(w) for w in ("w1", "w2", "w3", "w4"))
    assert q.zset("keep") == {"w1": receipt.due_us, "w2": receipt.due_us + GRACE}
    assert q.zset("park").keys() == {"w3", "w4"}
    assert [c.until_us for c in (first, second)] == list(q.zset("keep").values())
    assert [c.until_us for c in (third, fourth)] == list(q.zset("park").values())
    assert {c.deadline_us for c in (first, second, third, fourth)} == {receipt.due_us}


def test_sleepers_wake_one_after_another(q: Probe) -> None:
    """So that someone looks every two seconds even if all timekeepers are gone."""
    settle_down(q, "w0", "w1")
    claims = {worker: q.claim(worker) for worker in (f"w{i}" for i in range(2, 9))}
    park = q.zset("park")
    first = claims["w2"].now_us
    assert [until - first for until in park.values()][:5] == [i * HORIZON for i in range(1, 6)]
    for worker in ("w7", "w8"):
        assert park[worker] == claims[worker].now_us + LONGEST, "and none sleeps longer than ten"


def test_with_nothing_due_a_timekeeper_looks_again_in_two_seconds(q: Probe) -> None:
    q.claim("w1")
    claim = q.claim("w2")
    assert claim.until_us == claim.now_us + HORIZON


def test_and_one_that_is_alone_in_five(q: Probe) -> None:
    claim = q.claim("w1")
    assert q.zset("keep") == {"w1": claim.now_us + ALONE}


def test_which_is_called_when_another_comes(q: Probe) -> None:
    """For the other needs a backup."""
    settle_down(q, "w1", "w2")
    keep = q.zset("keep")
    assert list(keep) == ["w2", "w1"]
    assert keep["w1"] - keep["w2"] < SECOND


def test_and_so_it_does_with_a_deadline_far_off(q: Probe) -> None:
    q.add("a", when=f"+{3600 * SECOND}")
    claim = q.claim("w1")
    assert claim.until_us == claim.now_us + ALONE


def test_a_worker_that_claims_again_has_one_part_only(q: Probe) -> None:
    settle_down(q, "w1", "w2", "w3")
    for _ in range(3):
        for worker in ("w3", "w1", "w2", "w1"):
            q.claim(worker)
            keep, park = q.zset("keep"), q.zset("park")
            assert keep.keys() | park.keys() == {"w1", "w2", "w3"}
            assert not keep.keys() & park.keys()
            assert len(keep) == 2


def test_a_worker_that_fills_all_its_slots_keeps_nothing(q: Probe) -> None:
    q.claim("w1")
    q.add("a")
    assert q.taken("w1", 1) == ["a"]
    assert q.zset("keep") == {}
    assert q.zset("park") == {}


def test_one_that_takes_a_suspect_keeps_nothing(q: Probe) -> None:
    q.add("a")
    for _ in range(2):
        q.claim("doomed", 1)
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert q.claim("w1", 10).alone
    assert "w1" not in q.zset("keep")
    assert "w1" not in q.zset("park")


def test_an_earlier_deadline_finds_a_timekeeper_though_there_are_two(q: Probe) -> None:
    """There is no timekeeper for then, so whoever learns of it becomes that."""
    q.claim("w1")
    q.claim("w2")
    (receipt,) = q.add("a", when=f"+{SECOND}")
    q.hear()
    claim = q.claim("w3")
    assert claim.until_us == receipt.due_us
    assert q.zset("keep")["w3"] == receipt.due_us
    assert len(q.zset("keep")) == 3
    assert q.hear() == "w3", "which calls for a backup: the others come too late for that"
    assert q.claim("w1").until_us == receipt.due_us + GRACE
    assert q.wakeups() == 0


def test_a_deadline_that_is_covered_needs_no_third_timekeeper(q: Probe) -> None:
    settle_down(q, "w1", "w2")
    q.add("a", when=f"+{30 * SECOND}")
    q.claim("w3")
    assert q.zset("keep").keys() == {"w1", "w2"}


def test_a_deadline_that_was_missed_is_dropped_after_fifty_milliseconds(q: Probe) -> None:
    now = q.now
    q.raw.zadd(q.keys["keep"], {"dead": now - GRACE - 1, "late": now + SECOND})
    q.claim("w1", 0)
    assert q.zset("keep").keys() == {"late"}


def test_until_then_it_may_yet_be_kept(q: Probe) -> None:
    """A worker that is a little late must not lose its part: two would look at each deadline."""
    deadline = q.now + 20 * SECOND
    q.raw.zadd(q.keys["keep"], {"late": deadline})
    q.move(20)
    now = q.claim("w1", 0).now_us
    assert now > deadline
    assert ("late" in q.zset("keep")) == (now - deadline <= GRACE)


def test_a_sleeper_is_recruited_when_a_timekeeper_is_missing(q: Probe) -> None:
    settle_down(q, "w1", "w2", "w3")
    assert q.wakeups() == 0
    q.add("a")
    q.hear()
    assert q.taken("w1", 1) == ["a"], "w1 keeps the time no more"
    assert q.hear() == "w1"
    q.claim("w3")
    assert q.zset("keep").keys() == {"w2", "w3"}


def test_nobody_is_recruited_when_nobody_sleeps(q: Probe) -> None:
    q.claim("w1")
    q.claim("w2")
    q.add("a")
    q.hear()
    assert q.taken("w1", 1) == ["a"]
    assert q.wakeups() == 0


def test_a_sleeper_that_is_long_gone_is_not_recruited(q: Probe) -> None:
    q.raw.zadd(q.keys["park"], {"dead": q.now + SECOND})
    q.move(1)
    q.claim("w1")
    assert q.wakeups() == 0
    assert q.zset("park") == {}


def test_a_sleeper_is_recruited_as_the_backup(q: Probe) -> None:
    """With one timekeeper only, its death would leave nobody to notice."""
    q.raw.zadd(q.keys["park"], {"sleeper": q.now + LONGEST})
    q.claim("w1")
    assert q.hear() == "w1"


def test_with_both_timekeepers_dead_a_sleeper_takes_over(q: Probe) -> None:
    settle_down(q, "w1", "w2", "w3", "w4")
    q.move(2.1)
    q.claim("w3")
    assert q.zset("keep").keys() == {"w3"}
    assert q.hear() == "w3", "it calls the other sleeper"
    q.claim("w4")
    assert q.zset("keep").keys() == {"w3", "w4"}


def test_a_full_worker_sees_to_it_that_others_keep_the_time(q: Probe) -> None:
    q.claim("w1")
    q.claim("w2")
    (receipt,) = q.add("a", when=f"+{SECOND}")
    q.hear()
    full = q.claim("full", 0, busy=5)
    assert (full.until_us, full.deadline_us) == (0, receipt.due_us)
    assert q.hear() == "full"


def test_a_repeated_claim_is_not_armed(q: Probe) -> None:
    q.add("a")
    q.claim("w1", 5, seq=1)
    assert q.zset("keep").keys() == {"w1"}
    assert q.claim("w1", 5, seq=1).until_us == 0
    assert q.zset("keep") == {}


def test_a_paused_queue_is_kept_like_an_idle_one(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    q.add("a", when=f"+{SECOND}")
    claims = [q.claim(w) for w in ("w1", "w2", "w3")]
    assert claims[1].until_us == claims[1].now_us + HORIZON
    assert {c.deadline_us for c in claims} == {0}
    assert q.zset("keep").keys() == {"w1", "w2", "w3"}


def test_a_sleeper_that_becomes_a_timekeeper_sleeps_no_more(q: Probe) -> None:
    settle_down(q, "w1", "w2", "w3")
    assert q.zset("park").keys() == {"w3"}
    q.leave("w1")
    q.claim("w3")
    assert q.zset("keep").keys() == {"w2", "w3"}
    assert q.zset("park") == {}
