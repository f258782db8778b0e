"""What becomes of jobs is told, in the order in which it happens, to those who listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bide.model.durations import from_us
from bide.model.job import EVENTS, TRANSITIONS, Event, follows
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Outcome, Settle
from tests.support.probe import BODY, LEASE, SECOND, Probe

ERROR = b'{"type":"ValueError","message":"no \\"luck\\"","traceback":"a\\nb"}'
MINUTE = f"+{60 * SECOND}"


def words(events: list[Event]) -> list[str]:
    """Kind, verb and job of each."""
    return [f"{e.kind} {e.verb} {e.job_id or '-'}" for e in events]


def test_data_that_are_popped_and_a_job_that_was_in_the_way(q: Probe) -> None:
    q.listen()
    q.add("job")
    q.push("data")
    q.pop("c1")
    added = ["added enqueue job", "added enqueue data"]
    popped = ["failed pop job", "completed pop data", "drained pop -"]
    events = q.told()
    assert words(events) == [*added, *popped]
    assert [(e.worker, e.attempt) for e in events[2:4]] == [("c1", 1)] * 2
    assert events[2].error is not None
    assert "not data" in events[2].error.message


def test_what_a_pop_reclaims_is_told(q: Probe) -> None:
    q.push("a")
    q.claim("dead", 1)
    q.move(11)
    q.listen()
    q.pop("c1")
    assert words(q.told()) == ["reclaimed reclaim a", "completed pop a", "drained pop -"]


def test_nobody_listens_and_nothing_is_kept(q: Probe) -> None:
    job = q.take("a")
    q.note(job, ("P", '[0.5,""]'))
    q.settle(job, "complete")
    q.retry("a")
    q.cancel("a")
    q.add("b", "c")
    q.run(job_commands.purge(q.keys, "this"))
    q.run(job_commands.delete(q.keys, ["a"]))
    assert not q.raw.exists(q.keys["events"], q.keys["listeners"])
    assert not {"listened", "told"} & q.holding().meta.keys()


def test_a_job_that_runs_to_its_end(q: Probe) -> None:
    q.listen()
    (receipt,) = q.add("a", when=MINUTE)
    q.promote("a")
    (job,) = q.claim("w1").jobs
    q.note(job, ("L", '"a line"'), ("P", '[0.25,""]'), ("P", '[0.5,"half"]'))
    q.settle(job, "complete", data=b"42")
    added, promoted, active, progress, completed, drained = q.told()
    assert (added.kind, added.verb, added.job_id) == ("added", "enqueue", "a")
    assert (added.worker, added.attempt, added.due) == (None, 0, from_us(receipt.due_us))
    assert (promoted.kind, promoted.verb) == ("rescheduled", "promote")
    assert promoted.due == from_us(job.due_us)
    assert (active.kind, active.worker, active.attempt) == ("active", "w1", 1)
    assert active.due == from_us(job.due_us)
    assert (progress.kind, progress.worker, progress.attempt) == ("progress", "w1", 1)
    assert progress.progress is not None
    assert progress.progress[:2] == (0.5, "half")
    assert (completed.kind, completed.worker, completed.attempt) == ("completed", "w1", 1)
    assert (completed.due, completed.error) == (None, None)
    assert (drained.kind, drained.verb, drained.job_id) == ("drained", "settle", None)
    times = [e.at for e in q.told() if e.at]
    assert len(times) == 6
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("complete", "completed"),
        ("retry", "retried"),
        ("fail", "failed"),
        ("snooze", "rescheduled"),
        ("release", "rescheduled"),
        ("cancel", "cancelled"),
    ],
)
def test_how_a_run_ends(q: Probe, outcome: Outcome, kind: str) -> None:
    q.listen()
    job = q.take("a")
    again = outcome in ("retry", "snooze")
    data = ERROR if outcome in ("retry", "fail") else b""
    q.settle(job, outcome, MINUTE if again else "", data)
    event = q.told()[2]
    assert (event.kind, event.verb, event.job_id) == (kind, outcome, "a")
    assert (event.worker, event.attempt) == ("w1", 1)
    due = q.holding().due.get("a")
    assert event.due == (from_us(due) if due else None)
    assert (event.error is not None) == bool(data)
    if event.error:
        assert (event.error.type, event.error.message) == ("ValueError", 'no "luck"')
        assert event.error.traceback == ""
    drained = words(q.told()[3:])
    assert drained == ([] if outcome == "release" else ["drained settle -"])


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
def test_one_that_was_asked_to_stop_is_cancelled_and_not_run_again(
    q: Probe, outcome: Outcome
) -> None:
    q.listen()
    job = q.take("a")
    assert q.cancel("a") == ["asked"]
    q.settle(job, outcome, "" if outcome == "release" else "+0")
    assert words(q.told()[2:]) == ["cancelled cancel a", "drained settle -"]


def test_jobs_are_cancelled_moved_and_deleted(q: Probe) -> None:
    q.listen()
    q.add("a", "b", "c")
    q.cancel("a")
    q.reschedule("b", MINUTE)
    q.promote("c")  # it waits already
    q.retry("a", when=MINUTE)
    q.run(job_commands.delete(q.keys, ["c"]))
    q.run(job_commands.purge(q.keys, "this"))
    told = q.told()[3:]
    assert words(told) == [
        "cancelled cancel a",
        "rescheduled reschedule b",
        "retried revive a",
        "deleted delete c",
        "purged purge -",
    ]
    assert all(event.due for event in told[1:3])
    assert told[-1].count == 2


def test_a_pause_and_its_end_are_told_once(q: Probe) -> None:
    q.listen()
    for command in (job_commands.pause, job_commands.pause, job_commands.resume):
        q.run(command(q.keys))
    q.run(job_commands.resume(q.keys))
    told = q.told()
    assert words(told) == ["paused pause -", "resumed resume -"]
    assert {event.job_id for event in told} == {None}


def test_a_crash_is_told_and_what_came_of_it(q: Probe) -> None:
    q.listen()
    q.add("a")
    for _ in range(4):
        q.claim("doomed", 1)
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    q.claim("doomed", 1)
    q.move(LEASE + 1)
    q.claim("undertaker", 0)
    crashes = ["active claim a", "reclaimed reclaim a"]
    told = q.told()[1:]
    assert words(told) == [*crashes * 5, "failed reclaim a", "drained reclaim -"]
    assert {(e.worker, e.attempt) for e in told[:-1]} == {("doomed", 1)}
    error = told[-2].error
    assert error is not None
    assert error.type == "WorkerCrashed"
    assert error.message.endswith("the last was doomed.")


def test_what_is_popped_is_told_and_what_is_refused(q: Probe) -> None:
    q.listen()
    q.push("a", "b")
    q.add("job")
    q.pop("c1")
    q.pop("c1", seq=1)
    told = q.told()[3:]
    assert words(told) == [
        "completed pop a",
        "completed pop b",
        "failed pop job",
        "drained pop -",
    ]
    assert {(e.worker, e.attempt) for e in told[:-1]} == {("c1", 1)}
    assert told[2].error is not None
    assert told[2].error.message.startswith("This is a job, not data")


def test_a_crash_that_its_worker_saw_is_told_and_what_came_of_it(q: Probe) -> None:
    q.listen()
    q.add("a")
    for _ in range(3):
        (job,) = q.claim("w1").jobs
        q.settle(job, "crash", data=b'{"type":"WorkerCrashed","message":"killed"}')
    told = q.told()[1:]
    crash = ["active claim a", "reclaimed crash a"]
    assert words(told) == [*crash * 2, "active claim a", "failed crash a", "drained settle -"]
    assert told[1].due is not None
    assert told[-2].error is not None
    assert told[-2].error.message == "killed"


def test_one_that_was_asked_to_stop_and_lost_its_worker_is_cancelled(q: Probe) -> None:
    q.listen()
    q.take("a")
    q.cancel("a")
    q.move(LEASE + 1)
    q.claim("w2", 0)
    assert words(q.told()[2:]) == [
        "reclaimed reclaim a",
        "cancelled reclaim a",
        "drained reclaim -",
    ]


def test_the_queue_is_drained_once_by_the_last_of_what_is_due(q: Probe) -> None:
    q.listen()
    q.add("a", "b", "c")
    q.add("later", when=MINUTE)
    a, b = q.claim(count=2).jobs
    q.settle_many(Settle(a.id, a.token, "complete"), Settle(b.id, b.token, "complete"))
    assert "drained" not in {e.kind for e in q.told()}, "one waits"
    q.add("d")
    c, d = q.claim().jobs
    q.settle(d, "complete")
    assert "drained" not in {e.kind for e in q.told()}, "one runs"
    q.settle(c, "complete")
    q.settle(c, "complete")
    q.claim("w2")
    assert [e.kind for e in q.told()].count("drained") == 1
    assert q.told()[-1].kind == "drained"


def test_every_event_is_numbered_from_when_the_stream_was_opened(q: Probe) -> None:
    start = q.listen()
    assert not start.gap
    assert start.after.endswith("-0")
    q.add("a", "b")
    q.add("c")
    q.claim()
    last = start.after
    for event in q.told():
        assert follows(event.id, last)
        last = event.id
    assert last.endswith("-6")
    assert words(q.told()) == [
        *("added enqueue a", "added enqueue b", "added enqueue c"),
        *("active claim a", "active claim b", "active claim c"),
    ]


def test_what_is_repeated_after_a_lost_reply_is_told_once(q: Probe) -> None:
    q.listen()
    q.add("a", "b", "c", "d")
    jobs = q.claim("w1", 3, seq=1).jobs
    again: list[Callable[[], object]] = [
        lambda: q.add("a", "b", "c", "d"),
        lambda: q.claim("w1", 3, seq=1),
        lambda: q.note(jobs[0], ("P", '[0.5,"half"]')),
        lambda: [q.settle(job, o) for job, o in zip(jobs, OUTCOMES, strict=True)],
        lambda: q.cancel("d"),
        lambda: q.run(job_commands.purge(q.keys, "this")),
        lambda: q.run(job_commands.delete(q.keys, ["b"])),
    ]
    for verb in again:
        verb()
        count = len(q.told())
        verb()
        assert len(q.told()) == count
    retry = job_commands.retry(q.keys, ["a", "d"], "+0")
    q.run(retry)
    q.run(retry)
    assert words(q.told()[-2:]) == ["retried revive a", "retried revive d"]
    at = job_commands.reschedule(q.keys, ["a"], f"={q.now + 60 * SECOND}")
    q.run(at)
    q.run(at)
    assert words(q.told()[-2:]) == ["retried revive d", "rescheduled reschedule a"]


OUTCOMES: list[Outcome] = ["complete", "fail", "cancel"]


def test_a_progress_that_was_said_before_is_told_if_another_came_between(q: Probe) -> None:
    q.listen()
    job = q.take("a")
    for fraction in ("0.5", "0.6", "0.6", "0.5"):
        q.note(job, ("P", f'[{fraction},""]'))
    said = [e.progress.fraction for e in q.told() if e.progress]
    assert said == [0.5, 0.6, 0.5]


def test_of_what_somebody_else_holds_nothing_is_told(q: Probe) -> None:
    q.listen()
    job = q.take("a")
    q.move(LEASE + 1)
    q.claim("w2")
    count = len(q.told())
    assert q.settle(job, "complete") == "lost"
    assert q.note(job, ("P", '[0.5,""]')) == ["lost"]
    assert q.extend(job) == ["lost"]
    assert len(q.told()) == count


def test_what_is_long_is_cut(q: Probe) -> None:
    q.listen()
    job = q.take("a")
    q.note(job, ("P", '[0.5,"' + "é" * 500 + '"]'))
    text = '{"type":"E","message":"' + "\\n\\u0000é" * 900 + '"}'
    q.settle(job, "fail", data=text.encode())
    progress, failed = q.told()[2:4]
    assert progress.progress is not None
    assert failed.error is not None
    assert set(progress.progress.text) == {"é"}
    assert set(failed.error.message) == {"\n", "\x00", "é"}
    assert len(text) > 5000
    entries: Any = q.raw.xrange(q.keys["events"])
    assert max(len(fields[b"e"]) for _, fields in entries) < 400


@pytest.mark.slow
def test_the_stream_is_bounded_by_count_and_by_bytes(q: Probe) -> None:
    """Of jobs with the longest ids and workers with the longest names there are."""
    q.listen()
    for i in range(46):
        q.add(*(f"{i:03}-{n:03}-".ljust(128, "x") for n in range(250)))
    jobs = q.claim("w".ljust(128, "x"), 250).jobs
    long = b'{"type":"E","message":"' + b"x" * 5000 + b'"}'
    for some in (jobs[i : i + 10] for i in range(0, 250, 10)):
        q.settle_many(*(Settle(job.id, job.token, "fail", "", long) for job in some))
    assert 10_000 <= q.raw.xlen(q.keys["events"]) < 10_200
    size: Any = q.raw.memory_usage(q.keys["events"], samples=0)
    assert size < 10_000_000
    assert int(q.holding().meta["told"]) == 46 * 250 + 500 + 0


def test_an_entry_that_would_be_too_long_is_a_gap(q: Probe) -> None:
    """Another program may have written an id of any length into the sets."""
    q.add("a", "b", when=f"+{60 * SECOND}")
    long = "x" * 1100
    q.raw.zadd(q.keys.names["due"][4], {long: q.now + 60_000_000})
    q.raw.hset(q.keys["jobs"], long, BODY)
    q.listen()
    assert q.cancel("a", long, "b") == ["ok", "ok", "ok"]
    assert [e.id.partition("-")[2] for e in q.told()] == ["1", "3"]


# -- what must not fail


def test_another_programs_key_of_this_name_costs_no_job_its_end(q: Probe) -> None:
    q.listen()
    q.add("a", "b")
    q.raw.set(q.keys["events"], "mine")
    for job in q.claim().jobs:
        assert q.settle(job, "complete") == "ok"
    assert q.add("c")[0].created
    q.raw.delete(q.keys["events"])


# -- the table


def test_the_table_names_every_verb_that_changes_a_job() -> None:
    told = {verb for verbs, _ in EVENTS.values() for verb in verbs}
    assert TRANSITIONS.keys() - told == {"extend"}
    of_queue = {"purge", "settle", "pause", "resume"}
    assert told - TRANSITIONS.keys() == {"enqueue", "fire", "note", "delete", *of_queue}
