"""Jobs that kill their process: three times they are tried, and it is told how they died.

All run in one worker, beside jobs that do nothing: those run once each, whatever dies beside them.
"""

from __future__ import annotations

from typing import Any

import pytest

from bide import JobCancelled, JobFailed, Retry, State
from tests.chaos.processes import hostile
from tests.chaos.processes.test_killed import children
from tests.support.process_bench import HOSTILE, PROCESS, ProcessBench, Shared


def beside_others(shared: Shared, task: Any, *args: Any, **options: Any) -> Any:
    """A job that has failed, between others that have run."""
    before = [shared.queue.enqueue(hostile.ran) for _ in range(10)]
    job = shared.queue.enqueue_call(task, args=args, **options)
    after = [shared.queue.enqueue(hostile.ran_async) for _ in range(10)]
    with pytest.raises(JobFailed):
        job.wait(60)
    for other in (*before, *after):
        assert other.wait(60) == "ran"
        assert (other.refresh().attempt, other.attempts) == (1, ())
        assert len(shared.notes("ran", other.id)) == 1
    return job.refresh()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "args", "how"),
    [
        (hostile.segfault, (), "was killed by SIGSEGV"),
        (hostile.segfault_async, (), "was killed by SIGSEGV"),
        (hostile.abort, (), "was killed by SIGABRT"),
        (hostile.kill, (9,), "was killed by SIGKILL"),
        (hostile.kill, (15,), "was killed by SIGTERM"),
        (hostile.kill, (40,), "was killed by signal 40"),
        (hostile.leave, (0,), "exited with code 0"),
        (hostile.leave, (3,), "exited with code 3"),
        (hostile.leave, (75,), "exited with code 75"),
        (hostile.close_everything, (), "exited with code 1"),
        (hostile.swap_everything, (), "exited with code 1"),
        (hostile.leak_into, (1,), "exited with code 1"),
    ],
)
def test_a_job_that_kills_its_process_fails_with_evidence(
    shared: Shared, task: Any, args: tuple[Any, ...], how: str
) -> None:
    job = beside_others(shared, task, *args)
    assert job.state is State.FAILED
    assert job.error.type == "bide.WorkerCrashed"
    assert how in job.error.message
    assert "MB" in job.error.message
    assert [attempt.crashed for attempt in job.attempts] == [True] * 3
    begun = shared.notes("begun", job.id)
    assert len({note.pid for note in begun}) == len(begun) == 3, "each time in another process"
    if task is hostile.segfault:
        assert [line.text for line in job.logs] == ["about to read address 0"] * 3


@pytest.mark.slow
@PROCESS
def test_a_job_that_breaks_its_event_loop_answers_for_that_itself(bench: ProcessBench) -> None:
    """And not the next coroutine, which would find it broken, as would all after that."""
    with bench.at_work(concurrency=1):
        assert bench.queue.enqueue(hostile.ran_async).wait(60) == "ran"
        job = bench.queue.enqueue(hostile.close_its_loop, on_crash="fail")
        with pytest.raises(JobFailed, match="exited with code 1"):
            job.wait(60)
        after = bench.queue.enqueue(hostile.ran_async)
        assert after.wait(60) == "ran"
        assert after.refresh().attempts == ()


@pytest.mark.slow
@PROCESS
def test_a_child_that_has_no_descriptors_for_a_loop_gives_coroutines_back(
    bench: ProcessBench,
) -> None:
    """And is replaced; else it would fail all that it gets, quicker than others can run them."""
    with bench.at_work(concurrency=1) as worker:
        (before,) = children(worker)
        assert bench.queue.enqueue(hostile.take_all_descriptors).wait(60) == "taken"
        jobs = [bench.queue.enqueue(hostile.ran_async) for _ in range(10)]
        assert [job.wait(60) for job in jobs] == ["ran"] * 10
        assert all((job.refresh().attempt, job.attempts) == (1, ()) for job in jobs)
        assert children(worker) != [before]


@pytest.mark.slow
@PROCESS
def test_a_plain_function_may_close_the_loop_that_it_finds(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1):
        assert bench.queue.enqueue(hostile.ran_async).wait(60) == "ran"
        assert bench.queue.enqueue(hostile.use_a_loop_of_its_own).wait(60) == 2
        after = bench.queue.enqueue(hostile.ran_async)
        assert after.wait(60) == "ran"
        assert after.refresh().attempts == ()


@pytest.mark.slow
def test_lines_that_were_shut_down_are_replaced(bench: ProcessBench) -> None:
    """All children share them: without, nothing would ever run here again."""
    with bench.at_work(lease=1):  # which one did it is not always known
        before = [bench.queue.enqueue(hostile.ran) for _ in range(10)]
        job = bench.queue.enqueue(hostile.shut_all_down, on_crash="fail")
        after = [bench.queue.enqueue(hostile.ran) for _ in range(10)]
        with pytest.raises(JobFailed):
            job.wait(60)
        assert [other.wait(60) for other in (*before, *after)] == ["ran"] * 20
        assert len(bench.notes("begun", job.id)) == 1


@pytest.mark.slow
@PROCESS
def test_lines_that_do_not_block_any_more_are_mended(bench: ProcessBench) -> None:
    """All children share them: those whose wait ended by that would die."""
    with bench.at_work() as worker:
        before = children(worker)
        for _ in range(3):
            assert bench.queue.enqueue(hostile.let_nothing_block).wait(60) == "unblocked"
            jobs = [bench.queue.enqueue(hostile.ran) for _ in range(10)]
            assert [job.wait(60) for job in jobs] == ["ran"] * 10
        assert children(worker) == before


def test_a_job_that_must_not_be_repeated_is_not(shared: Shared) -> None:
    job = beside_others(shared, hostile.segfault, on_crash="fail", on_failure=hostile.told)
    assert len(shared.notes("begun", job.id)) == 1
    (crash,) = job.attempts
    assert crash.crashed
    assert "was killed by SIGSEGV; it had used up to" in job.error.message
    assert "on_crash='fail' forbids" in job.error.message
    assert [note.what[2] for note in shared.notes("told", job.id)] == [job.error.message]


def test_its_callback_is_told_when_it_has_crashed_for_the_last_time(shared: Shared) -> None:
    job = beside_others(shared, hostile.leave, 3, on_failure=hostile.told)
    assert len(shared.notes("begun", job.id)) == 3
    (told,) = shared.notes("told", job.id)
    assert told.what[2] == job.error.message
    assert "exited with code 3" in job.error.message


def test_it_is_kept_for_as_long_as_it_said(shared: Shared) -> None:
    """Which is less than others are: it stands where those do that finished long ago."""
    job = beside_others(shared, hostile.leave, 3, retention="1h")
    queue = shared.queue
    score: Any = queue._client._redis.zscore(queue.keys["failed"], job.id)
    assert score / 1e6 < job.finished.timestamp() - 86_400


@pytest.mark.slow
def test_a_callback_that_crashes_too_changes_nothing(shared: Shared) -> None:
    job = beside_others(shared, hostile.leave, 3, on_failure=hostile.told_and_dies)
    assert len(shared.notes("told", job.id)) == 1
    assert "exited with code 3" in job.error.message
    assert [attempt.crashed for attempt in job.attempts] == [True] * 3


@pytest.mark.slow
def test_a_limit_of_the_system_kills_like_any_other(shared: Shared) -> None:
    job = beside_others(shared, hostile.spend_time, on_crash="fail")
    assert "was killed by SIG" in job.attempts[0].error.message


def test_memory_that_is_refused_is_an_error_like_any_other(shared: Shared) -> None:
    job = beside_others(shared, hostile.allocate)
    assert job.error.type == "MemoryError"
    assert len(shared.notes("begun", job.id)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        hostile.block_signals,
        hostile.swallow,
        hostile.in_del,
        hostile.block_the_loop,
        f"{HOSTILE}:hold_the_gil",
    ],
)
def test_what_no_exception_ends_is_killed(shared: Shared, task: Any) -> None:
    args = (10**12,) if isinstance(task, str) else ()
    job = beside_others(shared, task, *args, timeout=0.5, on_failure=hostile.told)
    it_took_too_long(shared, job)
    assert "was killed by SIGKILL; it had used up to" in job.error.message
    if task is hostile.block_signals:
        assert [line.text for line in job.logs] == ["deaf"]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "task", [hostile.power, hostile.deadlock, hostile.chatter, hostile.pass_over_errors]
)
def test_what_an_exception_ends_is_not(shared: Shared, task: Any) -> None:
    job = beside_others(shared, task, timeout=0.5, on_failure=hostile.told)
    it_took_too_long(shared, job)
    assert "killed" not in job.error.message


def it_took_too_long(shared: Shared, job: Any) -> None:
    assert job.error.type == "bide.JobTimeout"
    assert "time-out of 0.5 s" in job.error.message
    assert job.attempt == 1
    (told,) = shared.notes("told", job.id)
    assert "time-out" in told.what[2]
    assert [attempt.crashed for attempt in job.attempts] == [False]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("task", [hostile.chatter, hostile.chatter_in_threads])
def test_one_that_talks_all_the_time_is_retried_as_its_policy_says(
    shared: Shared, task: Any
) -> None:
    retry = Retry(1, backoff="fixed", base=0)
    job = beside_others(shared, task, timeout=0.5, retry=retry)
    assert job.error.type == "bide.JobTimeout"
    assert "killed" not in job.error.message
    assert [attempt.crashed for attempt in job.attempts] == [False, False]


@pytest.mark.usefixtures("patient")
def test_one_that_talks_all_the_time_can_be_cancelled(shared: Shared) -> None:
    job = shared.queue.enqueue(hostile.chatter)
    shared.wait("begun", id=job.id)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.wait(60)
    job.refresh()
    assert (job.state, job.attempts) == (State.CANCELLED, ())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["process", "fork"], indirect=True)
def test_a_large_result_of_one_that_leaves_no_descriptor(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1):
        job = bench.queue.enqueue(hostile.hoard, 200_000)
        assert job.wait(60) == "x" * 200_000
    assert (job.refresh().attempt, job.attempts) == (1, ())


@pytest.mark.slow
def test_a_large_result_that_cannot_be_handed_over(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1):
        job = bench.queue.enqueue_call(
            hostile.write_little, args=(200_000,), on_success=hostile.told
        )
        with pytest.raises(JobFailed, match="could not be handed to the worker"):
            job.wait(60)
    assert len(job.refresh().attempts) == 1
    assert not job.attempts[0].crashed
    assert bench.notes("told") == []


@pytest.mark.slow
def test_its_policy_says_what_becomes_of_what_was_killed(shared: Shared) -> None:
    before = len(shared.notes("asked"))
    retry = Retry(5, backoff=f"{HOSTILE}:no_more")
    job = beside_others(shared, hostile.swallow, timeout=0.5, retry=retry)
    assert len(shared.notes("begun", job.id)) == 2
    assert [note.what[1] for note in shared.notes("asked")[before:]] == [1, 2]
    assert [attempt.number for attempt in job.attempts] == [1, 2]


@pytest.mark.slow
def test_a_policy_that_dies_itself_is_a_crash(shared: Shared) -> None:
    retry = Retry(5, backoff=f"{HOSTILE}:kills_the_judge")
    job = beside_others(shared, hostile.swallow, timeout=0.5, retry=retry)
    assert "exited with code 4" in job.error.message


@pytest.mark.slow
def test_a_callback_that_never_ends_is_killed_and_its_job_has_completed(shared: Shared) -> None:
    job = shared.queue.enqueue_call(hostile.ran, timeout=2, on_success=hostile.told_forever)
    assert job.wait(60) == "ran"
    assert len(shared.notes("told", job.id)) == 1
    assert len(shared.notes("ran", job.id)) == 1


def test_a_job_that_is_cancelled_and_will_not_hear_is_killed(shared: Shared) -> None:
    job = shared.queue.enqueue(hostile.block_signals)
    shared.wait("begun", id=job.id)
    job.cancel()

    with pytest.raises(JobCancelled):
        job.wait(60)
    assert job.refresh().state is State.CANCELLED
    assert shared.queue.enqueue(hostile.ran).wait(60) == "ran"
