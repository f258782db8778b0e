"""Fetch, list and count: what they say is what stands on the server, and they change nothing."""

from __future__ import annotations

import pytest

from bide.errors import ScriptBug, UsageError
from bide.model.job import State
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, LEASE, SECOND, Probe

ERROR = b'{"type":"ValueError","message":"no"}'


# -- fetch


def test_a_job_that_is_delayed_and_then_waits(q: Probe) -> None:
    (receipt,) = q.add("a", when=f"+{60 * SECOND}", priority=3)
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.DELAYED
    assert (snapshot.since_us, snapshot.due_us) == (receipt.due_us, receipt.due_us)
    assert snapshot.priority == 3
    assert snapshot.raw_body == BODY
    assert (snapshot.run, snapshot.raw_result, snapshot.raw_notes) == (None, None, None)
    assert (snapshot.attempt, snapshot.lateness) == (0, None)
    q.move(60)
    later = q.fetch("a")
    assert later is not None
    assert later.state is State.WAITING
    assert later.now_us >= later.due_us


def test_a_job_that_runs(q: Probe) -> None:
    (receipt,) = q.add("a", priority=8)
    q.move(2)
    claim = q.claim("w1")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.ACTIVE
    assert snapshot.since_us == claim.now_us + round(LEASE * SECOND)
    assert snapshot.due_us == receipt.due_us
    assert snapshot.priority == 8
    assert snapshot.attempt == 1
    assert snapshot.lateness == (claim.now_us - receipt.due_us) / SECOND
    assert snapshot.run is not None
    assert snapshot.run.worker == "w1"


def test_a_job_that_completed(q: Probe) -> None:
    q.settle(q.take("a"), "complete", data=b"[1]")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.COMPLETED
    assert snapshot.since_us == q.zset("completed")["a"]
    assert snapshot.result() == [1]
    assert snapshot.notes.error is None


def test_a_job_that_failed(q: Probe) -> None:
    q.settle(q.take("a"), "fail", data=ERROR)
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.FAILED
    assert snapshot.since_us == q.zset("failed")["a"]
    assert snapshot.result() is None
    assert snapshot.notes.error is not None
    assert (snapshot.notes.error.type, snapshot.notes.error.message) == ("ValueError", "no")


def test_a_job_that_was_cancelled(q: Probe) -> None:
    q.add("a")
    q.cancel("a")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.CANCELLED
    assert snapshot.priority is None, "the usual one, which needs no record"
    assert (snapshot.run, snapshot.attempt) == (None, 0)
    assert snapshot.since_us == q.zset("cancelled")["a"]


def test_a_job_that_waits_for_its_retry_shows_its_last_error(q: Probe) -> None:
    q.settle(q.take("a"), "retry", f"+{SECOND}", ERROR)
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.state is State.DELAYED
    assert snapshot.due_us == q.holding().due["a"]
    assert snapshot.attempt == 1
    assert snapshot.notes.error is not None


def test_a_suspect_has_the_priority_it_was_given(q: Probe) -> None:
    q.add("a", priority=9)
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert (snapshot.state, snapshot.priority) == (State.WAITING, 9)


def test_many_in_the_order_asked_for_and_none_for_what_is_not_there(q: Probe) -> None:
    q.add("a", "b")
    snapshots = q.run(job_commands.fetch(q.keys, ["b", "nobody", "a", "b"]))
    assert [s and s.id for s in snapshots] == ["b", None, "a", "b"]
    assert q.run(job_commands.fetch(q.keys, [])) == []


def test_a_reply_has_some_megabytes_and_what_is_left_is_asked_for(q: Probe) -> None:
    """Bodies and results count; each job is read, however large it is, and once."""
    large = b'"' + b"x" * 900_000 + b'"'
    q.add("a", "b", "c")
    for job in q.claim(count=3).jobs:
        q.settle(job, "complete", data=large)
    q.add("d", "e", "f", body=encode_body(Body("app.tasks:send", ("x" * 900_000,))))
    ids = ["nobody", "d", "e", "a", "f", "b", "c"]
    reply = q.reply(job_commands.fetch(q.keys, ids))
    assert (reply[0], len(reply) - 2) == (b"more", 4)
    found = q.run(job_commands.fetch(q.keys, ids))
    assert [job and job.id for job in found] == [None, *ids[1:]]
    sizes = [len(job.raw_body) + len(job.raw_result or b"") for job in found if job]
    assert min(sizes) >= len(large)
    assert q.reply(job_commands.fetch(q.keys, ids[1:3]))[0] == b"ok"


# -- list


def listing(q: Probe, state: str, start: int = 0, count: int = 50) -> list[str]:
    return q.run(job_commands.listing(q.keys, state, start, count))


def populate(q: Probe) -> dict[str, list[str]]:
    """Three jobs or more in each state; state -> ids in the order in which they are listed."""
    for id in ("c1", "c2", "c3"):
        q.settle(q.take(id), "complete")
    for id in ("f1", "f2", "f3"):
        q.settle(q.take(id), "fail", data=ERROR)
    for id in ("x1", "x2", "x3"):
        q.add(id)
        q.cancel(id)
    for id in ("r1", "r2", "r3"):
        q.take(id)
    q.add("w5-1", "w5-2")
    q.add("w9-1", "w9-2", priority=9)
    q.add("d5-2", when=f"+{9 * SECOND}")
    q.add("d5-1", when=f"+{8 * SECOND}")
    q.add("d9-1", when=f"+{7 * SECOND}", priority=9)
    for id in ("b3", "b1", "b2"):
        q.add_many(Prepared(id, "+0", 5, BODY, constraints="d=-", parents=("d5-1",)))
    return {
        "blocked": ["b2", "b1", "b3"],
        "delayed": ["d9-1", "d5-1", "d5-2"],
        "waiting": ["w9-1", "w9-2", "w5-1", "w5-2"],
        "active": ["r3", "r2", "r1"],
        "completed": ["c3", "c2", "c1"],
        "failed": ["f3", "f2", "f1"],
        "cancelled": ["x3", "x2", "x1"],
    }


def test_due_jobs_in_the_order_they_run_others_newest_first(q: Probe) -> None:
    expected = populate(q)
    assert {state: listing(q, state) for state in expected} == expected
    assert set(expected) == set(State)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5])
def test_pages_join_without_gap_or_overlap(q: Probe, size: int) -> None:
    for state, ids in populate(q).items():
        for start in range(len(ids) + 2):
            assert listing(q, state, start, size) == ids[start : start + size], (state, start)


def test_what_becomes_due_moves_from_one_list_to_the_other(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    assert (listing(q, "delayed"), listing(q, "waiting")) == (["a"], [])
    q.move(1)
    assert (listing(q, "delayed"), listing(q, "waiting")) == ([], ["a"])


def test_a_page_beyond_the_end_or_of_an_unused_queue_is_empty(q: Probe) -> None:
    assert all(listing(q, state) == [] for state in State)
    q.add("a")
    assert listing(q, "waiting", 5) == []


def test_a_page_is_bounded_and_its_state_known(q: Probe) -> None:
    for count in (-1, job_commands.MAX_PAGE + 1):
        with pytest.raises(UsageError, match="must be a whole number from 0 to 1000"):
            listing(q, "waiting", 0, count)
    with pytest.raises(UsageError, match="start=-1 must be a whole number, 0 or more"):
        listing(q, "waiting", -1)
    with pytest.raises(UsageError, match=r"no state 'done'.*delayed, waiting"):
        listing(q, "done")
    command = job_commands.listing(q.keys, "waiting", 0, 1)
    with pytest.raises(ScriptBug, match="BADARG list state"):
        q.run(command._replace(args=("done", 0, 1)))


# -- counts


def test_every_state_is_counted(q: Probe) -> None:
    expected = populate(q)
    counts = q.run(job_commands.counts(q.keys))
    assert {state: getattr(counts, state) for state in expected} == {
        state: len(ids) for state, ids in expected.items()
    }
    assert counts.totals == {
        "completed": 3,
        "failed": 3,
        "cancelled": 3,
        "expired": 0,
        "retried": 0,
        "reclaimed": 0,
    }


def test_the_next_due_time_is_the_earliest_of_all_priorities(q: Probe) -> None:
    assert q.run(job_commands.counts(q.keys)).next_due_us == 0
    (later,) = q.add("a", when=f"+{9 * SECOND}", priority=9)
    assert q.run(job_commands.counts(q.keys)).next_due_us == later.due_us
    (sooner,) = q.add("b", when=f"+{5 * SECOND}", priority=1)
    assert q.run(job_commands.counts(q.keys)).next_due_us == sooner.due_us


def test_totals_outlive_the_jobs(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", ERROR)
    q.settle(q.claim().jobs[0], "complete")
    q.run(job_commands.delete(q.keys, ["a"]))
    totals = q.run(job_commands.counts(q.keys)).totals
    assert (totals["completed"], totals["retried"]) == (1, 1)


def test_idle_workers_are_those_that_wait(q: Probe) -> None:
    q.add("a")
    for worker in ("w1", "w2", "w3", "w4"):
        q.claim(worker, 1)
    assert q.run(job_commands.counts(q.keys)).idle_workers == 3, "w1 took the job"
    q.move(60)
    assert q.run(job_commands.counts(q.keys)).idle_workers == 0, "their time is over"


def test_an_unused_queue_counts_nothing(q: Probe) -> None:
    counts = q.run(job_commands.counts(q.keys))
    assert counts[1:10] == (0, 0, 0, 0, 0, 0, 0, 0, False)
    assert counts.gap_us == 0


def test_reading_changes_nothing(q: Probe) -> None:
    def changes() -> int:
        changes: int = q.raw.info("persistence")["rdb_changes_since_last_save"]
        return changes

    populate(q)
    before = changes()
    q.run(job_commands.fetch(q.keys, ["c1", "w5-1", "nobody"]))
    q.run(job_commands.counts(q.keys))
    for state in State:
        listing(q, state)
    assert changes() == before


def test_a_listing_is_in_one_piece_with_a_thousand_jobs(q: Probe) -> None:
    ids = [f"j{i:04}" for i in range(500)]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    assert listing(q, "waiting", 0, job_commands.MAX_PAGE) == ids
