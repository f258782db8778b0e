"""Notes: what happened to a job, a line each, of each kind the newest within its bounds."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from bide.errors import ScriptBug, ServerFull
from bide.model.history import encode_log, encode_progress
from bide.model.job import Claimed
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import JobNote, Outcome, Settle
from tests.support.probe import LEASE, SECOND, Probe


def error(message: str) -> bytes:
    return json.dumps({"type": "E", "message": message}, separators=(",", ":")).encode()


def log(text: str) -> tuple[str, bytes]:
    return "L", encode_log(text)


def progress(fraction: float, text: str = "") -> tuple[str, bytes]:
    return "P", encode_progress(fraction, text)


def raw(q: Probe, id: str = "a") -> list[bytes]:
    """The notes as they are stored, line by line."""
    stored = q.holding().hashes["notes"].get(id)
    return stored.split(b"\n") if stored else []


def logs(q: Probe, id: str = "a") -> list[str]:
    return [line.text for line in q.notes(id).logs]


def again(q: Probe) -> Claimed:
    (job,) = q.claim().jobs
    return job


# -- what running jobs say


def test_a_line_and_progress_are_noted_with_the_servers_time(q: Probe) -> None:
    job = q.take("a")
    said = [JobNote("a", job.token, *log("hello")), JobNote("a", job.token, *progress(0.5, "half"))]
    word, now, *verdicts = q.reply(worker_commands.add_notes(q.keys, said))
    assert (word, verdicts) == (b"ok", [b"ok", b"ok"])
    assert raw(q) == [b'L %d "hello"' % now, b'P %d [0.5,"half"]' % now]


def test_lines_stand_in_the_order_in_which_they_were_said(q: Probe) -> None:
    job = q.take("a")
    q.note(job, log("1"), log("2"))
    q.note(job, progress(0.1), log("3"))
    assert logs(q) == ["1", "2", "3"]


def test_of_progress_only_the_latest_is_kept(q: Probe) -> None:
    job = q.take("a")
    q.note(job, progress(0.1), log("between"), progress(0.2))
    q.note(job, progress(0.3, "now"))
    assert [line[:1] for line in raw(q)] == [b"L", b"P"]
    latest = q.notes("a").progress
    assert latest is not None
    assert (latest.fraction, latest.text) == (0.3, "now")


def test_many_jobs_in_one_call_each_its_own(q: Probe) -> None:
    q.add("a", "b")
    a, b = q.claim().jobs
    said = [JobNote(j.id, j.token, *log(f"{j.id}{i}")) for i in range(3) for j in (a, b)]
    q.run(worker_commands.add_notes(q.keys, said))
    assert logs(q, "a") == ["a0", "a1", "a2"]
    assert logs(q, "b") == ["b0", "b1", "b2"]


@pytest.mark.parametrize("difference", [-1, 1])
def test_only_the_latest_token_may_say_anything(q: Probe, difference: int) -> None:
    job = q.take("a")
    forged = replace(job, token=job.token + difference)
    assert q.note(forged, log("forged")) == ["lost"]
    assert q.note(replace(job, id="nobody"), log("of nobody")) == ["lost"]
    assert raw(q) == []


def test_one_whose_job_was_taken_by_another_says_nothing_more(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    (other,) = q.claim("w2").jobs
    assert q.note(job, log("late")) == ["lost"]
    assert q.note(other, log("mine")) == ["ok"]
    assert logs(q) == ["mine"]


def test_words_that_come_after_the_end_still_count(q: Probe) -> None:
    """They were said before it; the round trip that brings them may come after."""
    job = q.take("a")
    q.settle(job, "complete")
    assert q.note(job, log("last words")) == ["ok"]
    assert logs(q) == ["last words"]


def test_a_job_that_is_no_more_has_no_notes(q: Probe) -> None:
    job = q.take("a")
    q.note(job, log("x"))
    q.settle(job, "complete")
    q.run(job_commands.delete(q.keys, ["a"]))
    assert q.note(job, log("y")) == ["lost"]
    assert raw(q) == []


@pytest.mark.parametrize("kind", ["E", "C", "", "LL", "x"])
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, kind: str
) -> None:
    job = q.take("a")
    before = q.holding()
    with pytest.raises(ScriptBug, match="BADARG add_notes"):
        q.note(job, log("good"), (kind, "1"))
    with pytest.raises(ScriptBug, match="BADARG add_notes"):
        q.note(job, log("good"), ("L", '"two\nlines"'))
    assert q.holding() == before


def test_a_repeat_shows_a_line_twice_and_harms_nothing_else(q: Probe) -> None:
    """The worker does not repeat it: what it sent and had no answer to is not sent again."""
    job = q.take("a")
    said = (log("once"), progress(0.5))
    q.note(job, *said)
    before = q.holding()
    q.note(job, *said)
    after = q.holding()
    assert (after.sets, after.records) == (before.sets, before.records)
    assert logs(q) == ["once", "once"]
    assert q.notes("a").progress is not None


# -- bounds


def test_a_hundred_lines_are_kept_the_newest(q: Probe) -> None:
    job = q.take("a")
    q.note(job, *(log(f"{i}") for i in range(60)))
    q.note(job, *(log(f"{i}") for i in range(60, 130)))
    assert logs(q) == [f"{i}" for i in range(30, 130)]


def test_and_so_many_as_fit_32_kilobytes(q: Probe) -> None:
    job = q.take("a")
    for i in range(20):
        q.note(job, log(f"{i:02}" + "x" * 1_998))
    kept = logs(q)
    assert kept == [f"{i:02}" + "x" * 1_998 for i in range(20 - len(kept), 20)]
    lines = [line for line in raw(q) if line[:1] == b"L"]
    size = sum(map(len, lines))
    assert size <= 32 * 1024 < size + len(lines[0])


def test_no_line_is_kept_beyond_one_that_had_no_room(q: Probe) -> None:
    """A log with a hole in it would mislead."""
    job = q.take("a")
    q.note(job, log("short"), log("x" * 2_000))
    q.note(job, *(log("x" * 2_000) for _ in range(16)))
    assert "short" not in logs(q)
    assert len(logs(q)) == 16


def test_the_newest_line_is_kept_whatever_its_size(q: Probe) -> None:
    job = q.take("a")
    q.note(job, log("old"))
    q.note(job, ("L", b'"' + b"x" * 40_000 + b'"'))
    assert [len(text) for text in logs(q)] == [40_000]
    q.note(job, log("new"))
    assert logs(q) == ["new"]


def test_the_bounds_of_one_kind_leave_the_others_alone(q: Probe) -> None:
    q.add("a")
    for i in range(3):
        q.settle(again(q), "retry", "+0", error(f"e{i}"))
    job = again(q)
    q.note(job, progress(0.5), *(log(f"{i}") for i in range(250)))
    assert q.errors("a") == ["e0", "e1", "e2"]
    assert len(logs(q)) == 100
    assert q.notes("a").progress is not None


def test_ten_errors_are_kept_the_newest(q: Probe) -> None:
    q.add("a")
    for i in range(13):
        q.settle(again(q), "retry", "+0", error(f"e{i}"))
    assert q.errors("a") == [f"e{i}" for i in range(3, 13)]


def test_and_so_many_as_fit_48_kilobytes(q: Probe) -> None:
    q.add("a")
    for i in range(10):
        q.settle(again(q), "retry", "+0", error(f"{i}" + "x" * 8_000))
    assert [text[0] for text in q.errors("a")] == list("456789")


def test_ten_crashes_are_kept_apart_from_the_errors(q: Probe) -> None:
    q.add("a")
    q.settle(again(q), "retry", "+0", error("first"))
    for _ in range(9):
        q.move(61)
        assert q.taken("doomed", busy=1) == ["a"]
        q.move(2 * LEASE)
        q.claim("undertaker", 0)
    assert [line[:1] for line in raw(q)] == [b"E", *[b"C"] * 9]


# -- attempts


def test_an_error_says_which_attempt_it_ended_and_when(q: Probe) -> None:
    q.add("a")
    claim = q.claim("w7")
    q.move(3)
    reply = q.reply(
        worker_commands.settle(
            q.keys, [Settle("a", claim.jobs[0].token, "retry", "+0", error("no"))]
        )
    )
    assert raw(q) == [b"E 1 %d %d w7 " % (claim.now_us, reply[1]) + error("no")]
    (attempt,) = q.notes("a").attempts
    assert attempt.error is not None
    assert (attempt.number, attempt.worker, attempt.error.message) == (1, "w7", "no")
    assert (attempt.ended - attempt.started).total_seconds() == (reply[1] - claim.now_us) / SECOND


def test_attempts_are_numbered_as_they_count(q: Probe) -> None:
    q.add("a")
    outcomes: list[Outcome] = ["retry", "snooze", "release", "retry", "fail"]
    for outcome in outcomes:
        data = error(outcome) if outcome in ("retry", "fail") else b""
        q.settle(again(q), outcome, "+0" if outcome != "fail" else "", data)
    assert [a.number for a in q.notes("a").attempts] == [1, 2, 3]


def test_a_crash_is_noted_with_the_attempt_that_it_undid(q: Probe) -> None:
    q.add("a")
    q.settle(again(q), "retry", "+0", error("first"))
    claim = q.claim("w9")
    q.move(LEASE + 1)
    reclaim = q.claim("w2", 0)
    assert raw(q)[1:] == [b"C 2 %d %d w9" % (claim.now_us, reclaim.now_us)]
    first, crash = q.notes("a").attempts
    assert (first.crashed, crash.crashed) == (False, True)
    assert (crash.number, crash.worker) == (2, "w9")
    assert q.errors("a") == ["first"]
    (next_,) = q.claim("w2").jobs
    assert next_.attempt == 2


def test_a_job_that_fails_by_its_crashes_has_an_error_instead(q: Probe) -> None:
    q.add("a")
    for _ in range(5):
        assert q.taken("doomed") == ["a"]
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert [line[:1] for line in raw(q)] == [b"C"] * 4 + [b"E"]
    assert [a.number for a in q.notes("a").attempts] == [1] * 5


def test_an_outcome_without_an_error_leaves_no_note(q: Probe) -> None:
    q.add("a")
    q.settle(again(q), "snooze", "+0")
    q.settle(again(q), "complete", data=b"42")
    assert raw(q) == []


def test_a_job_with_an_unreadable_record_keeps_its_error(q: Probe) -> None:
    job = q.take("a")
    line = q.raw.hget(q.keys["run"], "a")
    assert isinstance(line, bytes)
    q.raw.hset(q.keys["run"], "a", line[:34] + b" another version's words")
    q.legal = False  # that is no record
    assert q.settle(job, "fail", data=error("no")) == "ok"
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.notes.error is not None
    assert snapshot.notes.error.message == "no"


# -- a full server


def test_a_full_server_takes_the_errors_of_what_it_gave_out_but_no_chatter(q: Probe) -> None:
    job = q.take("a")
    q.raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(ServerFull):
            q.note(job, log("chatter"))
        assert q.settle(job, "retry", f"+{SECOND}", error("no")) == "ok"
    finally:
        q.raw.config_set("maxmemory", "0")
    assert q.errors("a") == ["no"]
    assert logs(q) == []
