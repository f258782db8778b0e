"""Jobs that a worker without their task gave back: who takes them, and when."""

from __future__ import annotations

import pytest

from bide.errors import TaskNotFound
from bide.model.payload.body import encode_error
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import DUE_SETS
from tests.conformance.probe import SECOND, Probe

EAGER = 2 + 4
"""How a worker claims that serves such jobs."""

PATIENCE = 600
WHY = encode_error(TaskNotFound("not here"))


def given_back(q: Probe, *ids: str, by: str = "without", after: int = 5, priority: int = 5) -> None:
    """Enqueue jobs; a worker that lacks their task takes them, and gives them back."""
    q.add(*ids, priority=priority)
    for job in q.claim(by, len(ids)).jobs:
        assert q.settle(job, "snooze", f"+{after * SECOND}", WHY) == "ok"


def where(q: Probe, id: str) -> str:
    """Which due set holds the job."""
    names = zip(DUE_SETS, q.keys.names["due"], strict=True)
    return next(name for name, key in names if q.raw.zscore(key, id) is not None)


def eagerly(q: Probe, worker: str = "with", count: int = 10) -> Claim:
    return q.claim(worker, count, arm=EAGER)


def test_a_worker_that_has_the_task_takes_them_before_they_are_looked_at_again(q: Probe) -> None:
    given_back(q, *"abcd")
    assert where(q, "a") == "unserved"
    assert q.taken("without") == []
    found = eagerly(q, count=4)
    assert [job.id for job in found.jobs] == ["a", "b"]
    assert found.more, "it took as many as it may: half of its slots"
    assert all(job.due_us <= found.now_us and job.missing_us for job in found.jobs)
    assert q.settle(found.jobs[0], "complete") == "ok"
    assert [job.id for job in eagerly(q, count=100).jobs] == ["c", "d"]
    assert not eagerly(q, count=100).more


def test_one_that_has_not_takes_them_when_they_are_due(q: Probe) -> None:
    given_back(q, "a", after=5)
    found = q.claim("without")
    assert found.until_us <= found.deadline_us
    q.move(6)
    assert q.taken("without") == ["a"]


def test_other_jobs_keep_half_of_the_slots(q: Probe) -> None:
    given_back(q, *(f"old{n}" for n in range(10)))
    q.add(*(f"new{n}" for n in range(10)), priority=9)
    ids = [job.id for job in eagerly(q, count=6).jobs]
    assert sorted(id[:3] for id in ids) == ["new"] * 3 + ["old"] * 3


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_one_that_is_rescheduled_is_due_when_its_caller_says(q: Probe, priority: int) -> None:
    given_back(q, "a", priority=priority)
    q.reschedule("a", f"+{60 * SECOND}")
    assert where(q, "a") == str(priority)
    assert eagerly(q).jobs == []
    q.move(61)
    assert q.taken("with") == ["a"]


def test_a_paused_queue_gives_none(q: Probe) -> None:
    given_back(q, "a")
    q.run(job_commands.pause(q.keys))
    found = eagerly(q)
    assert (found.jobs, found.more) == ([], False)


def test_they_do_not_fail_for_their_age_while_others_run(q: Probe) -> None:
    """Those that have the task may only be busy: another minute, and another look."""
    given_back(q, "a-slow", "b-next")
    (slow,) = q.claim("with", 2, arm=EAGER, lease=2 * PATIENCE).jobs
    q.move(PATIENCE + 30)
    (job,) = q.claim("without").jobs
    assert job.id == "b-next"
    assert 500 < (job.token - job.missing_us) / SECOND < PATIENCE
    assert q.settle(job, "snooze", "+1000000", WHY) == "ok"
    assert q.settle(slow, "complete") == "ok"
    q.move(120)
    (job,) = q.claim("without").jobs
    assert (job.token - job.missing_us) / SECOND > PATIENCE


def test_what_the_worker_itself_holds_is_no_sign_that_somebody_has_the_task(q: Probe) -> None:
    given_back(q, "a", "b")
    (_,) = q.claim("without", 2, arm=EAGER, lease=2 * PATIENCE).jobs
    q.move(PATIENCE + 30)
    (job,) = q.claim("without").jobs
    assert (job.token - job.missing_us) / SECOND > PATIENCE
