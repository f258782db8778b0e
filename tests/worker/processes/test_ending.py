"""How a run in a process ends: retries, what it asks for, its time, being cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bide import JobCancelled, JobFailed, Retry, State
from tests.support import process_tasks as tasks
from tests.support.process_bench import Shared
from tests.support.workers import eventually

AT_ONCE = Retry(2, backoff="fixed", base=0)
PATIENT = Retry(20, backoff="fixed", base=0)
"""On a busy machine the time of a quick job may be over; it then runs again."""


def failed(job: Any) -> Any:
    with pytest.raises(JobFailed):
        job.wait(90)
    return job.refresh().error


@pytest.mark.slow
def test_a_job_is_tried_as_often_as_its_policy_says(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.raise_it, "no", retry=AT_ONCE)
    assert failed(job).message == "no"
    assert [note.what[1] for note in shared.notes("raised", job.id)] == [1, 2, 3]
    assert [attempt.number for attempt in job.attempts] == [1, 2, 3]
    assert not any(attempt.crashed for attempt in job.attempts)


def test_a_function_may_say_when_it_is_tried_again(shared: Shared) -> None:
    retry = Retry(9, backoff="tests.support.process_tasks:pauses")
    job = shared.queue.enqueue(tasks.raise_it, "no", retry=retry)
    failed(job)
    assert [note.what[1] for note in shared.notes("raised", job.id)] == [1, 2, 3]


def test_a_job_may_ask_to_be_run_later(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.later_once)
    assert job.wait(90) == "done"
    assert job.refresh().attempt == 2


def test_or_to_be_left_alone_for_a_while(shared: Shared) -> None:
    assert shared.queue.enqueue(tasks.snooze_once).wait(90) == 1


@pytest.mark.slow
def test_a_tasks_own_time_out_and_retries_hold(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.brief)
    error = failed(job)
    assert error.type == "bide.JobTimeout"
    assert "time-out of 0.5 s" in error.message
    assert len(shared.notes("begun", job.id)) == 2
    assert not job.attempts[0].crashed


@pytest.mark.slow
@pytest.mark.parametrize("task", [tasks.sleep, tasks.sleep_async])
def test_what_takes_too_long_is_ended_by_an_exception(shared: Shared, task: Any) -> None:
    job = shared.queue.enqueue(task, 3600, timeout=2)
    error = failed(job)
    assert error.type == "bide.JobTimeout"
    if task is tasks.sleep:
        assert "time.sleep(seconds)" in error.traceback, "it says where"


def test_also_in_the_middle_of_a_regular_expression(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.backtrack, timeout=0.1)
    assert failed(job).type == "bide.JobTimeout"


@pytest.mark.parametrize("task", [tasks.raise_in_finally, tasks.raise_in_finally_async])
def test_what_a_finally_raises_does_not_hide_a_time_out(shared: Shared, task: Any) -> None:
    job = shared.queue.enqueue(task, timeout=0.1)
    assert failed(job).type == "bide.JobTimeout"


@pytest.mark.slow
def test_the_time_of_one_job_is_not_that_of_the_next(shared: Shared) -> None:
    """An alarm that was set for a job that has ended rings in no other."""
    jobs = [shared.queue.enqueue(tasks.add, i, timeout=2, retry=PATIENT) for i in range(20)]
    slow = [shared.queue.enqueue(tasks.sleep, 3, timeout=60) for _ in range(2)]
    assert [job.wait(90) for job in jobs] == list(range(20))
    assert [job.wait(60) for job in slow] == ["slept"] * 2


def test_a_job_that_swallows_its_time_out_and_returns_has_completed(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.swallow, timeout=0.5, retry=PATIENT)
    assert job.wait(90) == "swallowed"


@pytest.mark.parametrize("task", [tasks.tidy_up, tasks.tidy_up_async])
def test_a_running_job_that_is_cancelled_ends_by_an_exception(shared: Shared, task: Any) -> None:
    job = shared.queue.enqueue(task)
    shared.wait("begun", id=job.id)
    assert job.cancel()
    with pytest.raises(JobCancelled):
        job.wait(90)
    assert job.refresh().state is State.CANCELLED
    (tidied,) = shared.wait("tidied", id=job.id)
    assert tidied.what == ["tidied", True]


def test_one_that_waits_for_a_child_never_begins(shared: Shared) -> None:
    busy = [shared.queue.enqueue(tasks.held, f"{shared.executor}-on") for _ in range(2)]
    for job in busy:
        shared.wait("begun", id=job.id)
    waiting = shared.queue.enqueue(tasks.held, "never")
    assert waiting.cancel()
    with pytest.raises(JobCancelled):
        waiting.wait(90)
    shared.open(f"{shared.executor}-on")
    assert [job.wait(90) for job in busy] == ["held"] * 2
    assert shared.notes("begun", waiting.id) == []


def test_what_a_job_says_of_itself_is_kept(shared: Shared) -> None:
    for task in (tasks.say, tasks.say_async):
        job = shared.queue.enqueue(task, 3)
        assert job.wait(90) == "said"
        job.refresh()
        assert [line.text for line in job.logs] == ["line 0", "line 1", "line 2"]
        assert job.progress is not None
        assert (job.progress.fraction, job.progress.text) == (1.0, "step 2")


def test_and_can_be_seen_while_it_runs(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.say_and_wait, f"{shared.executor}-said")
    shared.wait("begun", id=job.id)
    eventually(lambda: job.refresh().progress is not None and len(job.logs) == 1)
    shared.open(f"{shared.executor}-said")
    job.wait(90)


@pytest.mark.parametrize("callback", [tasks.told, tasks.told_async])
def test_callbacks_are_told(shared: Shared, callback: Callable[..., Any]) -> None:
    right = shared.queue.enqueue_call(tasks.add, args=(1, 2), on_success=callback)
    wrong = shared.queue.enqueue_call(tasks.raise_async, args=("no",), on_failure=callback)
    late = shared.queue.enqueue_call(
        tasks.sleep_async, args=(30,), timeout=0.1, on_failure=callback
    )
    assert right.wait(90) == 3
    failed(wrong)
    failed(late)
    assert shared.notes("told", right.id)[0].what == ["told", right.id, "3"]
    assert shared.notes("told", wrong.id)[0].what[2] == "ValueError('no')"
    assert shared.notes("told", late.id)[0].what[2].startswith("JobTimeout(")


def test_a_callback_that_raises_or_dies_changes_no_outcome(shared: Shared) -> None:
    for callback in (tasks.told_badly, tasks.told_and_dies):
        job = shared.queue.enqueue_call(tasks.add, args=(1, 2), on_success=callback)
        assert job.wait(90) == 3
        assert len(shared.notes("add", job.id)) == 1


def test_middlewares_stand_around_jobs(shared: Shared) -> None:
    for task in (tasks.add, tasks.add_async):
        job = shared.queue.enqueue_call(task, args=(1,), meta={"around": True})
        assert job.wait(90) == 1
        whats = [note.what[0] for note in shared.notes(id=job.id)]
        assert whats == ["before", "add", "after"]


def test_what_one_job_sets_in_its_context_the_next_does_not_see(shared: Shared) -> None:
    for task in (tasks.see_tenant, tasks.see_tenant_async):
        jobs = [shared.queue.enqueue(task, name) for name in "abcdef"]
        assert [job.wait(90) for job in jobs] == ["nobody"] * 6
