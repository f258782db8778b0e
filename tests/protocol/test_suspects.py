"""A job under which workers die: a suspect after two strikes, failed after three crashes alone.

A lease that ended while the worker ran other jobs too proves nothing against one of them. So a job
with two such strikes is set apart, and taken only as the one job of an idle worker: what ends then
is a crash that names its culprit.
"""

from __future__ import annotations

from bide.model.job import Claimed
from bide.protocol.commands import jobs as job_commands
from tests.support.probe import LEASE, SECOND, Probe


def die(q: Probe, id: str, worker: str = "doomed") -> None:
    """A worker takes the job and is never heard of again."""
    assert id in q.taken(worker)
    q.leave(worker)
    q.move(LEASE + 1)
    q.claim("undertaker", 0)


def suspect(q: Probe, id: str) -> None:
    """Make a job a suspect."""
    q.add(id)
    die(q, id)
    die(q, id)
    assert list(q.holding().sets["due:alone"]) == [id]


def test_one_strike_leaves_a_job_where_it_was(q: Probe) -> None:
    q.add("a", priority=3)
    die(q, "a")
    assert list(q.holding().sets["due:3"]) == ["a"]
    record = q.record("a")
    assert (record.strikes, record.crashes, record.alone) == (1, 0, False)


def test_two_strikes_set_a_job_apart(q: Probe) -> None:
    (receipt,) = q.add("a", priority=3)
    die(q, "a")
    die(q, "a")
    assert q.holding().sets["due:alone"] == {"a": receipt.due_us}
    assert (q.record("a").strikes, q.record("a").crashes) == (2, 0)


def test_a_suspect_is_the_only_job_of_its_claim(q: Probe) -> None:
    suspect(q, "a")
    q.add("b", "c", priority=9)
    claim = q.claim("w1", 10)
    assert claim.alone
    assert [job.id for job in claim.jobs] == ["a"]
    assert claim.until_us == 0, "there is nothing to come back for while it runs"
    assert q.record("a").alone
    assert q.taken("w2") == ["b", "c"]


def test_suspects_are_taken_one_at_a_time(q: Probe) -> None:
    q.add("a", "b")
    for _ in range(2):  # one worker dies under both
        assert q.taken("doomed") == ["a", "b"]
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert list(q.holding().sets["due:alone"]) == ["a", "b"]
    assert q.taken("w1") == ["a"]
    assert q.taken("w2") == ["b"]


def test_a_worker_that_runs_something_does_not_take_a_suspect(q: Probe) -> None:
    suspect(q, "a")
    q.move(11)
    q.reschedule("a", "+0")
    q.add("b")
    claim = q.claim("w1", 10, busy=1)
    assert [job.id for job in claim.jobs] == ["b"]
    assert not claim.alone
    assert not claim.drain
    assert q.where("a") == "due"


def test_a_worker_without_a_free_slot_does_not_take_a_suspect(q: Probe) -> None:
    suspect(q, "a")
    assert q.taken("w1", 0) == []
    assert q.where("a") == "due"


def test_a_suspect_that_is_not_due_is_not_taken(q: Probe) -> None:
    suspect(q, "a")
    q.reschedule("a", f"+{SECOND}")
    claim = q.claim("w1")
    assert claim.jobs == []
    assert claim.until_us == q.holding().due["a"]
    q.move(1)
    assert q.taken("w1") == ["a"]


def test_a_paused_queue_gives_no_suspect(q: Probe) -> None:
    suspect(q, "a")
    q.run(job_commands.pause(q.keys))
    claim = q.claim("w1")
    assert (claim.jobs, claim.alone) == ([], False)
    busy = q.claim("w2", busy=1)
    assert not busy.drain


def test_a_suspect_that_waits_long_makes_one_busy_worker_drain(q: Probe) -> None:
    suspect(q, "a")
    q.move(31)
    q.reschedule("a", "+0")
    q.add("b")
    q.move(9)
    assert not q.claim("w1", 1, busy=1).drain
    q.move(2)
    q.add("c")
    drains = q.claim("w1", 10, busy=1)
    assert drains.drain
    assert drains.jobs == [], "it may take no more until what it runs has ended"
    assert q.taken("w2", busy=1) == ["c"], "the others work on"
    assert q.taken("w1", busy=0) == ["a"]


def test_if_the_draining_worker_takes_too_long_another_one_drains(q: Probe) -> None:
    suspect(q, "a")
    q.move(31)
    q.reschedule("a", "+0")
    q.move(11)
    assert q.claim("w1", busy=1).drain
    assert not q.claim("w2", busy=1).drain
    q.move(29)
    assert not q.claim("w1", busy=1).drain, "it may work on for a while"
    q.move(2)
    assert q.claim("w2", busy=1).drain


def test_one_that_no_worker_becomes_idle_for_runs_beside_others(q: Probe) -> None:
    """A fleet that is never idle must not hold it up for ever."""
    suspect(q, "a")
    q.reschedule("a", "+0")
    q.add("b")
    q.move(61)
    claim = q.claim("w1", 10, busy=1)
    assert [job.id for job in claim.jobs] == ["a", "b"]
    assert not claim.alone
    assert not q.record("a").alone


def test_ten_strikes_fail_a_job_that_never_ran_alone(q: Probe) -> None:
    q.add("a")
    for strikes in range(10):
        assert q.where("a") == "due"
        if strikes:
            assert q.record("a").strikes == strikes
        q.move(61)
        assert q.taken("doomed", busy=1) == ["a"]
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert q.where("a") == "failed"
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.notes.error is not None
    assert "10 times under this job, 0 of them while it ran alone" in snapshot.notes.error.message


def test_a_claim_of_a_suspect_passes_on_the_news_that_others_are_due(q: Probe) -> None:
    """It answered the message for them, but takes none of them and will not be back soon."""
    suspect(q, "a")
    q.add("b")
    assert q.hear()
    assert q.taken("w1") == ["a"]
    assert q.wakeups() == 1


def test_a_claim_of_a_suspect_beside_which_nothing_is_due_wakes_nobody(q: Probe) -> None:
    suspect(q, "a")
    for worker in ("k1", "k2", "k1"):  # two keep the time
        q.claim(worker, busy=1)
    q.hear()
    q.taken("w1")
    assert q.wakeups() == 0


def test_the_third_crash_alone_fails_a_job(q: Probe) -> None:
    suspect(q, "a")
    die(q, "a")
    die(q, "a")
    assert q.where("a") == "due"
    assert q.record("a").crashes == 2
    assert q.taken("doomed") == ["a"]
    q.move(LEASE + 1)
    claim = q.claim("w1")
    assert claim.jobs == []
    holding = q.holding()
    assert holding.sets["failed"] == {"a": claim.now_us}
    assert holding.total("failed") == 1
    assert holding.total("reclaimed") == 5
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.notes.error is not None
    assert snapshot.notes.error.type == "WorkerCrashed"
    assert "died or stopped 5 times" in snapshot.notes.error.message
    assert "3 of them while it ran alone" in snapshot.notes.error.message
    assert "doomed" in snapshot.notes.error.message


def test_its_error_can_be_read_whatever_its_worker_was_called(q: Probe) -> None:
    suspect(q, "a")
    for _ in range(3):
        die(q, "a", worker='the"odd\\one')
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.notes.error is not None
    assert snapshot.notes.error.type == "WorkerCrashed"
    assert "the?odd?one" in snapshot.notes.error.message


def test_a_poisoned_job_has_failed_for_every_token_it_had(q: Probe) -> None:
    suspect(q, "a")
    held: list[Claimed] = []
    for _ in range(3):
        held += q.claim("doomed").jobs
        q.move(LEASE + 1)
    q.claim("w1")
    assert q.where("a") == "failed"
    assert [q.settle(job, "complete") for job in held] == ["lost"] * 3
    assert q.where("a") == "failed"


def test_a_suspect_that_ends_by_itself_is_no_suspect_any_more(q: Probe) -> None:
    for outcome, id in (("retry", "a"), ("snooze", "b")):
        suspect(q, id)
        die(q, id)
        (job,) = q.claim("w1").jobs
        assert q.settle(job, outcome, "+0") == "ok"  # type: ignore[arg-type]
        record = q.record(id)
        assert (record.strikes, record.crashes, record.alone) == (0, 0, False)
        assert list(q.holding().sets["due:5"]) == [id]
        (job,) = q.claim("w1").jobs
        assert q.settle(job, "complete") == "ok"


def test_a_suspect_that_was_given_back_unbegun_stays_one(q: Probe) -> None:
    suspect(q, "a")
    (job,) = q.claim("w1").jobs
    assert q.settle(job, "release") == "ok"
    assert list(q.holding().sets["due:alone"]) == ["a"]
    assert q.record("a").strikes == 2
    assert not q.record("a").alone
