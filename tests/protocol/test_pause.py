"""Pause and resume: nothing is claimed meanwhile, and nothing else is held up."""

from __future__ import annotations

from bide.protocol.commands import jobs as job_commands
from tests.support.probe import Probe


def test_paused_is_a_field_of_the_queue(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    assert q.holding().meta["paused"] == "1"
    assert q.run(job_commands.counts(q.keys)).paused
    q.run(job_commands.resume(q.keys))
    assert "paused" not in q.holding().meta
    assert not q.run(job_commands.counts(q.keys)).paused


def test_nothing_is_claimed_until_it_is_resumed(q: Probe) -> None:
    q.add("a")
    q.run(job_commands.pause(q.keys))
    q.add("b")
    q.move(60)
    assert q.taken() == []
    q.run(job_commands.resume(q.keys))
    assert q.taken() == ["a", "b"]


def test_twice_is_once(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    q.run(job_commands.pause(q.keys))
    q.run(job_commands.resume(q.keys))
    assert "paused" not in q.holding().meta
    q.run(job_commands.resume(q.keys))


def test_what_runs_goes_on(q: Probe) -> None:
    job = q.take("a")
    q.run(job_commands.pause(q.keys))
    assert q.extend(job) == ["ok"]
    assert q.settle(job, "retry", "+0") == "ok"
    assert q.where("a") == "due"


def test_a_repeated_claim_still_gets_what_it_took_before_the_pause(q: Probe) -> None:
    q.add("a")
    (job,) = q.claim("w1", seq=1).jobs
    q.run(job_commands.pause(q.keys))
    assert q.claim("w1", seq=1).jobs == [job]


def test_a_paused_queue_does_not_send_workers_round_in_circles(q: Probe) -> None:
    q.add("a")
    q.run(job_commands.pause(q.keys))
    q.hear()
    claim = q.claim()
    assert not claim.more
    assert q.wakeups() == 0


def test_resume_wakes_a_worker(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    q.run(job_commands.resume(q.keys))
    assert q.wakeups() == 1


def test_resume_of_a_queue_that_was_not_paused_wakes_nobody(q: Probe) -> None:
    q.run(job_commands.resume(q.keys))
    assert q.wakeups() == 0
