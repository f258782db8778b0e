"""Extend: a lease is renewed for whoever holds it, and for nobody else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bide.errors import ScriptBug
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Outcome
from tests.support.probe import LEASE, SECOND, Probe


def test_a_lease_is_renewed_from_now(q: Probe) -> None:
    job = q.take("a")
    q.move(5)
    reply = q.reply(worker_commands.extend(q.keys, 30 * SECOND, [(job.id, job.token)]))
    word, now, *verdicts = reply
    assert (word, verdicts) == (b"ok", [b"ok"])
    assert q.zset("active") == {"a": now + 30 * SECOND}


def test_a_job_that_is_extended_stays_with_its_worker(q: Probe) -> None:
    job = q.take("a")
    for _ in range(4):
        q.move(LEASE - 1)
        assert q.extend(job) == ["ok"]
        assert q.taken("w2") == []
    assert q.settle(job, "complete") == "ok"


def test_only_the_lease_changes(q: Probe) -> None:
    job = q.take("a")
    before = q.holding()
    q.extend(job)
    after = q.holding()
    assert after.hashes == before.hashes
    assert after.records == before.records


def test_a_lease_that_has_expired_but_was_not_reclaimed_can_be_extended(q: Probe) -> None:
    job = q.take("a")
    q.move(LEASE + 1)
    assert q.extend(job) == ["ok"]
    assert q.taken("w2") == []


@pytest.mark.parametrize("difference", [-1, 1])
def test_another_token_extends_nothing(q: Probe, difference: int) -> None:
    job = q.take("a")
    before = q.zset("active")
    assert q.extend(replace(job, token=job.token + difference)) == ["lost"]
    assert q.zset("active") == before


def test_one_whose_job_was_taken_by_another_has_lost_it(q: Probe) -> None:
    job = q.take("a", "w1")
    q.move(LEASE + 1)
    q.claim("w2")
    before = q.zset("active")
    assert q.extend(job) == ["lost"]
    assert q.zset("active") == before


@pytest.mark.parametrize("outcome", ["complete", "retry", "fail", "snooze", "release", "cancel"])
def test_a_job_that_was_settled_cannot_be_extended(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    q.settle(job, outcome, "+0")
    assert q.extend(job) == ["lost"]
    assert q.zset("active") == {}


def test_a_job_that_is_no_more_is_gone(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "complete")
    q.run(job_commands.delete(q.keys, ["a"]))
    assert q.extend(job) == ["gone"]


def test_many_at_once_each_with_its_verdict(q: Probe) -> None:
    q.add("a", "b", "c")
    a, b, c = q.claim().jobs
    q.settle(b, "complete")
    verdicts = q.extend(a, b, replace(c, token=1), replace(a, id="nobody"))
    assert verdicts == ["ok", "lost", "lost", "gone"]


def test_nothing_to_extend_is_refused(q: Probe) -> None:
    with pytest.raises(ScriptBug, match="BADARG extend"):
        q.extend()
