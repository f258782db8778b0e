"""Retrying what has ended: the same job once more, with all its attempts before it."""

from __future__ import annotations

import pytest

from bide.errors import ScriptBug, UsageError
from bide.model.job import Claimed, State
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from tests.support.probe import BODY, LEASE, SECOND, Probe

ERROR = b'{"type":"E","message":"no"}'
ENDED = ("completed", "failed", "cancelled")


@pytest.fixture(params=ENDED)
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def end(q: Probe, state: str, id: str = "a", priority: int = 5) -> Claimed:
    """Run a job that ends so; how it was claimed."""
    q.add(id, priority=priority)
    (job,) = q.claim().jobs
    if state == "completed":
        q.settle(job, "complete", data=b"42")
    elif state == "failed":
        q.settle(job, "fail", data=ERROR)
    else:
        q.settle(job, "cancel")
    assert q.where(id) == state
    return job


def again(q: Probe) -> Claimed:
    (job,) = q.claim().jobs
    return job


def test_a_job_that_has_ended_is_due_at_once(q: Probe, state: str) -> None:
    end(q, state)
    _ok, now, word, due_us = q.reply(job_commands.retry(q.keys, ["a"], "+0"))
    assert (word, due_us) == (b"ok", now)
    holding = q.holding()
    assert {name: ids for name, ids in holding.sets.items() if ids} == {"due:5": {"a": now}}
    assert holding.hashes["jobs"] == {"a": BODY}
    assert again(q).due_us == now


def test_or_later(q: Probe, state: str) -> None:
    end(q, state)
    _ok, now, _word, due_us = q.reply(job_commands.retry(q.keys, ["a"], f"+{60 * SECOND}"))
    assert due_us == now + 60 * SECOND
    assert q.taken() == []
    q.move(60)
    assert q.taken() == ["a"]
    end(q, state, "b")
    at = q.now + 5 * SECOND
    assert q.run(job_commands.retry(q.keys, ["b"], f"={at}")) == [("ok", at)]


def test_its_attempts_begin_anew(q: Probe, state: str) -> None:
    q.add("a")
    for _ in range(3):
        q.settle(again(q), "retry", "+0", ERROR)
    job = again(q)
    assert job.attempt == 4
    q.settle(job, {"completed": "complete", "failed": "fail"}.get(state, "cancel"))  # type: ignore[arg-type]
    q.retry("a")
    assert q.record("a").attempt == 0
    assert again(q).attempt == 1


def test_its_tokens_go_on_growing(q: Probe, state: str) -> None:
    """A worker that was paused since the time before must settle nothing."""
    job = end(q, state)
    q.move(-60)
    q.run(job_commands.retry(q.keys, ["a"], "+0"))
    later = again(q)
    assert later.token > job.token
    assert q.settle(job, "snooze", "+0") == "lost"
    assert q.settle(later, "complete") == "ok"


def test_the_settle_that_ended_it_is_still_known(q: Probe) -> None:
    """Its reply may have been lost, and its repeat be under way."""
    job = end(q, "completed")
    q.retry("a")
    assert q.settle(job, "complete", data=b"42") == "ok"
    assert q.where("a") == "due"
    later = again(q)
    assert q.settle(job, "complete", data=b"42") == "ok"
    assert q.where("a") == "active"
    assert q.settle(later, "complete") == "ok"


def test_when_it_was_first_due_is_forgotten(q: Probe, state: str) -> None:
    """Else a policy's longest time would be over before it began."""
    q.add("a")
    q.settle(again(q), "retry", "+0", ERROR)
    job = again(q)
    assert job.first_us < job.due_us
    q.settle(job, {"completed": "complete", "failed": "fail"}.get(state, "cancel"))  # type: ignore[arg-type]
    q.move(3600)
    q.retry("a")
    later = again(q)
    assert later.first_us == later.due_us


def test_its_crashes_are_forgiven(q: Probe) -> None:
    q.add("a")
    for _ in range(5):
        assert q.taken("doomed") == ["a"]
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert q.where("a") == "failed"
    q.retry("a")
    assert list(q.holding().sets["due:5"]) == ["a"], "it is no suspect"
    job = again(q)
    assert (job.attempt, job.reclaims) == (1, 0)


def test_its_result_is_removed_and_its_notes_stay(q: Probe) -> None:
    q.add("a")
    q.settle(again(q), "retry", "+0", ERROR)
    q.settle(again(q), "complete", data=b"42")
    q.retry("a")
    holding = q.holding()
    assert holding.hashes["results"] == {}
    assert q.errors("a") == ["no"]
    q.settle(again(q), "complete")
    assert q.holding().hashes["results"] == {}


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_it_keeps_its_priority(q: Probe, state: str, priority: int) -> None:
    end(q, state, priority=priority)
    q.retry("a")
    assert list(q.holding().sets[f"due:{priority}"]) == ["a"]


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_also_one_that_was_cancelled_before_it_was_ever_claimed(q: Probe, priority: int) -> None:
    q.add("a", priority=priority)
    q.cancel("a")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.priority == (priority if priority != 5 else None)
    assert (snapshot.run, snapshot.attempt, snapshot.lateness) == (None, 0, None)
    q.retry("a")
    assert list(q.holding().sets[f"due:{priority}"]) == ["a"]
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert (snapshot.state, snapshot.priority, snapshot.run) == (State.WAITING, priority, None)
    job = again(q)
    assert (job.attempt, job.reclaims, job.first_us) == (1, 0, job.due_us)
    assert q.settle(job, "complete") == "ok"
    assert q.record("a").priority == priority


def test_one_that_was_a_suspect_when_it_was_cancelled_has_its_priority_back(q: Probe) -> None:
    q.add("a", priority=8)
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    q.cancel("a")
    q.retry("a")
    assert list(q.holding().sets["due:8"]) == ["a"]


def test_until_it_runs_it_shows_how_it_ran_before(q: Probe, state: str) -> None:
    q.add("a")
    q.move(2)
    job = q.claim("w7").jobs[0]
    q.settle(job, {"completed": "complete", "failed": "fail"}.get(state, "cancel"))  # type: ignore[arg-type]
    before = q.fetch("a")
    q.retry("a", when=f"+{60 * SECOND}")
    after = q.fetch("a")
    assert before is not None
    assert after is not None
    assert after.state is State.DELAYED
    assert (after.attempt, after.lateness) == (0, before.lateness)
    assert after.lateness is not None
    assert after.lateness >= 2
    assert after.finished_us == 0


def test_a_time_of_its_own_counts_from_its_next_end(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "complete", f"+{60 * SECOND}")
    assert q.record("a").ended_us
    q.retry("a")
    assert q.record("a").ended_us == 0
    q.settle(again(q), "complete")
    assert q.record("a").ended_us == 0


# -- what has not ended


@pytest.mark.parametrize("when", ["+0", f"+{60 * SECOND}"])
def test_a_job_that_has_not_run_is_left_in_its_place(q: Probe, when: str) -> None:
    q.add("a", when=when)
    before = q.holding()
    assert q.retry("a") == ["waiting" if when == "+0" else "delayed"]
    assert q.holding() == before


def test_nor_is_one_that_runs_or_never_was(q: Probe) -> None:
    q.take("a")
    before = q.holding()
    assert q.run(job_commands.retry(q.keys, ["a", "nobody"], "+0")) == [("active", 0), ("gone", 0)]
    assert q.holding() == before


def test_one_that_waits_for_its_own_retry_keeps_its_attempts(q: Probe) -> None:
    q.settle(q.take("a"), "retry", f"+{60 * SECOND}", ERROR)
    assert q.retry("a") == ["delayed"]
    assert q.record("a").attempt == 1


def test_one_whose_body_is_missing_is_left_alone(q: Probe) -> None:
    end(q, "failed")
    q.raw.hdel(q.keys["jobs"], "a")
    q.legal = False
    assert q.retry("a") == ["failed"]
    assert q.where("a") == "failed"


def test_one_that_was_set_aside_by_purging_is_gone(q: Probe) -> None:
    end(q, "failed")
    q.retry("a")
    q.run(job_commands.purge(q.keys, "this"))
    assert q.retry("a") == ["gone"]


def test_many_in_one_call_each_with_its_answer(q: Probe) -> None:
    ids = [f"j{i:02}" for i in range(job_commands.MOST_CHANGED - 2)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = q.claim(count=len(ids)).jobs
    q.settle_many(*(Settle(job.id, job.token, "fail") for job in jobs[1:]))
    assert q.retry(*ids, "nobody") == ["active", *["ok"] * (len(ids) - 1), "gone"]
    assert q.taken(count=len(ids)) == ids[1:]
    with pytest.raises(UsageError, match="101 jobs are too many for one call"):
        job_commands.retry(q.keys, ["a"] * 101, "+0")


@pytest.mark.parametrize("at", ["", "5", "-5", "+", "+1e6", "=now", "+99999999999999999"])
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, at: str
) -> None:
    end(q, "failed")
    before = q.holding()
    with pytest.raises(ScriptBug, match="BADARG retry at"):
        q.retry("a", when=at)
    assert q.holding() == before


# -- repeats


def test_a_repeat_is_ok_and_changes_nothing(q: Probe, state: str) -> None:
    end(q, state)
    command = job_commands.retry(q.keys, ["a", "nobody"], f"+{60 * SECOND}")
    first = q.run(command)
    before = q.holding()
    q.move(1)
    assert q.run(command) == first
    after = q.holding()
    assert (after.sets, after.hashes) == (before.sets, before.hashes)


@pytest.mark.parametrize("outcome", ["complete", "fail", "cancel"])
def test_nor_does_it_run_the_job_a_third_time(q: Probe, state: str, outcome: str) -> None:
    """Its reply was lost, and the job has run and ended before the repeat came."""
    end(q, state)
    command = job_commands.retry(q.keys, ["a"], "+0")
    q.run(command)
    q.settle(again(q), outcome)  # type: ignore[arg-type]
    before = q.holding()
    assert [moved.result for moved in q.run(command)] == ["ok"]
    assert q.holding() == before
    assert q.retry("a") == ["ok"], "another call is no repeat"


def test_a_repeat_for_a_job_that_was_never_claimed(q: Probe) -> None:
    q.add("a")
    q.cancel("a")
    command = job_commands.retry(q.keys, ["a"], "+0")
    q.run(command)
    q.cancel("a")
    before = q.holding()
    assert [moved.result for moved in q.run(command)] == ["ok"]
    assert q.holding() == before


def test_a_repeat_while_it_runs(q: Probe, state: str) -> None:
    end(q, state)
    command = job_commands.retry(q.keys, ["a"], "+0")
    q.run(command)
    for outcome in ("retry", "snooze", "release"):
        job = again(q)
        assert q.run(command) == [("ok", 0)]
        q.settle(job, outcome, "+0")
        (moved,) = q.run(command)
        assert moved == ("ok", q.holding().due["a"])


def test_a_full_server_lets_jobs_be_retried(q: Probe, state: str) -> None:
    end(q, state)
    q.raw.config_set("maxmemory", "1")
    try:
        assert q.retry("a") == ["ok"]
        assert q.taken() == ["a"]
    finally:
        q.raw.config_set("maxmemory", "0")


def test_retrying_wakes_a_sleeper(q: Probe, state: str) -> None:
    end(q, state)
    q.hear()
    q.retry("nobody")
    assert q.wakeups() == 0
    q.retry("a")
    assert q.hear() == "-"
