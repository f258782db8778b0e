"""Callbacks: who is told of a job's end, of what, and what becomes of it."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

from bide import FailedAttempt, Middleware, Queue, Retry, State
from tests.support import jobs, surface
from tests.support.workers import at_work, burst, eventually

pytestmark = pytest.mark.slow

KINDS = [jobs.add, jobs.add_async]
"""A plain function and a coroutine function."""


def told(job: Any, value: str) -> tuple[str, str, str, bool]:
    return ("told", job.id, value, True)


NAME = "tests.support.surface:told"
TELLERS = [surface.told, surface.told_async, NAME]


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("teller", TELLERS)
def test_a_job_that_completed_is_told_with_its_result(queue: Queue, task: Any, teller: Any) -> None:
    job = queue.enqueue(task, 2, 3, on_success=teller, on_failure=surface.told_badly)
    burst(queue)
    assert jobs.seen[1:] == [told(job, "5")]


@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
@pytest.mark.parametrize("teller", TELLERS)
def test_one_that_failed_with_its_error(queue: Queue, task: Any, teller: Any) -> None:
    job = queue.enqueue(task, "no", on_failure=teller, on_success=surface.told_badly)
    burst(queue)
    assert jobs.seen[1:] == [told(job, "no")]


def test_only_once_it_has_failed_for_good(queue: Queue) -> None:
    job = queue.enqueue(surface.fails_twice, retry=Retry(1, backoff="fixed", base=0))
    burst(queue)
    assert jobs.seen == [("attempt", 1), ("attempt", 2), told(job, "wrong")]


def test_a_task_has_callbacks_and_a_job_may_have_others(queue: Queue) -> None:
    right = queue.enqueue(surface.with_callbacks, False)
    burst(queue)
    assert jobs.seen == [told(right, "right")]
    jobs.seen.clear()
    wrong = queue.enqueue(surface.with_callbacks, True)
    burst(queue)
    assert jobs.seen == [told(wrong, "wrong")]
    jobs.seen.clear()
    queue.enqueue(surface.with_callbacks, True, on_failure=surface.told_badly)
    burst(queue)
    assert jobs.seen == ["told badly"]


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("teller", [surface.told_badly, surface.told_badly_async, "no.such:name"])
def test_one_that_raises_changes_nothing(
    queue: Queue, task: Any, teller: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue(task, 2, 3, on_success=teller)
    burst(queue)
    assert job.refresh().result == 5
    records = [record for record in caplog.records if "its callback" in record.message]
    assert [record.levelno for record in records] == [logging.ERROR]


@pytest.mark.parametrize("task", [jobs.hang, jobs.wait_thread])
@pytest.mark.parametrize("teller", TELLERS)
def test_a_job_that_ran_too_long_is_told(queue: Queue, task: Any, teller: Any) -> None:
    job = queue.enqueue(task, timeout=0.5, on_failure=teller)
    burst(queue)
    jobs.gate.set()
    if task is jobs.wait_thread:  # it begins, ends, and is told of
        jobs.wait_seen(3)
    ((_, id, text, is_current),) = [what for what in jobs.seen if what[0] == "told"]
    assert (id, is_current) == (job.id, True)
    assert "ran longer than its time-out of 0.5 s" in text


@pytest.mark.parametrize("teller", TELLERS)
def test_a_job_that_could_not_be_called_is_told(queue: Queue, teller: Any) -> None:
    job = queue.enqueue("tests.support.jobs:add", on_failure=teller)
    burst(queue)
    ((_, id, text, is_current),) = jobs.seen
    assert (id, is_current) == (job.id, True)
    assert "needs its argument 'a'" in text


TIMEOUTS = (1, 4, 16)
"""Seconds, tried in turn: on a busy machine the time may be over before the callback starts."""


@pytest.mark.parametrize("task", [jobs.wait_thread, "tests.support.jobs:add"])
def test_a_worker_that_ends_waits_for_it(queue: Queue, task: Any) -> None:
    """Though the job itself has ended: its time was over, or it could not be called."""
    job = queue.enqueue(task, timeout=0.05, on_failure=surface.told_slowly)
    burst(queue)
    assert ("told", job.id) in jobs.seen
    jobs.gate.set()
    jobs.wait_seen(1 if isinstance(task, str) else 3)


def test_a_job_that_was_cancelled_tells_nobody(queue: Queue) -> None:
    job = queue.enqueue(jobs.hang, on_success=surface.told, on_failure=surface.told)
    with at_work(queue):
        jobs.wait_seen(1)
        job.cancel()
        eventually(lambda: job.refresh().finished)
    assert jobs.seen == ["begun"]


@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
def test_a_callback_may_end_after_the_time_out_of_its_job(queue: Queue, task: Any) -> None:
    for timeout in TIMEOUTS:
        jobs.seen.clear()
        job = queue.enqueue(task, "no", timeout=timeout, on_failure=surface.told_after_the_time_out)
        burst(queue)
        assert jobs.seen[1:] == [("told", job.id)]
        error = job.refresh().error
        assert error is not None
        if error.type == "ValueError":
            return
    pytest.fail("the time was always over before the callback started")


def test_a_callback_that_takes_too_long_is_ended_and_the_outcome_stands(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bide.worker.executors.local.GRACE", 0.3)
    for timeout in TIMEOUTS:
        jobs.seen.clear()
        job = queue.enqueue(jobs.add_async, 2, 3, timeout=timeout, on_success=surface.told_forever)
        burst(queue)
        if jobs.seen[1:] == ["told"]:
            break
    assert jobs.seen[1:] == ["told"]
    assert job.refresh().result == 5
    assert "took too long" in caplog.text
    assert "slots held" not in caplog.text


def test_after_a_hook_that_takes_too_long_the_others_are_called(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Middleware):
        async def failed(self, failure: FailedAttempt) -> None:
            await surface.told_forever(failure.job, failure.error)

    monkeypatch.setattr(importlib.import_module("bide.tasks.middleware"), "in_use", [Slow()])
    monkeypatch.setattr("bide.worker.executors.local.GRACE", 0.3)
    job = queue.enqueue(jobs.fail_async, "no", timeout=1, on_failure=surface.told)
    burst(queue)
    assert jobs.seen[-2:] == ["told", told(job, "no")]
    assert "Slow.failed took too long" in caplog.text


def test_also_one_that_is_told_of_a_time_out(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout in TIMEOUTS:
        monkeypatch.setattr("bide.worker.executors.local.GRACE", timeout / 5)
        jobs.seen.clear()
        job = queue.enqueue(jobs.hang, timeout=timeout / 2, on_failure=surface.told_forever)
        burst(queue)
        if jobs.seen == ["begun", "told"]:
            break
    assert jobs.seen == ["begun", "told"]
    error = job.refresh().error
    assert error is not None
    assert error.type == "bide.JobTimeout"


def test_a_job_that_is_cancelled_while_its_callback_runs_has_completed(queue: Queue) -> None:
    for timeout in TIMEOUTS:
        jobs.seen.clear()
        job = queue.enqueue(jobs.add_async, 2, 3, on_success=surface.told_forever, timeout=timeout)
        with at_work(queue):
            eventually(lambda: len(jobs.seen) == 2 or job.refresh().finished)  # noqa: B023
            is_asked = job.cancel()
            eventually(lambda: job.refresh().finished)  # noqa: B023
        if is_asked and job.state is State.COMPLETED:
            break
    assert is_asked
    assert job.result == 5
