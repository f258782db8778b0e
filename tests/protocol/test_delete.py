"""Delete: every trace of a job is removed, unless a worker holds it."""

from __future__ import annotations

import pytest

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Outcome
from tests.support.probe import LEASE, SECOND, Probe


def assert_no_trace(q: Probe) -> None:
    holding = q.holding()
    assert holding.ids == set()
    assert all(not values for values in holding.hashes.values())


@pytest.mark.parametrize("when", ["+0", f"+{SECOND}"])
@pytest.mark.parametrize("priority", [0, 5, 9])
def test_a_job_that_has_not_run(q: Probe, when: str, priority: int) -> None:
    q.add("a", when=when, priority=priority)
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["ok"]
    assert_no_trace(q)
    q.move(2)
    assert q.taken() == []


@pytest.mark.parametrize("outcome", ["complete", "fail", "retry"])
def test_a_job_that_has_run(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", b'{"type":"E","message":""}')
    (job,) = q.claim().jobs
    q.settle(job, outcome, "+0", b"{}" if outcome == "complete" else b'{"type":"E","message":""}')
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["ok"]
    assert_no_trace(q)


def test_a_job_that_was_cancelled(q: Probe) -> None:
    q.add("a")
    q.cancel("a")
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["ok"]
    assert_no_trace(q)


def test_a_suspect(q: Probe) -> None:
    q.add("a")
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert list(q.holding().sets["due:alone"]) == ["a"]
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["ok"]
    assert_no_trace(q)


def test_a_job_that_runs_is_left_alone(q: Probe) -> None:
    job = q.take("a")
    before = q.holding()
    assert q.run(job_commands.delete(q.keys, ["a"])) == ["active"]
    assert q.holding() == before
    assert q.settle(job, "complete", data=b"1") == "ok"


def test_a_repeat_finds_it_gone(q: Probe) -> None:
    q.add("a")
    assert q.run(job_commands.delete(q.keys, ["a", "a", "nobody"])) == ["ok", "gone", "gone"]


def test_many_in_one_call_each_with_its_answer(q: Probe) -> None:
    q.take("run")
    q.add("a", "b", "c")
    words = q.run(job_commands.delete(q.keys, ["c", "run", "a"]))
    assert words == ["ok", "active", "ok"]
    assert q.holding().ids == {"run", "b"}


def test_its_id_is_free_again_and_starts_from_nothing(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0", b'{"type":"E","message":""}')
    q.run(job_commands.delete(q.keys, ["a"]))
    (receipt,) = q.add("a")
    assert receipt.created
    (again,) = q.claim().jobs
    assert again.attempt == 1
    assert again.token > job.token
    assert q.holding().hashes["notes"] == {}
