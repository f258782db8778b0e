"""Jobs of every state: what the bed lists, asserts and says of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import bide
from bide import State, UsageError, Worker, chain
from bide.testing import TestBed
from tests.features.testing import shop

NAME = "tests.features.testing.shop"


def test_a_blocked_job_is_enqueued(bed: TestBed) -> None:
    first = shop.send.enqueue(1)
    second = shop.note.options(depends_on=first).enqueue("after")
    assert bed.assert_enqueued(shop.note).id == second.id
    assert [job.state for job in bed.enqueued()] == [State.WAITING, State.BLOCKED]
    with pytest.raises(AssertionError) as info:
        bed.assert_not_enqueued(shop.note)
    assert str(info.value).splitlines() == [
        f"{NAME}:note(...) is enqueued (1 blocked).",
        "Enqueued:",
        f"  {NAME}:send(1), waiting, due now, on mail",
        f"  {NAME}:note('after'), blocked by 1 job, on mail",
    ]


def test_also_in_another_queue_and_in_a_chain(bed: TestBed) -> None:
    shop.mail.enqueue_many(chain(shop.send.prepare(1), shop.send.prepare(2)))
    shop.note_low.options(depends_on=shop.send.enqueue(3)).enqueue("low")
    bed.assert_enqueued(shop.send, 2)
    bed.assert_enqueued(shop.note_low, "low", queue=shop.low)
    assert [job.state for job in bed.enqueued(shop.note_low)] == [State.BLOCKED]


def test_a_blocked_job_is_due_so_long_after_those_that_it_depends_on(bed: TestBed) -> None:
    first = shop.send.later("2h").enqueue(1)
    shop.note.options(depends_on=[first, shop.send.enqueue(2)], delay="1h").enqueue("after")
    bed.assert_enqueued(shop.note, delay="1h")
    bed.assert_not_enqueued(shop.note, delay="3h")
    with pytest.raises(AssertionError, match=r"blocked by 2 jobs, then due in (1h|59m\d+s), on"):
        bed.assert_not_enqueued(shop.note)


def test_blocked_jobs_are_listed_last(bed: TestBed) -> None:
    first = shop.send.later("2h").enqueue(1)
    shop.send.options(depends_on=first).enqueue(2)
    assert [job.args for job in bed.enqueued()] == [(1,), (2,)]
    assert bed.assert_enqueued(shop.send).args == (1,), "the one that is due first"


def test_what_runs_is_enqueued_until_it_has_finished(bed: TestBed) -> None:
    worker = Worker(shop.mail)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        shop.hold.enqueue()
        assert shop.begun.wait(90)
        assert bed.assert_enqueued(shop.hold).state is State.ACTIVE
        with pytest.raises(AssertionError, match=r"hold\(\.\.\.\) is enqueued \(1 active\)\."):
            bed.assert_not_enqueued(shop.hold)
    finally:
        shop.gate.set()
        worker.stop()
        thread.join(20)
    bed.assert_not_enqueued(shop.hold)


def test_a_failure_shows_what_has_finished_and_how(bed: TestBed) -> None:
    shop.send.enqueue(1)
    shop.fail.enqueue("x")
    shop.note.enqueue("cancelled").cancel()
    shop.note.options(expires="1m").later("1h").enqueue("expired")
    bed.run(raise_failures=False)
    bed.advance("2h")
    with pytest.raises(AssertionError) as info:
        bed.assert_enqueued(shop.send, 1)
    head, nothing, finished, *lines = str(info.value).splitlines()
    assert (head, nothing, finished) == (
        f"No job {NAME}:send(1) is enqueued.",
        "Nothing is enqueued.",
        "Finished:",
    )
    assert set(lines) == {
        f"  {NAME}:send(1), completed, on mail",
        f"  {NAME}:fail('x'), failed, on mail",
        f"  {NAME}:note('cancelled'), cancelled, on mail",
        f"  {NAME}:note('expired'), cancelled because it expired, on mail",
    }


def test_jobs_of_every_state_can_be_listed(bed: TestBed) -> None:
    shop.send.enqueue(1)
    shop.fail.enqueue("x")
    bed.run(raise_failures=False)
    last = shop.send.later("1h").enqueue(2)
    shop.send.options(depends_on=last).enqueue(3)
    assert {job.call.rpartition(":")[2]: job.state for job in bed.jobs()} == {
        "send(1)": State.COMPLETED,
        "fail('x')": State.FAILED,
        "send(2)": State.DELAYED,
        "send(3)": State.BLOCKED,
    }
    assert [job.args for job in bed.jobs(shop.send)] == [(1,), (2,), (3,)]


def test_an_expired_job_is_cancelled_when_the_clock_has_moved(bed: TestBed) -> None:
    job = shop.send.options(expires="1m").enqueue(1)
    alarm = shop.note.options(depends_on=job, run_if="ended").enqueue("it expired")
    bed.advance("2m")
    bed.assert_not_enqueued(shop.send)
    assert job.refresh().expired
    assert alarm.refresh().state is State.WAITING


def test_data_of_a_delay_queue_are_no_jobs(bed: TestBed) -> None:
    pile = bide.DelayQueue("orders")
    pile.push_many([1, 2], delay="1h")
    shop.send.later("2h").enqueue(1)
    assert [job.task for job in bed.enqueued()] == [f"{NAME}:send"]
    assert [job.task for job in bed.run(until="3h")] == [f"{NAME}:send"]
    assert pile.pop(2) == [1, 2], "nobody has taken them"
    pile.close()


@pytest.mark.parametrize("look", ["assert_enqueued", "assert_not_enqueued", "enqueued", "jobs"])
def test_a_method_of_a_task_is_not_the_task(bed: TestBed, look: str) -> None:
    with pytest.raises(UsageError, match=r"Give the task itself, .*:send, without \.enqueue"):
        getattr(bed, look)(shop.send.enqueue)


@pytest.mark.parametrize(
    "task",
    [shop.send.later("1h"), shop.send.prepare(1), None, 1],
    ids=lambda task: type(task).__name__,
)
def test_what_is_no_task(bed: TestBed, task: Any) -> None:
    with pytest.raises(
        UsageError, match=r"Give a task, then its arguments, such as \(send, 42, del"
    ):
        bed.assert_not_enqueued(task)
