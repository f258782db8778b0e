"""Popping: data that is due, off the queue for good, in one round trip that may be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from bide.model.ids import new_id
from bide.model.limits import Retention
from bide.model.payload.body import ITEM_MARK
from bide.protocol.commands import command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from tests.support.invariants import assert_legal
from tests.support.probe import SECOND, Probe

BIG = ITEM_MARK + b'"' + b"x" * 900_000 + b'"'


def test_what_is_due_comes_out_by_due_time_then_id(q: Probe) -> None:
    q.push("c", "a", "b", when="+2000000")
    q.push("z", when="+1000000")
    q.push("later", when="+9000000")
    q.move(3)
    assert q.popped() == ["z", "a", "b", "c"]
    assert list(q.holding().due) == ["later"]


def test_nothing_comes_out_before_it_is_due(q: Probe) -> None:
    q.push("a", when="+3000000")
    q.move(2.5)
    assert q.popped() == []
    q.move(0.5)
    assert q.popped() == ["a"]


def test_no_more_come_out_than_were_asked_for(q: Probe) -> None:
    q.push(*"abcde")
    assert q.popped(count=2) == ["a", "b"]
    assert q.popped(count=2) == ["c", "d"]
    reply = q.pop(count=2)
    assert (len(reply.bodies), reply.more) == (1, False)


def test_many_come_out_of_one_call(q: Probe) -> None:
    """More than are looked at in one piece."""
    ids = [f"i{n:03d}" for n in range(180)]
    q.push(*ids)
    assert q.popped(count=170) == ids[:170]
    assert q.popped(count=170) == ids[170:]


def test_previous_takes_only_what_was_due_so_long_ago(q: Probe) -> None:
    q.push("a")
    q.move(2)
    q.push("b")
    q.move(2)
    assert q.pop(previous=3).bodies == [ITEM_MARK + b'"a"']
    assert q.pop(previous=3).bodies == []
    assert q.popped() == ["b"]


def test_higher_priorities_come_first(q: Probe) -> None:
    q.push("low", priority=1)
    q.push("high", priority=9)
    assert q.popped() == ["high", "low"]


def test_what_was_popped_is_completed_and_says_by_whom(q: Probe) -> None:
    (receipt,) = q.push("a")
    q.pop("me")
    record = q.record("a")
    assert q.where("a") == "completed"
    assert (record.worker, record.attempt, record.settled) == ("me", 1, "C")
    assert (record.due_us, record.priority) == (receipt.due_us, 5)
    assert q.holding().total("completed") == 1


def test_it_is_kept_no_longer_than_a_repeat_may_come(q: Probe) -> None:
    q.configure(completed=0)
    q.push("a")
    q.pop()
    q.move(14)
    q.pop("other")
    assert q.where("a") == "completed"
    q.move(2)
    q.pop("other")
    assert q.where("a") is None
    assert q.raw.hlen(q.keys["run"]) == 0


def test_a_repeat_returns_the_same_and_takes_nothing_new(q: Probe) -> None:
    q.push("a", "b", "c")
    first = q.pop("c1", 2, seq=7)
    again = q.pop("c1", 2, seq=7)
    assert again.bodies == first.bodies == [ITEM_MARK + b'"a"', ITEM_MARK + b'"b"']
    assert again.more, "the next call looks"
    assert list(q.holding().due) == ["c"]
    assert q.holding().total("completed") == 2


def test_a_repeat_of_a_call_that_found_nothing_takes_nothing(q: Probe) -> None:
    assert q.popped(seq=1) == []
    q.push("a")
    assert q.popped(seq=1) == []
    assert q.popped() == ["a"]


def test_a_repeat_does_not_return_what_was_put_back_and_popped_by_another(q: Probe) -> None:
    q.push("a", "b")
    q.pop("c1", seq=1)
    assert q.retry("a") == ["ok"]
    assert q.popped("c2") == ["a"]
    assert q.popped("c1", seq=1) == ["b"]


def test_a_repeat_does_not_return_what_waits_again(q: Probe) -> None:
    q.push("a")
    q.pop("c1", seq=1)
    q.retry("a", when="+5000000")
    assert q.popped("c1", seq=1) == []


def test_another_may_pop_within_the_same_microsecond(q: Probe) -> None:
    """Then only the consumer's name tells who was given it."""
    q.push("a")
    q.pop("c1", seq=1)
    line = q.raw.hget(q.keys["run"], "a")
    assert isinstance(line, bytes)
    q.raw.hset(q.keys["run"], "a", line.replace(b" c1 ", b" c2 ").decode())
    assert q.popped("c1", seq=1) == []


def test_an_older_number_is_stale_and_takes_nothing(q: Probe) -> None:
    q.push("a", "b")
    q.pop("c1", 1, seq=2)
    stale = q.pop("c1", 1, seq=1)
    assert (stale.stale, stale.bodies) == (True, [])
    assert list(q.holding().due) == ["b"]


def test_a_pop_and_a_claim_of_one_consumer_share_its_numbers(q: Probe) -> None:
    q.push("a", "b", "c")
    q.claim("c1", 1, seq=1)
    assert q.popped("c1", 1, seq=2) == ["b"]
    assert q.claim("c1", 1, seq=1).stale
    assert [job.id for job in q.claim("c1", 1, seq=3).jobs] == ["c"]


def test_no_two_consumers_get_the_same(q: Probe) -> None:
    q.push(*"abcdef")
    got = [q.popped(f"c{i}", 2) for i in range(4)]
    assert got == [["a", "b"], ["c", "d"], ["e", "f"], []]


def test_what_is_held_is_not_popped_before_its_lease_ends(q: Probe) -> None:
    q.push("a", "b")
    q.claim("dead", 1)
    assert q.popped() == ["b"]
    q.move(11)
    assert q.popped() == ["a"]
    assert q.record("a").attempt == 1
    assert q.holding().total("reclaimed") == 1


def test_whoever_held_it_then_cannot_settle_it(q: Probe) -> None:
    q.push("a")
    (job,) = q.claim("slow", 1).jobs
    q.move(11)
    assert q.popped() == ["a"]
    assert q.settle(job, "complete") == "lost"
    assert q.extend(job) == ["lost"]


def test_what_it_reclaims_and_leaves_wakes_others(q: Probe) -> None:
    q.push("a", "b")
    q.claim("dead", 2)
    q.hear()
    q.move(11)
    assert q.popped(count=1) == ["a"]
    assert q.wakeups() == 1


def test_poison_fails_by_a_pop_too(q: Probe) -> None:
    q.push("a")
    for n in range(4):  # two strikes among others, then two crashes alone
        assert len(q.claim(f"w{n}", 1).jobs) == 1
        q.move(11)
    q.claim("w9", 1)
    q.move(11)
    assert q.popped() == []
    assert q.where("a") == "failed"
    assert "died or stopped" in q.errors("a")[-1]


def test_after_a_leap_of_the_clock_holders_get_their_time(q: Probe) -> None:
    q.push("a")
    q.claim("w1", 1)
    q.move(5)
    q.claim("w2", 0)
    q.move(3600)
    assert q.popped() == []
    q.move(11)
    assert q.popped() == ["a"]


def test_after_the_clock_was_set_back_leases_are_shortened(q: Probe) -> None:
    q.push("a")
    q.claim("w1", 1)
    q.move(-3600)
    q.pop()  # notes it
    q.pop()
    q.move(11)
    q.pop()
    assert q.where("a") == "completed"


def test_a_paused_queue_gives_nothing(q: Probe) -> None:
    q.push("a")
    q.run(job_commands.pause(q.keys))
    assert q.popped() == []
    q.run(job_commands.resume(q.keys))
    assert q.popped() == ["a"]


def test_a_job_is_refused_with_a_note_and_blocks_nobody(q: Probe) -> None:
    q.add("job1", "job2")
    q.push("data")
    reply = q.pop(count=1)
    assert (reply.bodies, reply.refused, reply.more) == ([ITEM_MARK + b'"data"'], 2, False)
    assert q.where("job1") == q.where("job2") == "failed"
    assert "not data" in q.errors("job1")[0]
    assert q.retry("job1") == ["ok"]
    assert [job.id for job in q.claim().jobs] == ["job1"]


def test_few_jobs_are_refused_at_once_for_their_notes_may_be_long(q: Probe) -> None:
    q.push("data")
    q.add(*(f"job{n:02d}" for n in range(20)), priority=6)
    q.raw.hset(q.keys["meta"], "kind", "data")
    first = q.pop(count=250)
    assert (first.refused, first.more) == (12, True)
    second = q.pop(count=250)
    assert (second.refused, second.more, len(second.bodies)) == (8, False, 1)


def test_a_job_that_was_retried_keeps_its_notes_when_it_is_refused(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", b'{"type":"E","message":"first"}')
    q.push("data")
    assert q.pop().refused == 1
    assert q.errors("a") == ["first", q.errors("a")[-1]]
    assert q.record("a").attempt == 2


def test_a_reply_is_some_megabytes_long_at_most(q: Probe) -> None:
    ids = [f"i{n}" for n in range(4)]
    q.add(*ids, body=BIG)
    first = q.pop(count=4)
    assert len(first.bodies) == 2
    assert first.more
    second = q.pop(count=4)
    assert len(second.bodies) == 2
    assert not second.more


def test_those_who_wait_for_the_item_are_told(q: Probe) -> None:
    q.push("a")
    assert q.watch("a") == "due"
    q.pop()
    assert q.zset("waiters") == {}


def test_claims_of_consumers_that_are_long_gone_are_forgotten(q: Probe) -> None:
    for i in range(66):
        q.pop(f"old-{i}")
    q.move(601)
    for i in range(12):
        q.pop(f"new-{i}")
    assert q.raw.hlen(q.keys["claims"]) <= 64 + 12


def test_a_consumer_that_was_a_timekeeper_is_one_no_more(q: Probe) -> None:
    q.claim("c1", 1)
    assert "c1" in q.zset("keep")
    q.pop("c1")
    assert "c1" not in q.zset("keep")


def test_what_a_purge_left_is_swept(q: Probe) -> None:
    q.push(*(f"i{n}" for n in range(150)))
    q.run(job_commands.purge(q.keys, "this"))
    assert q.raw.hlen(q.keys["jobs"]) == 150
    q.pop()
    assert q.raw.hlen(q.keys["jobs"]) == 50


# -- what claim says to those who do not stay


def test_a_claim_that_brought_something_sets_no_deadline_where_it_need_not(q: Probe) -> None:
    q.push("a")
    q.push("b", when=f"+{SECOND}")
    assert q.claim("c1", 5, arm=1).until_us == 0
    assert q.zset("keep") == {}


def test_one_that_brought_nothing_keeps_the_time_if_it_says_so(q: Probe) -> None:
    q.push("b", when=f"+{SECOND}")
    reply = q.claim("c1", 5, arm=1)
    assert reply.until_us == reply.deadline_us > 0
    assert list(q.zset("keep")) == ["c1"]
    assert q.claim("c1", 5, arm=0).until_us == 0
    assert q.zset("keep") == {}


def test_whoever_goes_calls_another(q: Probe) -> None:
    """Else nobody would be there at the deadline."""
    for worker in ("w1", "w0", "w1", "w2"):  # who was alone at first is called, and claims again
        q.claim(worker, 1)
    q.hear()
    assert list(q.zset("keep")) == ["w0", "w1"]
    q.claim("w0", 1, arm=0)
    assert q.hear() == "w0"


def test_where_there_are_only_jobs_they_stay_as_they_are(q: Probe) -> None:
    q.add(*(f"job{n:02d}" for n in range(20)))
    before = q.holding()
    reply = q.pop(count=250)
    assert (reply.not_data, reply.bodies, reply.refused) == (True, [], 0)
    after = q.holding()
    assert (after.due, after.records, after.hashes) == (before.due, before.records, before.hashes)
    q.push("data", priority=9)
    assert q.popped(count=1) == ["data"], "the call that found nothing is not remembered"


def test_where_data_are_known_to_be_even_lone_jobs_fail(q: Probe) -> None:
    q.run(job_commands.mark_data(q.keys, Retention(), pushes=True))
    q.add("job")
    reply = q.pop()
    assert (reply.not_data, reply.refused, q.where("job")) == (False, 1, "failed")


def test_a_repeat_that_comes_too_late_says_how_many_are_lost(q: Probe) -> None:
    q.configure(completed=0)
    q.push("a", "b", "c")
    q.pop("c1", 2, seq=7)
    q.move(16)
    assert q.popped("other") == ["c"]
    again = q.pop("c1", 2, seq=7)
    assert (again.bodies, again.lost) == ([], 2)


def test_what_was_put_back_is_not_lost(q: Probe) -> None:
    q.push("a")
    q.pop("c1", seq=1)
    q.retry("a")
    assert q.popped("c2") == ["a"]
    assert q.pop("c1", seq=1).lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pop", "claim"])
def test_no_call_takes_more_than_the_script_can_name(q: Probe, verb: str) -> None:
    """Whoever calls it, and whatever they ask for."""
    for _ in range(40):
        q.push(*(new_id() for _ in range(enqueue_commands.CHUNK)))
    args: tuple[Any, ...] = ("c1", 1, 9_000, 0)
    if verb == "claim":
        args = ("c1", 1, 9_000, 10 * SECOND, 0, 0, "", 0, 0)
    q.reply(command(verb, q.keys, args, list))
    assert len(q.holding().due) == 10_000 - 250


# -- large bodies


def test_a_claim_brings_some_megabytes_at_most_and_says_that_there_is_more(q: Probe) -> None:
    ids = [f"i{n}" for n in range(4)]
    q.add(*ids, body=BIG)
    claims = [q.claim(count=4, busy=n) for n in range(2)]
    assert [[job.id for job in claim.jobs] for claim in claims] == [ids[:2], ids[2:]]
    assert [claim.more for claim in claims] == [True, False]
    assert q.claim(count=4).jobs == []


@pytest.mark.parametrize("verb", ["pop", "claim"])
def test_however_large_a_job_is_it_comes_out(q: Probe, verb: str) -> None:
    q.add("a", "b", body=ITEM_MARK + b'"' + b"x" * 5_000_000 + b'"')
    for _ in "ab":
        came = q.pop(count=9).bodies if verb == "pop" else q.claim(count=9).jobs
        assert len(came) == 1


# -- the mark of a queue of data


def test_a_queue_is_one_of_data_by_its_first_push_or_by_what_it_has(q: Probe) -> None:
    def marked(pushes: bool) -> bool:
        return q.run(job_commands.mark_data(q.keys, Retention(completed=0), pushes))

    assert not marked(pushes=False), "it is empty, and may become anything"
    q.add("job")
    assert not marked(pushes=True)
    assert not q.run(job_commands.counts(q.keys)).is_data
    q.raw.flushdb()
    q.push("other-language")
    assert marked(pushes=False)
    assert q.run(job_commands.counts(q.keys)).is_data
    assert q.holding().meta["retention"].startswith("10000 0 ")
    q.raw.flushdb()
    q.configure(completed=7)
    assert marked(pushes=True)
    assert q.holding().meta["retention"].startswith("10000 7000000 "), "what was set stays"


# -- the retention of a queue that is new


def test_a_setting_for_new_queues_leaves_others_alone(q: Probe) -> None:
    only_new = job_commands.mark_data(q.keys, Retention(completed=1), pushes=True)
    q.run(only_new)
    assert q.holding().meta["retention"].startswith("10000 1000000 ")
    q.run(job_commands.mark_data(q.keys, Retention(completed=2), pushes=True))
    assert q.holding().meta["retention"].startswith("10000 1000000 ")
    q.raw.flushdb()
    q.add("a")
    q.run(only_new)
    assert "retention" not in q.holding().meta


@pytest.mark.parametrize("count", [1, 250])
def test_the_queue_is_legal_after_all_that(q: Probe, count: int) -> None:
    q.push(*(f"i{n}" for n in range(count)))
    assert len(q.popped(count=count)) == count
    assert_legal(q.raw, q.queue)
