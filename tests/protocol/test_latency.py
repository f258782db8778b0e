"""What is counted minute by minute: how late jobs began, and how long attempts ran."""

from __future__ import annotations

import pytest

from bide.model.job import Claimed
from bide.model.latency import FINEST, LAST, LONGEST, Minute
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.worker.queue_state import LatenessBuffer
from tests.support.probe import SECOND, Probe

MINUTE = 60


def minutes(q: Probe, first: int = 0, count: int = 1) -> list[Minute]:
    return q.run(job_commands.latency(q.keys, first, count))


def to_next_minute(q: Probe) -> None:
    q.move(MINUTE - q.now / SECOND % MINUTE + 1)


def bounds(minute: Minute) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Upper bounds of the buckets in which something is, and how many."""
    return tuple(  # type: ignore[return-value]
        sorted((FINEST * 2**bucket, n) for bucket, n in histogram.counts.items())
        for histogram in (minute.late, minute.ran)
    )


def started(q: Probe, *jobs: Claimed) -> None:
    """Report how late jobs started, as their worker does."""
    buffer = LatenessBuffer()
    for job in jobs:
        buffer.add(q.now - job.due_us)
    held = [(job.id, job.token) for job in jobs]
    q.run(worker_commands.extend(q.keys, 10 * SECOND, held, buffer.take()))


def test_how_late_jobs_began_and_how_long_they_ran(q: Probe) -> None:
    to_next_minute(q)
    q.add("a", "b", "c")
    q.move(3)
    jobs = q.claim().jobs
    q.add("d")
    jobs += q.claim().jobs
    started(q, *jobs)
    q.move(0.6)
    for job in jobs:
        q.settle(job, "complete")
    (seen,) = minutes(q)
    late, ran = bounds(seen)
    assert (late[-1], seen.late.total) == ((4.096, 3), 4)
    assert ran == [(1.024, 4)]


def test_a_night_is_told_from_a_week_and_what_is_longer_is_counted_with_it(q: Probe) -> None:
    to_next_minute(q)
    q.add("a")
    q.move(10 * 3600)
    started(q, *q.claim().jobs)
    (night,) = minutes(q)
    assert bounds(night)[0] == [(FINEST * 2**28, 1)]
    q.add("b")
    q.move(30 * 86_400)
    started(q, *q.claim("w2", 1).jobs)
    (month,) = minutes(q)
    assert month.late.percentile(0.5) == LONGEST


def test_a_run_of_a_month_is_counted_with_the_longest(q: Probe) -> None:
    to_next_minute(q)
    job = q.take("a")
    q.move(30 * 86_400)
    q.settle(job, "complete")
    (month,) = minutes(q)
    assert month.ran.counts == {LAST: 1}


def test_what_did_not_run_is_not_counted_as_run(q: Probe) -> None:
    to_next_minute(q)
    q.settle(q.take("a"), "release")
    (job,) = q.claim().jobs
    q.settle(job, "snooze", "+0")
    (job,) = q.claim().jobs
    q.settle(job, "crash")
    (seen,) = minutes(q)
    assert seen.ran.total == 0


def test_minutes_stand_apart_and_one_without_anything_is_empty(q: Probe) -> None:
    to_next_minute(q)
    started(q, q.take("a"))
    q.leave("w1")
    q.move(2 * MINUTE)
    q.add("b")
    started(q, *q.claim("w2", 1).jobs)
    assert [m.late.total for m in minutes(q, 2, 3)][::2] == [1, 1]


def test_after_a_week_they_are_forgotten(q: Probe) -> None:
    to_next_minute(q)
    now = q.now // (MINUTE * SECOND)
    q.raw.hset(q.keys["minutes"], mapping={str(now - 10_080 - i): "l1=1" for i in range(10)})
    q.raw.hset(q.keys["minutes"], str(now - 10_079), "l1=1")
    started(q, q.take("a"))
    kept = {int(name) for name in q.raw.hkeys(q.keys["minutes"]) if name.isdigit()}
    assert kept == {now - 10_079}
    assert minutes(q)[0].late.total == 1


def test_a_minute_that_the_clock_comes_back_to_is_counted_on(q: Probe) -> None:
    to_next_minute(q)
    for moved in (0, MINUTE, -MINUTE, 0, MINUTE):
        q.move(moved)
        started(q, q.take(f"a{moved}{q.now}"))
        q.leave("w1")
    assert [m.late.total for m in minutes(q, 1, 2)] == [3, 2]
    assert q.raw.hget(q.keys["minutes"], "this") == b"%d" % (q.now // (MINUTE * SECOND))


@pytest.mark.parametrize("fields", [["this"], [f"{kind}{n}" for kind in "lr" for n in range(33)]])
def test_fields_of_another_program_cost_no_job_and_one_minute_at_most(
    q: Probe, fields: list[str]
) -> None:
    to_next_minute(q)
    q.raw.hset(q.keys["minutes"], mapping=dict.fromkeys(fields, "odd"))
    for id in ("a", "b"):
        job = q.take(id)
        started(q, job)
        q.settle(job, "complete")
        assert q.where(id) == "completed"
        if id == "a":
            to_next_minute(q)
    assert minutes(q)[0].late.total == minutes(q)[0].ran.total == 1


def test_a_line_of_another_program_costs_no_job(q: Probe) -> None:
    q.raw.set(q.keys["minutes"], "x")
    q.legal = False
    q.settle(q.take("a"), "complete")
    assert q.where("a") == "completed"
