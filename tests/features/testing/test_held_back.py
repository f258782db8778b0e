"""Running jobs that something holds back: other jobs, limits, pauses."""

from __future__ import annotations

from datetime import timedelta

import pytest

import bide
from bide import State, fan_in
from bide.testing import TestBed
from tests.features.testing import shop

HOUR = timedelta(hours=1)


def test_a_job_runs_after_those_that_it_depends_on(bed: TestBed) -> None:
    first = shop.note.later("1h").enqueue("first")
    shop.note.options(depends_on=first, delay="1h").enqueue("second")
    bed.run(until="90m")
    assert shop.done == ["first"]
    bed.run(until="30m")
    assert shop.done == ["first", "second"]


def test_also_where_those_are_in_another_queue(bed: TestBed) -> None:
    parents = [shop.note.enqueue("mail"), shop.note_low.enqueue("low")]
    last = shop.note_low.options(depends_on=parents).enqueue("last")
    bed.run()
    assert shop.done[-1] == "last"
    assert last.refresh().state is State.COMPLETED


def test_also_where_they_had_run_before(bed: TestBed) -> None:
    parent = shop.note_low.enqueue("low")
    bed.run()
    shop.note.options(depends_on=parent).enqueue("mail")
    bed.run()
    assert shop.done == ["low", "mail"]


@pytest.mark.anyio
async def test_also_under_an_event_loop(bed: TestBed) -> None:
    parent = shop.note_low.enqueue("low")
    await shop.publish.options(depends_on=parent).enqueue("x")
    await bed.arun()
    assert shop.done == ["low", ("publish", "x")]


def test_many_queues_in_a_row(bed: TestBed) -> None:
    queues = [bide.Queue(f"q{i}") for i in range(4)]
    job = None
    for queue in queues:
        job = queue.enqueue(shop.note.function, queue.name, depends_on=job and [job])
    bed.run()
    assert shop.done == ["q0", "q1", "q2", "q3"]
    sides = [shop.note.prepare("a"), shop.note.prepare("b")]
    shop.mail.enqueue_many(fan_in(sides, completed=shop.note.prepare("both")))
    bed.run()
    assert shop.done[-1] == "both"
    for queue in queues:
        queue.close()


def test_a_job_that_expires_lets_those_run_that_wait_for_that(bed: TestBed) -> None:
    start = bed.now()
    parent = shop.note.options(expires="1h").enqueue("expires")
    shop.mail.pause()
    shop.note_low.options(depends_on=parent, run_if="ended").enqueue("instead")
    (job,) = bed.run(until="3h")
    assert shop.done == ["instead"]
    assert job.started is not None
    assert HOUR <= job.started - start < HOUR + timedelta(minutes=1), "no later than it can"
    shop.mail.resume()


def test_a_rate_holds_jobs_back_until_its_time(bed: TestBed) -> None:
    shop.mail.configure(rate="1/1h")
    for name in ("a", "b", "c"):
        shop.note.enqueue(name)
    shop.note_low.enqueue("low")
    assert len(bed.run()) == 2
    assert shop.done == ["a", "low"]
    ran = bed.run(until="90m")
    assert shop.done == ["a", "low", "b"]
    assert ran[0].lateness is not None
    assert ran[0].lateness > 3590


def test_so_does_a_job_that_holds_its_queue(bed: TestBed) -> None:
    shop.mail.enqueue(hold_the_queue)
    shop.note.enqueue("after")
    assert [job.state for job in bed.run()] == [State.DELAYED]
    bed.run(until="10m")
    assert shop.done == ["held", "after", "held"]


def hold_the_queue() -> None:
    shop.done.append("held")
    if len(shop.done) == 1:
        raise bide.PauseQueue("10m")


def test_the_jobs_of_a_group_that_is_paused_stay(bed: TestBed) -> None:
    shop.note.options(group="g").enqueue("paused")
    shop.note.enqueue("runs")
    shop.mail.group("g").pause()
    bed.run(until="1h")
    assert shop.done == ["runs"]
    shop.mail.group("g").resume()
    bed.run()
    assert shop.done == ["runs", "paused"]


def test_what_is_over_the_limit_is_given_back(bed: TestBed) -> None:
    jobs = [shop.note.enqueue(str(i)) for i in range(3)]
    with pytest.raises(bide.UsageError, match=r"has run 2 jobs, and another is due"):
        bed.run(limit=2)
    assert jobs[2].refresh().state is State.WAITING
    assert jobs[2].attempt == 0
    bed.run()
    assert shop.done == ["0", "1", "2"]
