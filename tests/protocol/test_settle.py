"""Settle: each outcome, and what it leaves on the server."""

from __future__ import annotations

from collections import Counter

import pytest

from bide.errors import ScriptBug
from bide.model.durations import from_us
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from bide.worker.outcome import CRASHES
from tests.support.probe import BODY, LEASE, SECOND, Probe

CRASH = b'{"type":"bide.WorkerCrashed","message":"SIGSEGV"}'
ERROR = b'{"type":"ValueError","message":"no"}'


def now_of(q: Probe, *settles: Settle) -> int:
    """Settle, and the server's time at which that happened."""
    reply = q.reply(worker_commands.settle(q.keys, settles))
    assert reply[2:] == [b"ok"] * len(settles)
    now: int = reply[1]
    return now


def test_complete_keeps_the_result_and_the_time(q: Probe) -> None:
    job = q.take("a")
    now = now_of(q, Settle("a", job.token, "complete", "", b'{"sum":9007199254740993}'))
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {"completed": {"a": now}}
    assert holding.hashes["results"] == {"a": b'{"sum":9007199254740993}'}
    assert holding.hashes["jobs"] == {"a": BODY}
    assert holding.records["a"].settled == "C"
    assert holding.total("completed") == 1


def test_complete_without_a_result_stores_none(q: Probe) -> None:
    assert q.settle(q.take("a"), "complete") == "ok"
    assert q.holding().hashes["results"] == {}
    assert not q.raw.exists(q.keys["results"])


def test_fail_keeps_the_error_and_the_time(q: Probe) -> None:
    job = q.take("a")
    now = now_of(q, Settle("a", job.token, "fail", "", ERROR))
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {"failed": {"a": now}}
    assert holding.records["a"].settled == "F"
    assert q.errors("a") == ["no"]
    assert holding.total("failed") == 1


def test_retry_is_the_same_job_due_again_with_its_error_kept(q: Probe) -> None:
    (_receipt,) = q.add("a", priority=8)
    (job,) = q.claim().jobs
    now = now_of(q, Settle("a", job.token, "retry", f"+{30 * SECOND}", ERROR))
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {
        "due:8": {"a": now + 30 * SECOND}
    }
    assert holding.records["a"].settled == "R"
    assert q.errors("a") == ["no"]
    assert holding.total("retried") == 1
    assert q.taken() == []
    q.move(30)
    (again,) = q.claim().jobs
    assert (again.attempt, again.due_us) == (2, now + 30 * SECOND)


def test_a_retry_may_be_due_at_a_moment(q: Probe) -> None:
    job = q.take("a")
    at = q.now + 5 * SECOND
    q.settle(job, "retry", f"={at}")
    assert q.holding().due == {"a": at}


def test_snooze_is_due_later_and_uses_no_attempt(q: Probe) -> None:
    job = q.take("a")
    now = now_of(q, Settle("a", job.token, "snooze", f"+{60 * SECOND}"))
    assert q.holding().due == {"a": now + 60 * SECOND}
    assert q.record("a").settled == "S"
    assert q.record("a").attempt == 0
    q.move(60)
    (again,) = q.claim().jobs
    assert again.attempt == 1


def test_what_nobody_serves_is_looked_at_again_and_keeps_one_reason(q: Probe) -> None:
    q.settle(q.take("a"), "retry", "+0", ERROR)
    (first,) = q.claim().jobs
    assert first.missing_us == 0
    for worker in ("w2", "w3", "w4"):
        q.settle(first, "snooze", f"+{SECOND}", ERROR.replace(b"no", worker.encode()))
        q.move(1)
        (again,) = q.claim(worker).jobs
        assert again.attempt == 2
        assert again.missing_us
        first, since = again, again.missing_us
    assert first.token - since >= 3 * SECOND  # since the first of the looks
    assert q.errors("a") == ["no", "w2"]


@pytest.mark.parametrize("outcome", ["retry", "snooze", "crash"])
def test_what_has_run_is_not_missing_any_more(q: Probe, outcome: Outcome) -> None:
    q.settle(q.take("a"), "snooze", "+0", ERROR)
    (job,) = q.claim().jobs
    assert job.missing_us
    q.settle(job, outcome, "" if outcome == "crash" else "+0")
    (job,) = q.claim().jobs
    assert job.missing_us == 0


def test_what_was_given_back_unbegun_or_lost_its_worker_is_still_missing(q: Probe) -> None:
    q.settle(q.take("a"), "snooze", "+0", ERROR)
    (job,) = q.claim().jobs
    q.settle(job, "release")
    (again,) = q.claim("w2").jobs
    assert again.missing_us == job.missing_us != 0


def test_a_job_that_was_retried_by_hand_is_looked_for_anew(q: Probe) -> None:
    q.settle(q.take("a"), "snooze", "+0", ERROR)
    (job,) = q.claim().jobs
    q.settle(job, "fail", data=ERROR)
    q.run(job_commands.retry(q.keys, ["a"], "+0"))
    (job,) = q.claim().jobs
    assert (job.attempt, job.missing_us) == (1, 0)


def test_a_look_by_who_does_not_serve_it_is_no_evidence_that_it_does_not_crash(q: Probe) -> None:
    job = q.take("a")
    for _ in range(2):
        q.settle(job, "crash", data=ERROR)
        (job,) = q.claim().jobs
    q.settle(job, "snooze", "+0", ERROR)
    (job,) = q.claim().jobs
    assert (job.crashes, job.reclaims) == (2, 2)


def test_release_gives_back_to_the_old_place_and_uses_no_attempt(q: Probe) -> None:
    (receipt,) = q.add("a", priority=2)
    (job,) = q.claim().jobs
    q.move(1)
    assert q.settle(job, "release") == "ok"
    holding = q.holding()
    assert holding.sets["due:2"] == {"a": receipt.due_us}
    assert holding.records["a"].settled == "L"
    (again,) = q.claim().jobs
    assert again.attempt == 1
    assert again.due_us == receipt.due_us


def test_only_what_ended_by_an_error_is_another_attempt(q: Probe) -> None:
    q.add("a")
    attempts = []
    outcomes: list[Outcome] = ["release", "snooze", "retry", "snooze", "retry", "release"]
    for outcome in outcomes:
        (job,) = q.claim().jobs
        attempts.append(job.attempt)
        q.settle(job, outcome, "+0")
    (last,) = q.claim().jobs
    assert [*attempts, last.attempt] == [1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("outcome", ["complete", "snooze", "release"])
def test_the_last_error_stays_whatever_comes_after_it(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", ERROR)
    (job,) = q.claim().jobs
    q.settle(job, outcome, "+0", b"7" if outcome == "complete" else b"")
    assert q.errors("a") == ["no"]


def test_a_later_error_stands_behind_an_earlier_one(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", ERROR)
    (job,) = q.claim().jobs
    q.settle(job, "fail", data=ERROR.replace(b"no", b"never"))
    assert q.errors("a") == ["no", "never"]


def test_one_call_settles_many_each_in_its_own_way(q: Probe) -> None:
    q.add(*"abcdef")
    a, b, c, d, e, f = q.claim().jobs
    verdicts = q.settle_many(
        Settle(a.id, a.token, "complete", "", b"1"),
        Settle(b.id, b.token, "retry", "+1000000", ERROR),
        Settle(c.id, c.token, "fail", "", ERROR),
        Settle(d.id, d.token, "snooze", "+2000000"),
        Settle(e.id, e.token, "release"),
        Settle(f.id, f.token, "cancel"),
    )
    assert verdicts == ["ok"] * 6
    holding = q.holding()
    places = ["completed", "due", "failed", "due", "due", "cancelled"]
    assert [holding.where(id) for id in "abcdef"] == places
    assert {id: r.settled for id, r in holding.records.items()} == dict(
        zip("abcdef", "CRFSLX", strict=True)
    )


def test_a_crash_is_run_again_at_its_place_and_uses_no_attempt(q: Probe) -> None:
    (receipt,) = q.add("a", priority=3)
    (job,) = q.claim().jobs
    now = now_of(q, Settle("a", job.token, "crash", "", CRASH))
    holding = q.holding()
    assert holding.sets["due:3"] == {"a": receipt.due_us}
    record = holding.records["a"]
    assert (record.settled, record.attempt, record.crashes, record.strikes) == ("K", 0, 1, 0)
    assert holding.total("reclaimed") == 1
    (attempt,) = q.notes("a").attempts
    assert attempt.crashed
    assert attempt.error is not None
    assert (attempt.number, attempt.worker, attempt.error.message) == (1, "w1", "SIGSEGV")
    assert attempt.ended == from_us(now)
    (again,) = q.claim().jobs
    assert (again.attempt, again.reclaims, again.crashes) == (1, 1, 1)


def test_the_third_crash_in_a_row_fails_a_job_with_its_evidence(q: Probe) -> None:
    q.add("a")
    for _ in range(CRASHES):
        assert q.where("a") == "due"
        (job,) = q.claim().jobs
        assert q.settle(job, "crash", "", CRASH) == "ok"
    assert q.where("a") == "failed"
    assert q.errors("a") == ["SIGSEGV"] * 3
    assert q.holding().total("failed") == 1
    assert q.holding().total("reclaimed") == 3
    assert q.settle(job, "crash", "", CRASH) == "ok", "again, because the reply was lost"
    assert q.holding().total("failed") == 1


@pytest.mark.parametrize("outcome", ["retry", "snooze"])
def test_what_ends_otherwise_has_not_crashed_in_a_row(q: Probe, outcome: Outcome) -> None:
    q.add("a")
    for _ in range(2):
        for _ in range(2):
            (job,) = q.claim().jobs
            q.settle(job, "crash", "", CRASH)
        (job,) = q.claim().jobs
        assert job.reclaims == 2
        q.settle(job, outcome, "+0")
    assert q.where("a") == "due"
    assert q.record("a").crashes == 0


def test_a_release_leaves_crashes_as_they_were(q: Probe) -> None:
    q.add("a")
    (job,) = q.claim().jobs
    q.settle(job, "crash", "", CRASH)
    (job,) = q.claim().jobs
    q.settle(job, "release")
    assert q.record("a").crashes == 1


def test_a_crash_counts_beside_those_that_a_lease_told_of(q: Probe) -> None:
    q.add("a")
    for _ in range(2):
        (job,) = q.claim().jobs
        q.settle(job, "crash", "", CRASH)
    assert q.taken("doomed") == ["a"]
    q.leave("doomed")
    q.move(LEASE + 1)
    q.claim("undertaker", 0)
    record = q.record("a")
    assert (record.crashes, record.strikes) == (2, 1), "a lease names no culprit among others"
    (job,) = q.claim().jobs
    assert (job.reclaims, job.crashes) == (3, 2)
    q.settle(job, "crash", "", CRASH)
    assert q.where("a") == "failed"


def test_a_job_that_has_crashed_too_often_is_kept_for_as_long_as_it_says(q: Probe) -> None:
    q.add("a")
    for _ in range(CRASHES):
        (job,) = q.claim().jobs
        now = now_of(q, Settle("a", job.token, "crash", data=CRASH, keep=f"+{60 * SECOND}"))
    month = 30 * 86_400 * SECOND
    assert q.holding().sets["failed"] == {"a": now + 60 * SECOND - month}


def test_a_suspect_that_crashed_still_runs_alone(q: Probe) -> None:
    q.add("a")
    for _ in range(2):
        q.taken("doomed")
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    (job,) = q.claim().jobs
    q.settle(job, "crash", "", CRASH)
    assert list(q.holding().sets["due:alone"]) == ["a"]
    assert not q.record("a").alone


def test_a_crash_of_one_that_was_asked_to_stop_is_its_end(q: Probe) -> None:
    job = q.take("a")
    assert q.cancel("a") == ["asked"]
    q.settle(job, "crash", "", CRASH)
    assert q.where("a") == "cancelled"
    assert q.errors("a") == ["SIGSEGV"], "which is told all the same"
    assert q.holding().total("reclaimed") == 0


def test_a_crash_of_a_lease_that_has_passed_on_is_refused(q: Probe) -> None:
    job = q.take("a")
    q.move(LEASE + 1)
    (again,) = q.claim("w2").jobs
    assert q.settle(job, "crash", "", CRASH) == "lost"
    assert q.record("a").crashes == 0
    assert q.settle(again, "complete") == "ok"


def test_verdicts_come_in_the_order_of_the_settles(q: Probe) -> None:
    q.add("a", "b")
    a, b = q.claim().jobs
    verdicts = q.settle_many(
        Settle("nobody", 1, "complete"),
        Settle(b.id, b.token, "complete"),
        Settle(a.id, a.token - 1, "complete"),
        Settle(a.id, a.token, "complete"),
    )
    assert verdicts == ["gone", "ok", "lost", "ok"]


def test_as_many_as_a_call_may_hold(q: Probe) -> None:
    ids = [f"j{i:03}" for i in range(worker_commands.MAX_SETTLES)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = q.claim(count=worker_commands.MAX_SETTLES).jobs
    settles = [Settle(job.id, job.token, "complete", "", b"1") for job in jobs]
    assert q.settle_many(*settles) == ["ok"] * len(ids)
    assert len(q.zset("completed")) == len(ids)
    assert q.raw.hlen(q.keys["results"]) == len(ids)


def test_errors_of_jobs_with_long_notes_take_more_than_one_call(q: Probe) -> None:
    """A call reads a megabyte of notes; the client sends what is left again."""
    ids = [f"j{i:03}" for i in range(60)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = q.claim(count=60).jobs
    long = 'L 1 "' + "x" * 30_000 + '"'
    q.raw.hset(q.keys["notes"], mapping=dict.fromkeys(ids[:50], long))
    settles = [Settle(job.id, job.token, "fail", "", ERROR) for job in jobs]
    one_call = q.run(worker_commands.settle(q.keys, settles)._replace(followup=None))
    assert Counter(one_call) == {"ok": 34, "later": 26}
    assert q.settle_many(*settles) == ["ok"] * 60
    assert len(q.zset("failed")) == 60
    assert q.settle_many(*settles) == ["ok"] * 60, "a repeat changes nothing"
    for id in ids:
        assert bytes(q.raw.hget(q.keys["notes"], id) or b"").count(ERROR) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        Settle("b", 1, "retry", ""),
        Settle("b", 1, "retry", "soon"),
        Settle("b", 1, "snooze", "-1"),
        Settle("b", 1, "complete", keep="a while"),
        Settle("b", 1, "fail", keep="+1.5"),
        Settle("b", 10**16, "complete"),
        Settle("b", 1, "vanish"),  # type: ignore[arg-type]
    ],
)
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, bad: Settle
) -> None:
    job = q.take("a")
    before = q.holding()
    with pytest.raises(ScriptBug, match="BADARG settle"):
        q.settle_many(Settle(job.id, job.token, "complete"), bad)
    assert q.holding() == before


def test_no_settle_at_all_is_refused(q: Probe) -> None:
    with pytest.raises(ScriptBug, match="BADARG settle"):
        q.settle_many()


def test_a_job_may_end_as_cancelled(q: Probe) -> None:
    job = q.take("a")
    now = now_of(q, Settle("a", job.token, "cancel"))
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {"cancelled": {"a": now}}
    assert holding.records["a"].settled == "X"
    assert holding.records["a"].attempt == 1
    assert holding.total("cancelled") == 1


def test_a_paused_queue_takes_outcomes(q: Probe) -> None:
    job = q.take("a")
    q.run(job_commands.pause(q.keys))
    assert q.settle(job, "complete") == "ok"
    assert q.where("a") == "completed"


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release", "crash"])
def test_a_record_that_cannot_be_read_spoils_nothing_but_itself(q: Probe, outcome: Outcome) -> None:
    """Its head is enough to know whose the job is, and how it ended."""
    job = q.take("a")
    line = q.raw.hget(q.keys["run"], "a")
    assert isinstance(line, bytes)
    q.raw.hset(q.keys["run"], "a", line[:34].decode() + " another version's words")
    assert q.settle(job, outcome, "+0") == "ok"
    assert q.settle(job, outcome, "+0") == "ok"
    assert q.settle(job, "complete") == "lost"
    (again,) = q.claim().jobs
    assert again.token > job.token
