"""Groups: their jobs run one at a time, or a few, in due order; groups take turns."""

from __future__ import annotations

from typing import Any

import pytest

from bide.errors import BideError
from bide.model.job import State
from bide.model.limits import KEEP
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import DUE_SETS
from tests.support.probe import BODY, LEASE, SECOND, Probe


def add(
    q: Probe,
    group: str,
    *ids: str,
    when: str = "+0",
    priority: int = 5,
    concurrency: int | None = None,
    also: str = "",
) -> None:
    constraints = f"{also}g={group}" + (f" n={concurrency}" if concurrency else "")
    q.add_many(*(Prepared(id, when, priority, BODY, constraints=constraints) for id in ids))


def group(q: Probe, name: str = "g") -> queue_commands.GroupCounts:
    return q.run(queue_commands.counts(q.keys, name))


def left(q: Probe) -> tuple[int, ...]:
    """How much is known of groups beside their jobs: entries, holders, groups, markers."""
    sets = ("order", "held", "turns")
    sizes = [len(q.raw.zrange(q.keys[name], 0, -1)) for name in sets]
    return (*sizes, q.raw.hlen(q.keys["groups"]))


NOTHING = (0, 0, 0, 0)


# -- one at a time, in due order


def test_jobs_of_a_group_run_one_at_a_time_in_due_order(q: Probe) -> None:
    add(q, "g", "late", when=f"+{2 * SECOND}")
    add(q, "g", "b", "a", when=f"+{SECOND}")
    q.move(3)
    for id in ("a", "b", "late"):
        (job,) = q.claim().jobs
        assert job.id == id
        assert q.taken("w2") == []
        assert q.settle(job, "complete") == "ok"
    assert q.taken() == []
    assert left(q) == NOTHING


def test_nothing_of_a_group_is_taken_before_it_is_due(q: Probe) -> None:
    add(q, "g", "a", when=f"+{10 * SECOND}")
    claim = q.claim()
    due_us = q.zset_of("due:grouped")["a"]
    assert (claim.jobs, claim.deadline_us) == ([], due_us)
    q.move(9.5)
    assert q.taken() == []
    q.move(0.6)
    assert q.taken() == ["a"]


@pytest.mark.parametrize(
    "outcome", ["complete", "fail", "retry", "snooze", "release", "cancel", "crash"]
)
def test_its_next_runs_once_one_has_ended_in_whichever_way(q: Probe, outcome: Any) -> None:
    add(q, "g", "a", "b")
    (job,) = q.claim().jobs
    when = f"+{60 * SECOND}" if outcome in ("retry", "snooze") else ""
    assert q.settle(job, outcome, when) == "ok"
    again = "a" if outcome in ("release", "crash") else "b"
    assert q.taken() == [again]


def test_a_retry_is_due_later_and_the_group_goes_on_without_it(q: Probe) -> None:
    add(q, "g", "a", "b", "c")
    (a,) = q.claim().jobs
    q.settle(a, "retry", f"+{5 * SECOND}")
    (b,) = q.claim().jobs
    q.move(6)
    assert (b.id, q.taken()) == ("b", []), "one at a time, also where a retry is due"
    q.settle(b, "complete")
    assert q.taken() == ["c"], "which was due before"


def test_a_retry_waits_for_the_one_that_runs(q: Probe) -> None:
    add(q, "g", "a", "b")
    (a,) = q.claim().jobs
    q.settle(a, "retry", f"+{5 * SECOND}")
    (b,) = q.claim().jobs
    q.move(6)
    assert q.taken() == []
    q.settle(b, "complete")
    assert q.taken() == ["a"]


def test_a_claim_that_is_repeated_takes_nothing_more(q: Probe) -> None:
    add(q, "g", "a", "b")
    (job,) = q.claim(seq=1).jobs
    (again,) = q.claim(seq=1).jobs
    assert (job.id, job.token) == (again.id, again.token)
    assert group(q).active == 1


def test_a_settle_that_is_repeated_frees_no_second_place(q: Probe) -> None:
    add(q, "g", "a", "b", "c")
    (a,) = q.claim().jobs
    q.settle(a, "complete")
    (b,) = q.claim().jobs
    assert q.settle(a, "complete") == "ok"
    assert (b.id, q.taken()) == ("b", [])


def test_a_settle_that_is_refused_frees_no_place(q: Probe) -> None:
    add(q, "g", "a", "b")
    (a,) = q.claim(lease=1).jobs
    q.move(2)
    (again,) = q.claim("w2").jobs
    assert again.id == "a"
    assert q.settle(a, "complete") == "lost"
    assert q.taken() == []


# -- leases and suspects


def test_a_lease_that_ended_gives_its_place_back_and_the_job_is_the_first_again(q: Probe) -> None:
    add(q, "g", "a", "b")
    q.claim()
    q.move(LEASE + 1)
    assert q.taken("w2") == ["a"]
    assert group(q).active == 1


def test_a_suspect_runs_alone_and_its_group_waits(q: Probe) -> None:
    add(q, "g", "a", "b")
    for worker in ("w1", "w2"):
        assert q.taken(worker) == ["a"]
        q.move(LEASE + 1)
    q.add("other")
    assert q.taken("busy", 1, busy=1) == ["other"]
    claim = q.claim("idle")
    assert [job.id for job in claim.jobs] == ["a"]
    assert claim.alone
    q.settle(claim.jobs[0], "complete")
    assert q.taken() == ["b"]


def test_an_idle_worker_meets_a_suspect_and_comes_again_at_once(q: Probe) -> None:
    add(q, "g", "a")
    for worker in ("w1", "w2"):
        assert q.taken(worker) == ["a"]
        q.move(LEASE + 1)
    first = q.claim("idle")
    assert (first.jobs, first.more) == ([], True)
    second = q.claim("idle")
    assert ([job.id for job in second.jobs], second.alone) == (["a"], True)


def test_a_suspect_that_is_taken_back_holds_its_group_up_no_longer(q: Probe) -> None:
    add(q, "g", "a", "b")
    for worker in ("w1", "w2"):
        assert q.taken(worker) == ["a"]
        q.move(LEASE + 1)
    assert q.taken("busy", busy=1) == []
    q.cancel("a")
    assert q.taken("busy", busy=1) == ["b"]


def test_a_suspect_that_nobody_takes_alone_runs_beside_others(q: Probe) -> None:
    add(q, "g", "a")
    for worker in ("w1", "w2"):
        assert q.taken(worker) == ["a"]
        q.move(LEASE + 1)
    q.taken("busy", busy=1)
    q.move(11)
    assert q.claim("busy", busy=1).drain
    q.move(61)
    assert q.taken("busy", busy=1) == ["a"]


def test_what_killed_its_workers_fails_and_its_group_goes_on(q: Probe) -> None:
    add(q, "g", "a", "b")
    for _ in range(20):
        if q.taken() == ["b"]:
            break
        q.move(LEASE + 1)
    seen = q.fetch("a")
    assert seen
    assert seen.state == State.FAILED


# -- several at once


def test_as_many_run_at_once_as_is_asked_for(q: Probe) -> None:
    add(q, "g", *"abcde", concurrency=3)
    jobs = q.claim().jobs
    assert [job.id for job in jobs] == ["a", "b", "c"]
    assert q.taken() == []
    q.settle(jobs[1], "complete")
    assert q.taken() == ["d"]


def test_what_the_latest_job_asks_for_holds(q: Probe) -> None:
    add(q, "g", *"abc", concurrency=1)
    assert q.taken() == ["a"]
    add(q, "g", "d", concurrency=2)
    add(q, "g", "e")
    assert q.taken() == ["b"]
    assert group(q).concurrency == 2


def test_what_is_configured_goes_first(q: Probe) -> None:
    q.run(queue_commands.configure(q.keys, "g", concurrency=2))
    add(q, "g", *"abcd", concurrency=1)
    assert q.taken() == ["a", "b"]
    q.run(queue_commands.configure(q.keys, "g", concurrency=3))
    assert q.taken() == ["c"]
    q.run(queue_commands.configure(q.keys, "g", concurrency=queue_commands.UNSET))
    assert (q.taken(), group(q).concurrency) == ([], 1)


def test_one_that_may_run_more_hears_of_it(q: Probe) -> None:
    add(q, "g", "a", "b")
    q.claim()
    q.hear()
    q.run(queue_commands.configure(q.keys, "g", concurrency=2))
    assert q.hear() == "-"


# -- turns


def test_groups_take_turns(q: Probe) -> None:
    add(q, "big", *(f"big{i}" for i in range(9)), concurrency=9)
    add(q, "small", "s1", "s2", concurrency=2)
    assert q.taken(count=4) == ["big0", "s1", "big1", "s2"]


def test_singles_and_groups_have_half_each(q: Probe) -> None:
    for i in range(6):
        add(q, f"g{i}", f"in{i}")
    q.add(*(f"single{i}" for i in range(6)))
    kinds = [id[:2] for id in q.taken(count=4)]
    assert sorted(kinds) == ["in", "in", "si", "si"]


def test_singles_and_groups_alternate_where_one_slot_is_free(q: Probe) -> None:
    for i in range(4):
        add(q, f"g{i}", f"in{i}")
    q.add(*(f"single{i}" for i in range(4)))
    kinds = [q.taken(f"w{i % 3}", 1)[0][:2] for i in range(8)]
    assert kinds in (["in", "si"] * 4, ["si", "in"] * 4)


def test_whoever_has_less_than_half_leaves_the_rest_to_the_others(q: Probe) -> None:
    add(q, "g", "in", "in2")
    q.add(*(f"single{i}" for i in range(9)))
    ids = q.taken(count=8)
    assert len(ids) == 8
    assert "in" in ids
    q.add("x")
    for i in range(9):
        add(q, f"g{i}", f"in{i}")
    assert len(q.taken(count=8)) == 8


def test_a_group_that_waits_for_its_turn_keeps_its_place(q: Probe) -> None:
    add(q, "first", "a")
    add(q, "second", "b")
    add(q, "first", "a2")
    assert [q.taken("w", 1), q.taken("w", 1)] == [["a"], ["b"]]


def test_a_group_whose_turn_was_taken_stands_behind_the_others(q: Probe) -> None:
    add(q, "one", "a", "a2")
    add(q, "two", "b", "b2")
    (a,) = q.claim("w", 1).jobs
    q.settle(a, "complete")
    (b,) = q.claim("w", 1).jobs
    q.settle(b, "complete")
    assert [q.taken("w", 1), q.taken("w", 1)] == [["a2"], ["b2"]]


def test_a_group_that_was_cut_for_weight_keeps_its_place(q: Probe) -> None:
    """Else names decide, and those behind starve."""
    body = encode_body(Body("app.tasks:send", ("x" * 700_000,)))
    for name in "abc":
        ids = [f"{name}{i}" for i in range(3)]
        q.add_many(*(Prepared(id, "+0", 5, body, constraints=f"g={name} n=9") for id in ids))
    add(q, "z", "z0")
    first, second, third = (q.taken("w", 4) for _ in range(3))
    assert (first, second, third) == (["a0", "b0"], ["c0", "z0", "a1"], ["b1", "a2"])
    assert q.taken("w", 4)[0] == "c1"


def test_the_priority_of_a_group_is_that_of_its_latest_job(q: Probe) -> None:
    add(q, "g", "a", priority=1)
    add(q, "h", "b", priority=5)
    q.add("single", priority=8)
    add(q, "g", "a2", priority=9)
    assert q.taken("w", 1) == ["a"]
    seen = q.fetch("a2")
    assert seen
    assert seen.priority == 9
    assert [q.taken("w", 1), q.taken("w", 1)] == [["single"], ["b"]]


def test_a_claim_looks_at_a_bounded_number_of_turns(q: Probe) -> None:
    grouped = q.keys.names["due"][DUE_SETS.index("grouped")]
    for i in range(40):
        add(q, f"g{i:02}", f"a{i}")
        q.raw.zrem(grouped, f"a{i}")  # as nothing of bide's does
    q.legal = False
    claim = q.claim(count=1)
    assert (claim.jobs, claim.more) == ([], True)
    assert 0 < len(q.raw.zrange(q.keys["turns"], 0, -1)) < 40
    add(q, "z", "z")
    found = [id for i in range(9) for id in q.taken(f"w{i}", 1)]
    assert found == ["z"]


# -- verbs


def test_what_is_taken_back_leaves_its_group(q: Probe) -> None:
    removals: list[Command[Any]] = [
        job_commands.cancel(q.keys, ["a"]),
        job_commands.delete(q.keys, ["a"]),
    ]
    for remove in removals:
        add(q, "g", "a", "b")
        q.run(remove)
        assert len(q.zset("order")) == 1
        (b,) = q.claim().jobs
        assert b.id == "b"
        assert q.settle(b, "complete") == "ok"
        assert left(q) == NOTHING
        q.run(job_commands.delete(q.keys, ["a", "b"]))


def test_a_moved_job_is_where_its_due_time_says(q: Probe) -> None:
    add(q, "g", "a", "b", "c")
    q.reschedule("a", f"+{10 * SECOND}")
    assert len(q.zset("order")) == 3
    assert q.taken() == ["b"]
    assert q.promote("a").result == "ok"
    claimed = q.taken("w2")
    assert claimed == []
    q.move(LEASE + 1)
    assert q.taken() == ["b"]


def test_a_delayed_job_that_is_promoted_has_its_turn(q: Probe) -> None:
    add(q, "g", "a", when=f"+{60 * SECOND}")
    assert q.taken() == []
    q.promote("a")
    assert q.taken() == ["a"]


def test_a_head_that_is_due_later_now_lets_the_next_go_first(q: Probe) -> None:
    add(q, "g", "a", when=f"+{5 * SECOND}")
    add(q, "g", "b", when=f"+{20 * SECOND}")
    q.reschedule("a", f"+{60 * SECOND}")
    assert q.claim().deadline_us == q.zset_of("due:grouped")["b"]
    q.move(21)
    assert q.taken() == ["b"]


def test_one_that_is_run_again_after_its_end_is_of_its_group_again(q: Probe) -> None:
    add(q, "g", "a", "b", priority=8, concurrency=2)
    a, b = q.claim().jobs
    q.settle(a, "fail")
    q.settle(b, "fail")
    assert left(q) == NOTHING
    assert q.retry("a", "b") == ["ok", "ok"]
    seen = group(q)
    assert (seen.waiting, seen.priority, seen.concurrency) == (2, 8, 2)
    assert q.taken() == ["a", "b"]


def test_one_that_was_cancelled_unbegun_comes_back_with_its_priority(q: Probe) -> None:
    add(q, "g", "a", priority=8)
    q.cancel("a")
    q.retry("a")
    assert group(q).priority == 8
    assert q.taken() == ["a"]


def test_purging_takes_the_groups_too(q: Probe) -> None:
    add(q, "g", *(f"a{i}" for i in range(9)))
    add(q, "other", "b")
    q.run(queue_commands.configure(q.keys, "kept", paused=True))
    (running,) = q.claim(count=1).jobs
    step = q.run(job_commands.purge(q.keys, "e1"))
    assert step.aside == 9
    while step.more:
        step = q.run(job_commands.purge(q.keys, None))
    assert [
        one.name for one in q.run(queue_commands.page(q.keys, queue_commands.BEGIN)).groups
    ] == ["g", "kept"]
    q.settle(running, "complete")
    assert left(q) == (0, 0, 0, 1)


def test_one_that_comes_while_others_are_purged_runs(q: Probe) -> None:
    add(q, "g", "a", "b")
    q.run(job_commands.purge(q.keys, "e1"))
    add(q, "g", "c", "a")
    (job,) = q.claim().jobs
    assert job.id in ("a", "c")
    q.settle(job, "complete")
    assert len(q.taken()) == 1


def test_claims_forget_the_groups_of_what_was_purged(q: Probe) -> None:
    add(q, "g", "a", "b")
    q.run(job_commands.purge(q.keys, "e1"))
    q.claim()
    assert left(q) == NOTHING


def test_what_expires_leaves_its_group(q: Probe) -> None:
    add(q, "g", "a", also=f"x=+{5 * SECOND} ")
    add(q, "g", "b", when=f"+{1 * SECOND}")
    q.move(6)
    (job,) = q.claim().jobs
    assert job.id == "b"
    seen = q.fetch("a")
    assert seen
    assert (seen.state, seen.constraints.expired_us is not None) == (State.CANCELLED, True)


def test_more_that_has_expired_than_a_claim_looks_for(q: Probe) -> None:
    add(q, "g", *(f"a{i:02}" for i in range(50)), also=f"x=+{5 * SECOND} ")
    add(q, "g", "b", when=f"+{1 * SECOND}")
    q.run(job_commands.pause(q.keys))
    q.move(6)
    q.claim()
    assert len(q.zset("order")) == 31
    q.run(job_commands.resume(q.keys))
    taken: list[str] = []
    while not taken:
        taken = q.taken()
    assert taken == ["b"]


def test_a_running_job_that_is_asked_to_stop_frees_its_place_when_it_does(q: Probe) -> None:
    add(q, "g", "a", "b")
    (a,) = q.claim().jobs
    assert q.cancel("a") == ["asked"]
    assert q.taken() == []
    q.settle(a, "retry", "+0")
    assert q.taken() == ["b"]


def test_a_paused_group_begins_nothing_until_it_is_resumed(q: Probe) -> None:
    add(q, "g", "a")
    add(q, "other", "o")
    q.run(queue_commands.configure(q.keys, "g", paused=True))
    assert q.taken() == ["o"]
    assert group(q).paused
    assert q.zset("turns") == {}
    add(q, "g", "b", when="+1")
    assert q.taken() == []
    q.hear()
    q.run(queue_commands.configure(q.keys, "g", paused=False))
    assert q.hear() == "-"
    assert q.taken() == ["a"]


def test_a_repeat_changes_nothing(q: Probe) -> None:
    add(q, "g", "a", concurrency=2)
    add(q, "h", "a", concurrency=5)
    assert [
        one.name for one in q.run(queue_commands.page(q.keys, queue_commands.BEGIN)).groups
    ] == ["g"]
    assert (group(q).concurrency, left(q)) == (2, (1, 0, 1, 1))


# -- what is told


def test_how_things_stand_in_a_group(q: Probe) -> None:
    add(q, "g", "a", "b", concurrency=1)
    add(q, "g", "c", when=f"+{60 * SECOND}")
    q.claim()
    assert group(q) == queue_commands.GroupCounts("g", 1, 1, 1, 5, 1, False, False)
    assert group(q, "none") == queue_commands.GroupCounts("none", 0, 0, 0, 5, 1, False, False)
    counts = q.run(job_commands.counts(q.keys))
    assert (counts.delayed, counts.waiting, counts.active) == (1, 1, 1)


def test_names_that_begin_alike_are_different_groups(q: Probe) -> None:
    for name in ("a", "a!", "a-b", "a0", "aé"):
        add(q, name, f"in-{name}", f"in2-{name}")
    assert len(q.taken()) == 5
    assert [group(q, name).active for name in ("a", "a!", "a-b", "a0", "aé")] == [1] * 5
    assert [group(q, name).waiting for name in ("a", "a!", "a-b", "a0", "aé")] == [1] * 5


def test_a_job_says_what_it_waits_for(q: Probe) -> None:
    add(q, "g", "a", "b", "c")
    q.claim()
    seen = q.fetch("c")
    assert seen
    assert seen.turn
    assert (seen.constraints.group, seen.turn) == ("g", (False, 1, 1, 1, 0))
    running = q.fetch("a")
    assert running
    assert (running.constraints.group, running.turn) == ("g", None)


def test_whoever_frees_a_place_wakes_someone(q: Probe) -> None:
    add(q, "g", "a", "b")
    (a,) = q.claim().jobs
    q.hear()
    q.settle(a, "complete")
    assert q.hear() == "-"


def test_a_job_that_has_to_wait_for_its_group_wakes_nobody(q: Probe) -> None:
    add(q, "g", "a")
    q.claim()
    q.hear()
    add(q, "g", "b")
    assert q.hear() is None


def test_few_entries_of_no_job_are_dropped_at_once(q: Probe) -> None:
    """What no verb leaves behind; `bide fsck` finds it, and claims go on."""
    add(q, "g", *(f"a{i:02}" for i in range(30)))
    add(q, "g", "z", when=f"+{SECOND}")
    q.raw.zrem(q.keys.names["due"][DUE_SETS.index("grouped")], *(f"a{i:02}" for i in range(30)))
    q.raw.hdel(q.keys["jobs"], *(f"a{i:02}" for i in range(30)))
    q.raw.hdel(q.keys["terms"], *(f"a{i:02}" for i in range(30)))
    q.move(2)
    q.reschedule("z", "+0")
    assert len(q.zset("order")) > 10
    found: list[str] = []
    while not found:
        found = q.taken()
    assert found == ["z"]


def test_a_turn_that_is_too_early_takes_nothing(q: Probe) -> None:
    """As where another program has written one; it is put where it belongs."""
    add(q, "g", "a", when=f"+{10 * SECOND}")
    early = q.now - SECOND
    q.raw.delete(q.keys["turns"])
    q.raw.zadd(q.keys["turns"], {f"e {early:017} g": 0})
    q.raw.hset(q.keys["groups"], "g", f"5 0 0 0 5 {early}")
    assert q.taken() == []
    q.move(11)
    assert q.taken() == ["a"]


# -- rates


def limit(q: Probe, rate: str, name: str = "g") -> None:
    q.run(queue_commands.configure(q.keys, name, rate=rate))


def test_as_many_of_a_group_begin_as_its_rate_lets_and_others_go_on(q: Probe) -> None:
    limit(q, f"1 {10 * SECOND} 2")
    add(q, "g", *"abcd", concurrency=9)
    add(q, "h", "other")
    claim = q.claim(lease=60)
    assert [job.id for job in claim.jobs] == ["a", "other", "b"]
    assert q.taken() == []
    seen = q.fetch("c")
    assert seen
    assert seen.turn
    assert seen.turn.free_us == q.claim().deadline_us
    q.move(9)
    assert q.taken() == []
    q.move(1.1)
    assert q.taken() == ["c"]
    assert group(q).rate == "1/10s"


def test_a_rate_goes_with_its_group_over_quiet_times_and_can_be_removed(q: Probe) -> None:
    limit(q, f"1 {10 * SECOND} 1")
    add(q, "g", "a", concurrency=9)
    q.settle(q.claim().jobs[0], "complete")
    add(q, "g", "b", "c", concurrency=9)
    assert q.taken() == []
    limit(q, f"1 {10 * SECOND} 1")
    assert q.taken() == [], "to set the same again sets nothing free"
    q.hear()
    limit(q, "none")
    assert q.hear() == "-"
    assert q.taken() == ["b", "c"]
    assert group(q).rate is None


def test_what_is_given_back_unbegun_gives_its_group_its_token_back(q: Probe) -> None:
    limit(q, f"1 {3600 * SECOND} 2")
    add(q, "g", *"abcd", concurrency=9)
    jobs = q.claim().jobs
    assert [job.id for job in jobs] == ["a", "b"]
    q.hear()
    assert q.settle_many(*(Settle(job.id, job.token, "release") for job in jobs)) == ["ok", "ok"]
    assert q.hear() == "-"
    again = q.claim().jobs
    assert [job.id for job in again] == ["a", "b"]
    assert [job.id for job in q.claim("w2").jobs] == []
    missing = b'{"type":"TaskNotFound","message":"no"}'
    assert q.settle(again[0], "snooze", "+0", missing) == "ok", "by a worker that has not its task"
    assert len(q.taken()) == 1
    assert q.taken("w2") == []


def test_what_had_begun_gives_its_group_nothing_back(q: Probe) -> None:
    limit(q, f"1 {3600 * SECOND} 1")
    add(q, "g", "a", "b")
    (job,) = q.claim().jobs
    assert q.settle(job, "release", "+0") == "ok"
    assert q.taken() == []


def test_a_token_of_a_group_does_not_come_back_after_another_was_taken(q: Probe) -> None:
    limit(q, f"1 {10 * SECOND} 1")
    add(q, "g", *"abc", concurrency=9)
    (early,) = q.claim(lease=60).jobs
    q.move(10.01)
    (late,) = q.claim(lease=60).jobs
    assert q.settle(early, "release") == "ok"
    assert q.taken() == []
    q.settle(late, "complete")


def test_a_queue_with_a_limit_lets_groups_and_single_jobs_take_turns(q: Probe) -> None:
    q.run(job_commands.limit(q.keys, f"1 {10 * SECOND} 2", "keep"))
    for i in range(3):
        add(q, f"g{i}", f"in{i}")
    q.add("s0", "s1", "s2")
    kinds = {id[:1] for id in q.taken()}
    assert kinds == {"i", "s"}
    assert q.taken() == []


# -- the clock is set back


def test_what_was_due_is_taken_though_its_turn_is_ahead_now(q: Probe) -> None:
    names = [f"g{i:02}" for i in range(60)]  # more than one claim looks at
    q.move(7200)
    for name in names:
        add(q, name, f"{name}-early", f"{name}-next")
    add(q, "later", "later-1", when=f"+{5000 * SECOND}")
    q.move(7200)
    for _ in range(10):
        for job in q.claim(count=100).jobs:
            if job.id.endswith("-early"):
                assert q.settle(job, "complete") == "ok", (
                    "and its group's turn is behind all others"
                )
            else:
                assert q.settle(job, "release") == "ok"
        if len(q.zset("completed")) == 60:
            break
    q.move(-3600)
    seen: set[str] = set()
    for _ in range(10):
        claim = q.claim(count=100)
        seen |= {job.id for job in claim.jobs}
        if not claim.more:
            break
    assert seen == {f"{name}-next" for name in names}
    assert "rewinding" not in q.holding().meta
    q.move(3600)
    assert q.taken() == ["later-1"]


def test_an_extend_that_meets_the_step_first_leaves_the_turns_to_the_next_claim(q: Probe) -> None:
    add(q, "g", "a", "b")
    q.add("long")
    q.claim(count=0)
    q.move(7200)
    held = {job.id: job for job in q.claim().jobs}
    assert q.settle(held["a"], "complete") == "ok"  # the group has its next turn from now on
    q.move(-3600)
    q.legal = False  # under a lease
    assert q.extend(held["long"]) == ["ok"]
    assert q.taken("w2") == ["b"]
    assert "rewinding" not in q.holding().meta


def test_without_groups_nothing_is_left_of_a_step_back(q: Probe) -> None:
    job = q.take("a")
    q.move(-3600)
    q.legal = False  # under a lease
    assert q.extend(job) == ["ok"]
    q.claim()
    assert "rewinding" not in q.holding().meta


def test_a_groups_rate_holds_it_up_for_as_long_as_one_token_takes(q: Probe) -> None:
    q.run(queue_commands.configure(q.keys, "g", rate=f"1 {10 * SECOND} 1"))
    q.move(7200)
    add(q, "g", "a", "b")
    q.move(7200)
    (job,) = q.claim().jobs
    assert q.settle(job, "complete") == "ok"
    q.move(-3600)
    assert q.taken() == []
    q.move(9)
    assert q.taken() == []
    q.move(1.1)
    assert q.taken() == ["b"]


def test_a_cursor_that_cannot_be_read_begins_anew(q: Probe) -> None:
    add(q, "g", "a")
    q.raw.hset(q.keys["meta"], "rewinding", "odd")
    assert q.taken() == ["a"]
    assert "rewinding" not in q.holding().meta


# -- the rate that a queue gives each of its groups


def share(q: Probe, rate: str) -> None:
    q.run(job_commands.limit(q.keys, KEEP, KEEP, rate))


def run_one(q: Probe) -> str:
    (job,) = q.claim(count=1).jobs
    assert q.settle(job, "complete") == "ok"
    return job.id


def test_each_group_starts_so_many_of_its_jobs_per_period(q: Probe) -> None:
    share(q, f"1 {1000 * SECOND} 1")
    for name in ("a", "b"):
        add(q, name, f"{name}-1", f"{name}-2")
    q.add("single-1", "single-2")
    assert sorted(run_one(q) for _ in range(4)) == ["a-1", "b-1", "single-1", "single-2"]
    assert q.taken() == []
    q.move(900)
    assert q.taken() == []
    q.move(101)
    assert sorted(q.taken()) == ["a-2", "b-2"]


def test_a_group_without_jobs_keeps_what_it_lacks_until_its_tokens_are_complete(q: Probe) -> None:
    share(q, f"1 {1000 * SECOND} 2")
    add(q, "g", "a", "b")
    assert (run_one(q), run_one(q)) == ("a", "b")
    (until,) = q.holding().resting.values()
    assert q.run(queue_commands.page(q.keys, queue_commands.BEGIN)).groups == []
    q.move(900)
    add(q, "g", "c")
    assert q.holding().resting == {}
    assert q.taken() == [], "as its record was kept"
    q.move(101)
    assert run_one(q) == "c"
    assert q.holding().resting["g"] > until
    q.move(1950)
    q.claim()
    assert left(q) == (0, 0, 0, 1)
    q.move(60)
    q.claim()
    assert left(q) == NOTHING
    assert q.holding().resting == {}


def test_many_groups_that_have_rested_are_forgotten_some_at_a_time(q: Probe) -> None:
    share(q, f"1 {1000 * SECOND} 1")
    names = [f"g{i:03}" for i in range(250)]
    for name in names:
        add(q, name, f"{name}-1")
    done = 0
    while done < len(names):
        for job in q.claim(count=100).jobs:
            assert q.settle(job, "complete") == "ok"
            done += 1
    assert len(q.holding().resting) == len(names)
    q.move(1001)
    assert q.claim().more
    assert len(q.holding().resting) == 50
    assert not q.claim().more
    assert left(q) == NOTHING


def test_a_rate_of_its_own_goes_before_that_of_the_queue(q: Probe) -> None:
    q.run(queue_commands.configure(q.keys, "own", rate=f"2 {SECOND} 2"))
    share(q, f"1 {1000 * SECOND} 1")
    add(q, "own", "o-1", "o-2")
    add(q, "other", "p-1", "p-2")
    assert sorted(run_one(q) for _ in range(3)) == ["o-1", "o-2", "p-1"]
    assert (group(q, "own").rate, group(q, "own").has_own_rate) == ("2/s", True)
    assert (group(q, "other").rate, group(q, "other").has_own_rate) == ("1/1000s", False)
    q.run(queue_commands.configure(q.keys, "own", rate="none"))
    assert (group(q, "own").rate, group(q, "own").has_own_rate) == ("1/1000s", False)
    add(q, "own", "o-3")
    assert q.taken() == [], "what it has spent counts"
    q.run(queue_commands.configure(q.keys, "own", rate=f"1 {1000 * SECOND} 1"))
    assert group(q, "own").has_own_rate


def test_who_waits_for_a_token_of_a_slow_rate_starts_when_the_rate_becomes_fast(q: Probe) -> None:
    share(q, f"1 {3600 * SECOND} 1")
    names = [f"g{i:02}" for i in range(60)]  # more than one claim looks at
    for name in names:
        add(q, name, f"{name}-1", f"{name}-2")
    while jobs := q.claim(count=100).jobs:
        for job in jobs:
            assert q.settle(job, "complete") == "ok"
    share(q, "none")
    assert q.wakeups() == 1
    seen: set[str] = set()
    for _ in range(5):
        seen |= {job.id for job in q.claim(count=100).jobs}
    assert seen == {f"{name}-2" for name in names}
    assert "rewinding" not in q.holding().meta


def test_setting_the_rate_of_all_groups_again_and_again_gives_no_tokens(q: Probe) -> None:
    add(q, "g", *"abc")
    for n in (1, 2, 1):
        share(q, f"1 {1000 * SECOND} {n}")
        for _ in range(2):
            q.move(0.1)
            for job in q.claim().jobs:
                assert q.settle(job, "complete") == "ok"
    assert sorted(q.zset("completed")) == ["a", "b"]


def test_the_tokens_of_a_faster_rate_of_a_group_come_from_when_it_is_set(q: Probe) -> None:
    q.run(queue_commands.configure(q.keys, "g", rate=f"1 {3600 * SECOND} 1"))
    add(q, "g", *"abcd")
    assert run_one(q) == "a"
    q.run(queue_commands.configure(q.keys, "g", rate=f"1 {SECOND} 2"))
    q.move(2)
    assert [run_one(q), run_one(q)] == ["b", "c"]


def test_what_a_worker_returns_unbegun_gives_its_group_the_token_of_the_queues_rate_back(
    q: Probe,
) -> None:
    share(q, f"1 {1000 * SECOND} 1")
    add(q, "g", "a")
    (job,) = q.claim().jobs
    assert q.settle(job, "release") == "ok"
    assert q.taken() == ["a"]


def test_purge_leaves_groups_that_rest_to_be_forgotten(q: Probe) -> None:
    share(q, f"1 {1000 * SECOND} 1")
    add(q, "rests", "a")
    assert run_one(q) == "a"
    add(q, "waits", "b", "c")
    assert run_one(q) == "b"
    assert q.run(job_commands.purge(q.keys, "this")).aside == 1
    while q.run(job_commands.purge(q.keys, None)).more:
        pass
    assert sorted(q.holding().resting) == ["rests", "waits"]
    q.move(1001)
    q.claim()
    assert left(q) == NOTHING


def test_a_queue_whose_groups_only_rest_can_be_forgotten(q: Probe) -> None:
    share(q, f"1 {1000 * SECOND} 1")
    add(q, "g", "a", "b")
    assert run_one(q) == "a"
    q.run(job_commands.cancel(q.keys, ["b"], False))
    share(q, "none")
    q.run(job_commands.delete(q.keys, ["a", "b"]))
    q.raw.delete(q.keys["keep"], q.keys["park"])
    assert q.run(job_commands.forget(q.keys)) == {}
    assert not q.raw.exists(q.keys["resting"])


@pytest.mark.parametrize("rate", ["0 1 1", "1 1", "x", "1" * 51 + " 1 1"])
def test_a_rate_of_all_groups_that_cannot_be_meant_is_refused(q: Probe, rate: str) -> None:
    with pytest.raises(BideError, match="BADARG limit group_rate"):
        share(q, rate)


def test_a_rate_of_all_groups_that_cannot_be_read_is_none(q: Probe) -> None:
    q.raw.hset(q.keys["meta"], "group_rate", "noise")
    add(q, "g", "a", "b")
    assert (run_one(q), run_one(q)) == ("a", "b")
    assert left(q) == NOTHING
