"""Whatever a task, its callback or its policy does at the end, it ends that job and no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bide import Queue, Retry, State, Worker
from bide.worker.executors import local
from tests.support import jobs
from tests.support.workers import at_work, burst, eventually, worker
from tests.worker import odd_ends

MODULES = ("tests.support.jobs", "tests.worker.odd_ends")
KINDS = [jobs.add, jobs.add_async]
"""A plain function and a coroutine function."""


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


def run(queue: Queue, **options: Any) -> int:
    return burst(queue, modules=MODULES, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "callback"),
    [
        (jobs.add, odd_ends.stay_for_a_while),
        (jobs.add_async, odd_ends.stay_for_a_while),
        (jobs.add_async, odd_ends.stay_for_a_while_async),
    ],
)
def test_what_has_completed_is_not_given_back_while_its_callback_runs(
    queue: Queue, task: Callable[..., Any], callback: Callable[..., Any]
) -> None:
    one = worker(queue, modules=MODULES)
    thread = threading.Thread(target=one.run)
    thread.start()
    job = queue.enqueue(task, 2, 3, on_success=callback)
    eventually(lambda: ("called back", 5) in jobs.seen)
    one.stop()
    one.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert job.refresh().state is State.COMPLETED


@pytest.mark.usefixtures("signing")
def test_a_pickle_is_read_on_the_queues_that_chose_it_and_no_others(one_url: str) -> None:
    plain, chosen = Queue("plain", url=one_url), Queue("chosen", url=one_url, serializer="pickle")
    stranger = Queue("plain", url=one_url, serializer="pickle")
    refused, read = stranger.enqueue(jobs.add, 2, 3), chosen.enqueue(jobs.add, 2, 3)
    Worker([plain, chosen], modules=MODULES).run(burst=True)
    assert (read.refresh().state, refused.refresh().state) == (State.COMPLETED, State.FAILED)
    assert refused.error is not None
    assert "--allow-pickle" in refused.error.message
    for one in (plain, chosen, stranger):
        one.close()


def test_one_that_waited_for_a_cancelled_job_is_not_cancelled_itself(queue: Queue) -> None:
    job = queue.enqueue(odd_ends.child_was_cancelled)
    run(queue)
    assert job.refresh().state is State.FAILED
    assert job.error is not None
    assert job.error.type == "bide.JobCancelled"


def test_asking_for_later_is_bounded_by_count_and_time_and_not_by_the_kind_of_error(
    queue: Queue,
) -> None:
    other = queue.enqueue(odd_ends.later, 60, retry=Retry(3, on=ConnectionError))
    spent = queue.enqueue(odd_ends.later, 60, retry=0)
    too_late = queue.enqueue(odd_ends.later, 86_400, retry=Retry(3, max_time="1m"))
    in_time = queue.enqueue(odd_ends.later, 5, retry=Retry(3, base=3_600, max_time="1m"))
    run(queue)
    states = [job.refresh().state for job in (other, spent, too_late, in_time)]
    assert states == [State.DELAYED, State.FAILED, State.FAILED, State.DELAYED]


@pytest.mark.slow
@pytest.mark.parametrize("task", [odd_ends.misfit, odd_ends.misfit_async])
def test_who_is_told_of_a_result_that_does_not_fit_is_told_the_error(
    queue: Queue, task: Callable[..., Any]
) -> None:
    job = queue.enqueue(task, on_failure=odd_ends.told)
    run(queue)
    assert job.refresh().state is State.FAILED
    assert ("told", "PayloadError") in jobs.seen


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
def test_a_task_may_be_a_callback(queue: Queue, task: Callable[..., Any]) -> None:
    queue.enqueue(task, 2, 3, on_success=odd_ends.told_by_task)
    run(queue)
    assert ("told", 5) in jobs.seen


@pytest.mark.slow
@pytest.mark.parametrize("task", [odd_ends.tells, odd_ends.tells_async])
def test_also_one_that_a_decorator_names(queue: Queue, task: Callable[..., Any]) -> None:
    queue.enqueue(task)
    run(queue)
    assert ("told", 5) in jobs.seen


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("callback", [odd_ends.leave, odd_ends.leave_async])
def test_a_callback_that_leaves_ends_no_worker(
    queue: Queue, task: Callable[..., Any], callback: Callable[..., Any]
) -> None:
    job = queue.enqueue(task, 2, 3, on_success=callback)
    after = queue.enqueue(jobs.add, 1, 1, delay=0.05)
    with at_work(queue, modules=MODULES):
        assert after.wait(60) == 2
    assert job.refresh().state is State.COMPLETED


@pytest.mark.slow
@pytest.mark.parametrize("task", [odd_ends.fail, odd_ends.fail_async])
@pytest.mark.parametrize("backoff", [odd_ends.breaks_off, odd_ends.leaves])
def test_a_backoff_that_breaks_off_fails_its_job_and_no_worker(
    queue: Queue, task: Callable[..., Any], backoff: Callable[..., Any]
) -> None:
    job = queue.enqueue(task, retry=Retry(3, backoff=backoff))
    assert run(queue) == 1
    assert job.refresh().state is State.FAILED


def test_nor_does_it_keep_others_from_timing_out(queue: Queue) -> None:
    retry = Retry(3, backoff=odd_ends.breaks_off)
    first = queue.enqueue(odd_ends.overrun, timeout=0.1, retry=retry)
    second = queue.enqueue(odd_ends.overrun, timeout=0.2)
    assert run(queue) == 2
    assert {first.refresh().state, second.refresh().state} == {State.FAILED}


def test_a_coroutine_that_is_deaf_to_its_time_out_ends_all_the_same(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE", 0.1)
    job = queue.enqueue(odd_ends.deaf, timeout=0.1)
    with at_work(queue, modules=MODULES):
        eventually(lambda: job.refresh().state is State.FAILED)
        assert "over" not in jobs.seen
    assert job.error is not None
    assert job.error.type == "bide.JobTimeout"


def test_a_plain_function_sees_that_its_time_is_over(queue: Queue) -> None:
    queue.enqueue(odd_ends.looks, timeout=0.1)
    with at_work(queue, modules=MODULES):
        eventually(lambda: "saw it" in jobs.seen)


def test_a_burst_on_a_server_that_knows_no_script_leaves_nothing_that_is_due(
    queue: Queue,
) -> None:
    job = queue.enqueue(odd_ends.fail, retry=Retry(1, backoff="fixed", base=0))
    queue._client._redis.script_flush()
    assert run(queue) == 2
    assert job.refresh().state is State.FAILED


def test_the_log_has_the_traceback_of_what_nobody_foresaw(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(odd_ends.fail)
    run(queue)
    assert 'raise ValueError("no")' in caplog.text


@pytest.mark.slow
def test_and_none_of_what_the_job_said_itself(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(odd_ends.gives_up)
    run(queue)
    assert "Fail('no use')" in caplog.text
    assert "Traceback" not in caplog.text
