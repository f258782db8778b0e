"""Jobs that a worker without their task gave back: who takes them, and when."""

from __future__ import annotations

import pytest

from bide.errors import TaskNotFound
from bide.model.job import Claimed, State
from bide.model.payload.body import encode_error
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import DUE_SETS
from tests.support.probe import BODY, LEASE, SECOND, Probe

PATIENCE = 600
WHY = encode_error(TaskNotFound("not here"))


def given_back(
    q: Probe,
    *ids: str,
    after: int = 5,
    priority: int = 5,
    body: bytes = BODY,
    group: str = "",
    expires: int = 0,
) -> None:
    """Enqueue jobs; a worker that lacks their task takes them, and gives them back."""
    constraints = f"x=+{expires * SECOND}" if expires else f"g={group}" if group else ""
    for id in ids:
        q.add_many(Prepared(id, "+0", priority, body, constraints=constraints))
    missing = list(ids)
    while missing:
        for job in q.claim("without", len(ids)).jobs:
            assert q.settle(job, "snooze", f"+{after * SECOND}", WHY) == "ok"
            missing.remove(job.id)


def where(q: Probe, id: str) -> str:
    """Which due set holds the job."""
    names = zip(DUE_SETS, q.keys.names["due"], strict=True)
    return next(name for name, key in names if q.raw.zscore(key, id) is not None)


def eagerly(q: Probe, worker: str = "with", count: int = 10, lease: float = LEASE) -> Claim:
    """How a worker claims that may have the task."""
    return q.claim(worker, count, lease=lease, flags="e")


def waited(job: Claimed) -> float:
    """For how many seconds nobody has served the job's task."""
    return (job.token - job.missing_us) / SECOND


def test_a_worker_that_has_the_task_takes_them_before_they_are_looked_at_again(q: Probe) -> None:
    given_back(q, *"abcd")
    assert where(q, "a") == "unserved"
    assert q.taken("without") == []
    found = eagerly(q, count=2)
    assert [job.id for job in found.jobs] == ["a", "b"]
    assert found.more, "there may be others"
    assert all(job.due_us <= found.now_us and job.missing_us for job in found.jobs)
    assert q.settle(found.jobs[0], "complete") == "ok"
    found = eagerly(q, count=100)
    assert ([job.id for job in found.jobs], found.more) == (["c", "d"], False)
    assert not eagerly(q, count=100).more


def test_one_that_has_not_takes_them_when_they_are_due(q: Probe) -> None:
    given_back(q, "a", after=5)
    found = q.claim("without")
    assert found.until_us <= found.deadline_us
    q.move(6)
    assert q.taken("without") == ["a"]


@pytest.mark.parametrize("is_eager", [True, False])
def test_they_and_other_jobs_have_half_of_the_slots_each(q: Probe, is_eager: bool) -> None:
    given_back(q, *(f"old{n}" for n in range(10)))
    q.move(6)
    q.add(*(f"new{n}" for n in range(10)), priority=9)
    claim = q.claim("with", 6, flags="e" if is_eager else "")
    assert sorted(job.id[:3] for job in claim.jobs) == ["new"] * 3 + ["old"] * 3


@pytest.mark.parametrize("is_eager", [True, False])
def test_of_claims_for_one_job_every_second_is_theirs(q: Probe, is_eager: bool) -> None:
    given_back(q, *(f"old{n}" for n in range(10)))
    q.move(6)
    q.add(*(f"new{n}" for n in range(10)), priority=9)
    found = [q.claim("with", 1, flags="e" if is_eager else "").jobs[0].id for _ in range(8)]
    assert sorted(id[:3] for id in found) == ["new"] * 4 + ["old"] * 4


def test_what_is_read_of_large_jobs_is_shared_alike(q: Probe) -> None:
    large = b'{"task":"app.tasks:send","args":["' + 200_000 * b"x" + b'"]}'
    given_back(q, *(f"old{n}" for n in range(15)), body=large)
    q.add(*(f"new{n}" for n in range(15)), body=large)
    ids = [job.id[:3] for job in eagerly(q, count=40).jobs]
    assert min(ids.count("old"), ids.count("new")) >= 4


@pytest.mark.parametrize("priority", [0, 5, 9])
@pytest.mark.parametrize("verb", ["reschedule", "promote"])
def test_one_that_is_moved_is_due_when_its_caller_says(q: Probe, priority: int, verb: str) -> None:
    given_back(q, "a", priority=priority, expires=20)
    if verb == "reschedule":
        q.reschedule("a", f"+{60 * SECOND}")
        assert eagerly(q).jobs == []
        q.move(61)
    else:
        q.run(job_commands.promote(q.keys, ["a"]))
    assert where(q, "a") == str(priority)
    q.move(5)
    (job,) = q.claim("with").jobs
    assert (job.id, round(waited(job))) == ("a", 6 if verb == "reschedule" else 5)


def test_one_whose_record_cannot_be_read_is_due_when_its_caller_says(q: Probe) -> None:
    given_back(q, "a")
    q.raw.hset(q.keys["run"], "a", "nonsense")
    q.legal = False
    q.reschedule("a", f"+{60 * SECOND}")
    assert where(q, "a") == "5"
    assert eagerly(q).jobs == []


def test_they_expire_counted_from_when_they_were_first_due(q: Probe) -> None:
    given_back(q, "a", "b", after=5, expires=20)
    q.move(15)
    (one, other) = q.claim("without").jobs
    for job in (one, other):
        assert q.settle(job, "snooze", f"+{15 * SECOND}", WHY) == "ok"
    q.move(6)
    assert q.claim("without").jobs == []
    assert {one and one.state for one in map(q.fetch, "ab")} == {State.CANCELLED}


def test_a_paused_queue_gives_none(q: Probe) -> None:
    given_back(q, "a")
    q.run(job_commands.pause(q.keys))
    found = eagerly(q)
    assert (found.jobs, found.more) == ([], False)


def give_back_after(q: Probe, id: str, seconds: int) -> None:
    """A worker without the task looks at the job some time later, and does not let it fail."""
    q.move(seconds)
    (job,) = q.claim("without").jobs
    assert (job.id, waited(job) < PATIENCE) == (id, True)
    assert q.settle(job, "snooze", "+1000000", WHY) == "ok"


def test_they_do_not_fail_for_their_age_while_one_of_them_runs(q: Probe) -> None:
    """Those that have the task may only be busy: another minute, and another look."""
    given_back(q, "a-slow", "b-next")
    (slow,) = eagerly(q, count=1, lease=2 * PATIENCE).jobs
    assert slow.id == "a-slow"
    give_back_after(q, "b-next", PATIENCE + 30)
    assert q.settle(slow, "complete") == "ok"
    q.move(120)
    (job,) = q.claim("without").jobs
    assert waited(job) > PATIENCE


@pytest.mark.parametrize("group", ["", "g"])
def test_nor_while_some_have_run(q: Probe, group: str) -> None:
    given_back(q, "a", after=PATIENCE, group=group)
    q.move(PATIENCE - 10)
    q.claim("with", 0, flags="s")
    give_back_after(q, "a", 30)
    q.move(PATIENCE)
    (job,) = q.claim("without").jobs
    assert waited(job) > PATIENCE


def test_what_the_worker_itself_holds_is_no_sign_that_somebody_has_the_task(q: Probe) -> None:
    given_back(q, "a", "b")
    (_,) = eagerly(q, "without", 1, 2 * PATIENCE).jobs
    q.move(PATIENCE + 30)
    (job,) = q.claim("without").jobs
    assert waited(job) > PATIENCE


def test_nor_is_what_another_has_only_just_taken(q: Probe) -> None:
    given_back(q, "a", "b")
    q.move(PATIENCE + 30)
    (_,) = q.claim("lacks-it-too", 1).jobs
    q.move(1)
    (job,) = q.claim("without").jobs
    assert waited(job) > PATIENCE
