"""Unique: while a job holds a key, others with the same key stay out, replace it or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bide.errors import ScriptBug
from bide.model.job import Claimed
from bide.model.payload.body import Body, decode_body, encode_body
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, LEASE, SECOND, Probe


def body(*args: Any) -> bytes:
    return encode_body(Body("app.tasks:send", args))


def call(
    q: Probe,
    id: str,
    way: str = "uk,f",
    *,
    key: str = "k",
    arg: object = None,
    when: str = "+0",
    priority: int = 5,
    more: str = "",
) -> tuple[str, str]:
    """What an enqueue came to, and the id of the job that it returns."""
    job = Prepared(id, when, priority, body(arg), constraints=f"{more}k={key} f={way}")
    (receipt,) = q.add_many(job)
    return receipt.result, receipt.id


def arg_of(q: Probe, id: str) -> Any:
    return decode_body(q.holding().hashes["jobs"][id]).args[0]


def test_a_second_is_kept_out_until_the_first_has_finished(q: Probe) -> None:
    assert call(q, "a", arg=1) == ("created", "a")
    assert call(q, "b", arg=2, when=f"+{SECOND}") == ("duplicate", "a")
    (job,) = q.claim().jobs
    assert call(q, "c") == ("duplicate", "a")
    assert q.settle(job, "retry", f"+{SECOND}") == "ok"
    assert call(q, "d") == ("duplicate", "a")
    q.move(2)
    (job,) = q.claim().jobs
    assert (job.id, arg_of(q, "a")) == ("a", 1)
    q.settle(job, "complete")
    assert call(q, "e") == ("created", "e")
    assert sorted(q.holding().hashes["jobs"]) == ["a", "e"]


@pytest.mark.parametrize("outcome", ["complete", "fail", "cancel"])
def test_whatever_its_end_it_holds_no_longer(q: Probe, outcome: Any) -> None:
    call(q, "a")
    (job,) = q.claim().jobs
    q.settle(job, outcome)
    assert call(q, "b") == ("created", "b")


def test_a_crashed_one_holds_until_it_has_failed(q: Probe) -> None:
    call(q, "a")
    for _ in range(3):
        assert call(q, "b") == ("duplicate", "a")
        (job,) = q.claim().jobs
        q.settle(job, "crash")
    assert q.where("a") == "failed"
    assert call(q, "b") == ("created", "b")


def test_a_job_that_is_taken_back_or_deleted_frees_its_key(q: Probe) -> None:
    for way in ("uk,f", "uk,s", f"uk,{3600 * SECOND}"):
        removals: list[Command[Any]] = [
            job_commands.cancel(q.keys, ["a"], False),
            job_commands.delete(q.keys, ["a"]),
            job_commands.purge(q.keys, f"e{way[3]}"),
        ]
        for remove in removals:
            assert call(q, "a", way) == ("created", "a"), (way, remove.script)
            q.run(remove)
            q.run(job_commands.purge(q.keys, None))
            assert call(q, "b", way) == ("created", "b"), (way, remove.script)
            q.run(job_commands.delete(q.keys, ["a", "b"]))


def test_what_is_deleted_frees_only_what_it_holds(q: Probe) -> None:
    call(q, "a", f"uk,{SECOND}")
    q.move(2)
    assert call(q, "b", f"uk,{60 * SECOND}") == ("created", "b")
    q.run(job_commands.delete(q.keys, ["a"]))
    assert call(q, "c", f"uk,{60 * SECOND}") == ("duplicate", "b")


def test_an_expired_one_frees_its_key(q: Probe) -> None:
    for way in ("uk,f", f"uk,{3600 * SECOND}"):
        call(q, "a", way, more=f"x=+{SECOND} ")
        q.move(2)
        assert q.taken() == []
        assert call(q, "b", way) == ("created", "b")
        q.run(job_commands.delete(q.keys, ["a", "b"]))


def test_one_that_is_swept_by_a_claim_frees_its_key(q: Probe) -> None:
    call(q, "a", f"uk,{3600 * SECOND}")
    q.run(job_commands.purge(q.keys, "e1"))
    q.taken()
    assert call(q, "b", f"uk,{3600 * SECOND}") == ("created", "b")


def trim_with_cancel(q: Probe, job: Claimed) -> None:
    q.add("y")
    q.cancel("y")


def trim_with_claim(q: Probe, job: Claimed) -> None:
    q.claim()


def trim_with_settle(q: Probe, job: Claimed) -> None:
    q.settle(job, "cancel")


def trim_with_pop(q: Probe, job: Claimed) -> None:
    q.pop()


@pytest.mark.parametrize(
    "trim", [trim_with_cancel, trim_with_claim, trim_with_settle, trim_with_pop]
)
def test_a_cancelled_one_that_is_not_kept_any_more_holds_no_key(
    q: Probe, trim: Callable[[Probe, Claimed], None]
) -> None:
    """Its key was free, which only its record says: so it is to be when that is gone."""
    q.configure(cancelled=20)
    way = f"uk,{3600 * SECOND}"
    call(q, "a", way)
    q.cancel("a")
    job = q.take("x")
    q.move(25)
    trim(q, job)
    assert q.fetch("a") is None
    assert call(q, "b", way) == ("created", "b")


def test_a_completed_one_that_is_not_kept_any_more_still_holds_its_key(q: Probe) -> None:
    q.configure(completed=20, failed=20)
    way = f"uk,{3600 * SECOND}"
    for id, outcome in (("a", "complete"), ("b", "fail")):
        call(q, id, way, key=id)
        (job,) = q.claim().jobs
        q.settle(job, outcome)  # type: ignore[arg-type]
    q.move(25)
    q.claim()
    assert (q.fetch("a"), q.fetch("b")) == (None, None)
    assert call(q, "c", way, key="a") == ("duplicate", "a")
    assert call(q, "c", way, key="b") == ("duplicate", "b")


def test_until_started_holds_only_while_it_has_not_begun(q: Probe) -> None:
    assert call(q, "a", "uk,s") == ("created", "a")
    assert call(q, "b", "uk,s") == ("duplicate", "a")
    (job,) = q.claim().jobs
    assert call(q, "c", "uk,s") == ("created", "c")
    assert call(q, "d", "uk,s") == ("duplicate", "c")
    q.settle(job, "retry", f"+{SECOND}")
    q.cancel("c")
    call(q, "e", "uk,s", key="other")
    (again,) = q.claim().jobs
    q.settle(again, "retry", f"+{SECOND}")
    assert call(q, "f", "uk,s", key="other") == ("created", "f")


def test_one_that_was_given_back_unbegun_holds_again(q: Probe) -> None:
    call(q, "a", "uk,s")
    (job,) = q.claim().jobs
    q.settle(job, "release")
    assert call(q, "b", "uk,s") == ("duplicate", "a")


def test_for_a_time_it_holds_whatever_becomes_of_the_job(q: Probe) -> None:
    q.configure(completed=0)
    call(q, "a", f"uk,{60 * SECOND}")
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    assert call(q, "b", f"uk,{60 * SECOND}") == ("duplicate", "a")
    q.move(59)
    q.settle(q.take("x"), "complete")
    assert q.where("a") is None
    assert call(q, "b", f"uk,{60 * SECOND}") == ("duplicate", "a")
    q.move(1)
    assert call(q, "b", f"uk,{60 * SECOND}") == ("created", "b")


def test_a_time_that_is_over_frees_the_key_of_one_that_waits(q: Probe) -> None:
    call(q, "a", f"uk,{SECOND}")
    q.move(1)
    assert call(q, "b", f"uk,{SECOND}") == ("created", "b")


def test_a_call_replaces_what_waits(q: Probe) -> None:
    call(q, "a", arg=1, when=f"+{60 * SECOND}")
    call(q, "a2", key="other", arg=1, when=f"+{60 * SECOND}")
    earliest = q.now + 10 * SECOND
    assert call(
        q, "b", "ur,f", arg=2, when=f"+{10 * SECOND}", priority=7, more=f"x=+{9 * SECOND} "
    ) == ("replaced", "a")
    assert arg_of(q, "a") == 2
    seen = q.fetch("a")
    assert seen
    assert seen.priority == 7
    assert earliest <= seen.since_us <= seen.now_us + 10 * SECOND
    assert q.zset("expiring") == {"a": seen.since_us + 9 * SECOND}
    assert call(q, "c", "ur,f", arg=3, when=f"+{20 * SECOND}") == ("replaced", "a")
    assert q.zset("expiring") == {}
    assert q.holding().hashes["terms"]["a"] == b"k=k f=ur,f"
    q.move(21)
    assert q.taken() == ["a"]


def test_a_higher_priority_holds_though_the_time_stays(q: Probe) -> None:
    at = q.now + 60 * SECOND
    call(q, "a", when=f"={at}", priority=3)
    call(q, "b", "ur,f", when=f"={at}", priority=9)
    assert q.holding().sets["due:9"] == {"a": at}


def test_one_that_is_overdue_keeps_its_place_when_it_is_replaced(q: Probe) -> None:
    call(q, "a", "ur,f", arg=1)
    q.add("x")
    q.move(1)
    call(q, "b", "ur,f", arg=2)
    assert q.taken(count=1) == ["a"]


def test_what_runs_is_not_replaced_and_what_waits_again_is(q: Probe) -> None:
    call(q, "a", "ur,f", arg=1)
    (job,) = q.claim().jobs
    assert call(q, "b", "ur,f", arg=2) == ("duplicate", "a")
    q.settle(job, "retry", f"+{60 * SECOND}")
    assert call(q, "c", "ur,f", arg=3, priority=9) == ("replaced", "a")
    (job,) = q.claim().jobs
    assert (job.id, job.attempt, arg_of(q, "a")) == ("a", 2, 3)


def test_one_that_was_given_back_keeps_its_priority_when_it_is_replaced(q: Probe) -> None:
    call(q, "a", "ur,s", arg=1, priority=3)
    (job,) = q.claim().jobs
    q.settle(job, "release")
    assert call(q, "b", "ur,s", arg=2, priority=9) == ("replaced", "a")
    assert q.record("a").priority == 3


@pytest.mark.parametrize("suspect", [False, True])
def test_one_that_has_run_in_a_group_keeps_its_priority_outside(q: Probe, suspect: bool) -> None:
    call(q, "a", "ur,f", arg=1, priority=3, more="g=g ")
    for _ in range(2 if suspect else 0):
        assert q.taken() == ["a"]
        q.move(LEASE + 1)
    (job,) = q.claim().jobs or q.claim().jobs  # the first meets a suspect
    assert q.settle(job, "release") == "ok"
    assert call(q, "b", "ur,f", arg=2, priority=9) == ("replaced", "a")
    assert "a" in q.zset_of("due:alone" if suspect else "due:3")


@pytest.mark.parametrize("way", ["uk,s", f"d{SECOND},0"])
def test_one_that_is_given_back_unbegun_holds_its_key_again(q: Probe, way: str) -> None:
    call(q, "a", way)
    q.move(2)
    (job,) = q.claim().jobs
    assert call(q, "b", key="another") == ("created", "b"), "which clears away what holds nothing"
    assert q.settle(job, "release") == "ok"
    assert call(q, "c", way)[1] == "a"


def test_a_call_can_be_rejected(q: Probe) -> None:
    call(q, "a", when=f"+{SECOND}")
    job = Prepared("b", "+0", 5, BODY, constraints="k=k f=ux,f")
    (receipt,) = q.add_many(job)
    assert (receipt.result, receipt.id, receipt.created) == ("rejected", "a", False)
    assert receipt.due_us == q.holding().due["a"]
    assert list(q.holding().hashes["jobs"]) == ["a"]


def test_keys_and_kinds_do_not_meet(q: Probe) -> None:
    assert call(q, "a") == ("created", "a")
    assert call(q, "b", key="k2") == ("created", "b")
    assert call(q, "c", f"d{SECOND},0") == ("created", "c")
    assert call(q, "d", f"t1,{SECOND}") == ("created", "d")
    assert call(q, "e", f"g{SECOND},0,9") == ("created", "e")


def test_a_repeat_finds_itself(q: Probe) -> None:
    assert call(q, "a", "ur,f", arg=1, when="+60") == ("created", "a")
    assert call(q, "a", "ur,f", arg=1, when="+60") == ("duplicate", "a")
    assert call(q, "b", "ur,f", arg=2, when="+60") == ("replaced", "a")
    assert call(q, "c", "ur,f", arg=3, when="+60") == ("replaced", "a")
    assert call(q, "b", "ur,f", arg=2, when="+60") == ("replaced", "a")
    assert arg_of(q, "a") == 3


def test_a_repeat_of_a_duplicate_adds_a_job_if_the_key_is_free_by_then(q: Probe) -> None:
    for way, word in (("uk,f", "duplicate"), ("ux,f", "rejected")):
        assert call(q, f"a{word}", way) == ("created", f"a{word}")
        assert call(q, f"b{word}", way) == (word, f"a{word}")
        q.settle(q.take(f"a{word}"), "complete")
        assert call(q, f"b{word}", way) == ("created", f"b{word}")
        q.settle(q.take(f"b{word}"), "complete")


def test_its_own_id_comes_before_its_key(q: Probe) -> None:
    q.add("b")
    call(q, "a")
    assert call(q, "b") == ("duplicate", "b")


def test_a_namesake_of_what_was_set_aside_is_new(q: Probe) -> None:
    for i, way in enumerate(("uk,f", f"uk,{3600 * SECOND}", f"d{SECOND},0")):
        call(q, "a", way)
        q.run(job_commands.purge(q.keys, f"e{i}"))
        assert call(q, "a", way) == ("created", "a")
        q.run(job_commands.delete(q.keys, ["a"]))
        q.run(job_commands.purge(q.keys, None))


def test_a_namesake_that_is_deduplicated_leaves_nothing_of_what_was_set_aside(q: Probe) -> None:
    call(q, "b")
    q.run(job_commands.purge(q.keys, "e1"))
    assert [call(q, id) for id in "ab"] == [("created", "a"), ("duplicate", "a")]
    assert q.holding().ids == {"a"}


def test_a_namesake_of_other_constraints_is_another_job(q: Probe) -> None:
    q.configure(completed=0)
    call(q, "a", "ur,f")
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    q.move(30)
    q.settle(q.take("x"), "complete")
    assert q.where("a") is None
    q.add("a", when=f"+{60 * SECOND}")
    assert call(q, "b", "ur,f") == ("created", "b")


def test_an_id_that_was_deduplicated_can_be_used_again(q: Probe) -> None:
    call(q, "a", "ur,s", when=f"+{60 * SECOND}")
    assert call(q, "b", "ur,s", arg=1) == ("replaced", "a")
    q.taken()
    q.move(16)
    assert call(q, "b", "ur,s", arg=2) == ("created", "b")


def test_plain_and_unique_jobs_in_one_call_come_to_what_each_alone_would(q: Probe) -> None:
    jobs = [
        Prepared(id, "+0", 5, BODY, constraints=constraints)
        for id, constraints in [
            ("a", "k=k f=uk,f"),
            ("b", f"x=+{SECOND}"),
            ("c", "k=k f=uk,f"),
            ("d", "k=l f=ux,f"),
            ("e", "k=l f=ux,f"),
            ("a", "k=k f=uk,f"),
            ("b", f"x=+{SECOND}"),
        ]
    ]
    outcomes = [(r.result, r.id) for r in q.add_many(*jobs)]
    assert outcomes == [
        ("created", "a"),
        ("created", "b"),
        ("duplicate", "a"),
        ("created", "d"),
        ("rejected", "d"),
        ("duplicate", "a"),
        ("duplicate", "b"),
    ]
    assert q.taken() == ["a", "b", "d"]


@pytest.mark.slow
def test_entries_that_hold_nothing_do_not_pile_up(q: Probe) -> None:
    """Those that hold something stay."""
    for i in range(30):
        call(q, f"h{i}", key=f"held{i}", when=f"+{3600 * SECOND}")
    for i in range(300):
        call(q, f"j{i}", key=f"k{i}")
        for job in q.claim().jobs:
            q.settle(job, "complete")
    entries = q.raw.hgetall(q.keys["unique"])
    assert {f"u:held{i}".encode() for i in range(30)} <= entries.keys()
    assert len(entries) < 200


def test_calls_that_nobody_repeats_any_more_do_not_pile_up(q: Probe) -> None:
    call(q, "a", "ur,f", when=f"+{3600 * SECOND}")
    for i in range(20):
        for j in range(15):
            call(q, f"j{i}-{j}", "ur,f", when=f"+{3600 * SECOND}")
        q.move(16)
    assert q.raw.hlen(q.keys["folded"]) < 100


def test_a_call_whose_repeat_may_come_is_remembered(q: Probe) -> None:
    call(q, "a", "ur,f", when=f"+{3600 * SECOND}")
    for i in range(100):
        call(q, f"j{i}", "ur,f", when=f"+{3600 * SECOND}")
    assert q.raw.hlen(q.keys["folded"]) == 100


def test_what_cannot_be_read_holds_nothing(q: Probe) -> None:
    for odd in ("", "x", "a q 1", "a f x", "a -1 1"):
        q.raw.hset(q.keys["unique"], "u:k", odd)
        assert call(q, "a") == ("created", "a")
        q.run(job_commands.delete(q.keys, ["a"]))


def test_events_tell_of_jobs_and_of_due_times_that_moved(q: Probe) -> None:
    q.listen()
    call(q, "a", "ur,f", when=f"+{SECOND}")
    call(q, "b", "uk,f")
    call(q, "c", "ur,f", when=f"+{9 * SECOND}")
    assert [(e.kind, e.verb, e.job_id) for e in q.told()] == [
        ("added", "enqueue", "a"),
        ("rescheduled", "dedup", "a"),
    ]


def test_one_that_becomes_the_earliest_wakes_someone(q: Probe) -> None:
    call(q, "a", "ur,f", when=f"+{60 * SECOND}")
    q.hear()
    q.raw.zadd(q.keys["keep"], {"k1": q.now + 20 * SECOND})
    call(q, "b", "ur,f", when=f"+{60 * SECOND}")
    assert q.hear() is None
    call(q, "c", "ur,f", when=f"+{10 * SECOND}")
    assert q.hear() == "-"


@pytest.mark.parametrize(
    "constraints",
    [
        *(
            "k=k",
            "f=uk,f",
            "f=uk,f k=k",
            "k=k f=uk",
            "k=k f=uq,f",
            "k=k f=uk,s f=uk,f",
            "k= f=uk,f",
        ),
        *("k=k f=d5", "k=k f=t0,5", "k=k f=t1,0", "k=k f=g5,5", "k=k f=g5,5,0", "k=k k=l f=uk,f"),
        "k=k f=uk," + "9" * 17,
        f"k={'k' * 801} f=uk,f",
    ],
)
def test_what_no_policy_says_is_refused(q: Probe, constraints: str) -> None:
    with pytest.raises(ScriptBug):
        q.add_many(Prepared("a", "+0", 5, BODY, constraints=constraints))
    assert q.holding().hashes["jobs"] == {}


@pytest.mark.parametrize("until", ["f", "s", str(60 * SECOND)])
def test_one_that_is_run_again_after_its_end_does_not_take_its_key_again(
    q: Probe, until: str
) -> None:
    call(q, "a", f"uk,{until}")
    (job,) = q.claim().jobs
    assert q.settle(job, "complete") == "ok"
    assert q.retry("a") == ["ok"]
    is_held = until.isdigit()  # whatever becomes of the job
    assert call(q, "b", f"uk,{until}") == (("duplicate", "a") if is_held else ("created", "b"))


def test_one_that_is_run_again_leaves_the_key_to_the_next(q: Probe) -> None:
    call(q, "a")
    (job,) = q.claim().jobs
    assert q.settle(job, "complete") == "ok"
    call(q, "b")
    assert q.retry("a") == ["ok"]
    assert call(q, "c") == ("duplicate", "b")
