"""Claim: takes what is due, oldest first, under a lease; and says when to come back."""

from __future__ import annotations

from bide.model.job import Claimed
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import MAX_CLAIM
from tests.support.probe import BODY, LEASE, SECOND, Probe

LEASE_US = round(LEASE * SECOND)


def test_a_job_taken_is_active_under_a_lease_and_in_no_other_set(q: Probe) -> None:
    (receipt,) = q.add("a", priority=7)
    claim = q.claim("w1", 1)
    (job,) = claim.jobs
    assert job == Claimed("a", BODY, claim.now_us, 1, 0, receipt.due_us, receipt.due_us, 0, 0)
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {
        "active": {"a": claim.now_us + LEASE_US}
    }
    assert holding.hashes["jobs"] == {"a": BODY}
    assert holding.records["a"] == (
        *(claim.now_us, "-", 7, 1, 0, 0, False, claim.now_us, "w1", receipt.due_us),
        *(receipt.due_us, 0, 0, 0),
    )


def test_nothing_is_taken_before_it_is_due(q: Probe) -> None:
    (receipt,) = q.add("a", when=f"+{5 * SECOND}")
    early = q.claim()
    assert early.jobs == []
    assert early.now_us < receipt.due_us
    q.move((receipt.due_us - q.now) / SECOND - 1)
    assert q.taken() == []
    q.move(1)
    late = q.claim()
    assert [job.id for job in late.jobs] == ["a"]
    assert late.now_us >= receipt.due_us


def test_oldest_first_and_of_one_instant_in_the_order_of_ids(q: Probe) -> None:
    q.add("late", when=f"+{3 * SECOND}")
    q.add("early", when=f"+{1 * SECOND}")
    at = q.now + 2 * SECOND
    q.add("c", "a", "b", when=f"={at}")
    q.move(4)
    assert q.taken() == ["early", "a", "b", "c", "late"]


def test_newest_first_where_the_worker_asks_so(q: Probe) -> None:
    q.add("later", when="+60000000")
    for id in ("a", "b", "c"):
        q.add(id)
        q.move(1)
    q.add("urgent", priority=9)
    assert q.claim(count=2, flags="n").jobs[0].id == "urgent"
    q.add("d")
    claim = q.claim(count=2, flags="ne")
    assert [job.id for job in claim.jobs] == ["d", "b"]
    assert [job.id for job in q.claim(count=2).jobs] == ["a"]


def test_one_by_one_in_the_same_order_as_at_once(q: Probe) -> None:
    q.add("c", "a", "b", "d")
    assert [q.taken(count=1) for _ in range(5)] == [["a"], ["b"], ["c"], ["d"], []]


def test_the_highest_priority_first_whatever_is_older(q: Probe) -> None:
    for priority in range(10):
        q.add(f"p{priority}", priority=priority)
    assert q.taken(count=10) == [f"p{p}" for p in range(9, -1, -1)]


def test_a_claim_fills_up_from_lower_priorities(q: Probe) -> None:
    q.add("low-1", "low-2", "low-3", priority=0)
    q.add("high-1", "high-2", priority=9)
    assert q.taken(count=3) == ["high-1", "high-2", "low-1"]
    assert q.taken(count=3) == ["low-2", "low-3"]


def test_a_high_priority_that_is_not_due_holds_nothing_up(q: Probe) -> None:
    q.add("later", when=f"+{SECOND}", priority=9)
    q.add("now", priority=0)
    assert q.taken() == ["now"]


def test_no_more_are_taken_than_there_are_slots(q: Probe) -> None:
    q.add("a", "b", "c")
    assert q.taken(count=2) == ["a", "b"]
    assert list(q.holding().sets["due:5"]) == ["c"]
    assert q.taken(count=0) == []


def test_a_call_takes_a_bounded_number_whatever_is_asked_for(q: Probe) -> None:
    command = worker_commands.claim(q.keys, "w1", 1, 10_000, LEASE_US, 0)
    assert command.args[2] == MAX_CLAIM
    q.add_many(*(Prepared(f"j{i:04}", "+0", 5, BODY) for i in range(MAX_CLAIM + 1)))
    unbounded = command._replace(args=("w1", 1, 10_000, LEASE_US, 0, 2, "", 0, 0))
    assert len(q.run(unbounded).jobs) == MAX_CLAIM


def test_a_deadline_lies_ahead_though_some_are_overdue(q: Probe) -> None:
    """Or whoever waits for it would not wait."""
    q.add("a", "b")
    claim = q.claim(count=1)
    assert claim.deadline_us == claim.now_us + LEASE_US


def test_the_first_attempt_is_number_one(q: Probe) -> None:
    assert q.take("a").attempt == 1


def test_tokens_of_a_job_only_grow_even_when_the_clock_was_set_back(q: Probe) -> None:
    job = q.take("a")
    tokens = [job.token]
    for seconds in (1, -60, 1, 1):
        assert q.settle(job, "retry", "+0") == "ok"
        q.move(seconds)
        if seconds < 0:
            q.reschedule("a", "+0")
        (job,) = q.claim().jobs
        tokens.append(job.token)
    assert tokens == sorted(set(tokens))


def test_a_job_whose_body_is_missing_is_dropped_and_holds_nothing_up(q: Probe) -> None:
    q.add("a", "b", "c")
    q.raw.hdel(q.keys["jobs"], "b")
    assert q.taken() == ["a", "c"]
    assert q.where("b") is None
    assert "b" not in q.holding().records


# -- when to come back


def test_an_empty_claim_names_the_next_due_time(q: Probe) -> None:
    (receipt,) = q.add("a", when=f"+{SECOND}")
    q.add("b", when=f"+{SECOND * 3 // 2}", priority=9)
    claim = q.claim()
    assert claim.until_us == claim.deadline_us == receipt.due_us
    assert not claim.more


def test_an_empty_claim_names_the_end_of_the_first_lease(q: Probe) -> None:
    q.add("a")
    held = q.claim("w1", 1, lease=1)
    assert q.claim("w2").until_us == held.now_us + SECOND


def test_an_empty_claim_names_a_moment_five_seconds_off_at_most(q: Probe) -> None:
    claim = q.claim()
    assert (claim.until_us, claim.deadline_us) == (claim.now_us + 5 * SECOND, 0)
    (receipt,) = q.add("a", when=f"+{3600 * SECOND}")
    claim = q.claim()
    assert (claim.until_us, claim.deadline_us) == (claim.now_us + 5 * SECOND, receipt.due_us)


def test_a_claim_that_leaves_free_slots_names_a_moment_too(q: Probe) -> None:
    q.add("a")
    claim = q.claim(count=2)
    assert len(claim.jobs) == 1
    assert claim.until_us == claim.now_us + 5 * SECOND


def test_a_claim_that_fills_every_slot_names_none(q: Probe) -> None:
    q.add("a", "b")
    assert q.claim(count=2).until_us == 0
    assert q.claim(count=0).until_us == 0


def test_an_empty_claim_never_names_a_moment_that_has_come(q: Probe) -> None:
    """A worker that were told to come back at once would spin."""
    q.add("due", "leased")
    assert len(q.claim("w2", 1, lease=1).jobs) == 1
    q.run(job_commands.pause(q.keys))
    for seconds in (0, 0.5, 2, 40, -10):
        q.move(seconds)
        claim = q.claim()
        assert claim.jobs == []
        assert claim.until_us > claim.now_us


def test_a_paused_queue_gives_nothing_and_names_no_due_time(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    q.add("a")
    q.add("b", when=f"+{SECOND}")
    claim = q.claim()
    assert claim.jobs == []
    assert claim.until_us == claim.now_us + 5 * SECOND
    assert q.holding().due.keys() == {"a", "b"}
    q.run(job_commands.resume(q.keys))
    assert q.taken() == ["a"]


def test_expired_leases_are_reclaimed_in_a_paused_queue_as_well(q: Probe) -> None:
    q.take("a", "w2")
    q.run(job_commands.pause(q.keys))
    q.move(11)
    assert q.taken() == []
    assert q.where("a") == "due"
