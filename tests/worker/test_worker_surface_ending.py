"""How a run ends: by what it raises, its policy, its worker's death, its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import Queue, Retry, State
from bide.client import blocking
from bide.protocol.commands import worker as worker_commands
from tests.support import jobs, surface
from tests.support.workers import at_work, burst, eventually, worker


def ended(queue: Queue, id: str) -> bool:
    return queue.fetch(id).finished is not None


# -- what it raises


@pytest.mark.parametrize("task", [surface.ask_for_later, surface.ask_for_later_async])
def test_a_job_may_ask_to_be_run_later(queue: Queue, task: Any) -> None:
    job = queue.enqueue(task, 3600)
    burst(queue)
    job.refresh()
    assert (job.state, job.attempt) == (State.DELAYED, 1)
    assert timedelta(minutes=59) < job.due - datetime.now(UTC) <= timedelta(hours=1)
    assert job.error is not None
    assert (job.error.type, job.error.message) == ("bide.RetryLater", "not yet")


def test_which_uses_its_attempts_three_of_them_where_it_has_no_policy(queue: Queue) -> None:
    job = queue.enqueue(surface.ask_for_later, 0)
    burst(queue)
    assert jobs.seen == [1, 2, 3, 4]
    assert job.refresh().state is State.FAILED


@pytest.mark.slow
@pytest.mark.parametrize(("retry", "runs"), [(0, [1]), (1, [1, 2])])
def test_or_those_of_its_policy(queue: Queue, retry: int, runs: list[int]) -> None:
    job = queue.enqueue(surface.ask_for_later, 0, retry=retry)
    burst(queue)
    assert jobs.seen == runs
    assert job.refresh().state is State.FAILED


def test_without_a_delay_the_policy_says_when(queue: Queue) -> None:
    job = queue.enqueue(surface.ask_for_later, retry=Retry(1, backoff="fixed", base=3600))
    burst(queue)
    assert job.refresh().state is State.DELAYED
    assert job.due - datetime.now(UTC) > timedelta(minutes=59)


def test_a_snooze_uses_no_attempt_and_is_no_error(queue: Queue) -> None:
    job = queue.enqueue(surface.snooze_once, 0)
    assert burst(queue) == 1
    assert [attempt for attempt, _, _ in jobs.seen] == [1, 1]
    (_, first, due), (_, still_first, later) = jobs.seen
    assert first == due == still_first <= later
    job.refresh()
    assert (job.result, job.attempt, job.error, job.attempts) == ("awake", 1, None, ())


def test_a_delay_that_has_passed_means_now(queue: Queue) -> None:
    snoozed = queue.enqueue(surface.snooze_once, -5)
    assert burst(queue) == 1
    assert snoozed.refresh().result == "awake"
    asking = queue.enqueue(surface.ask_for_later, -5, retry=1)
    burst(queue)
    assert (asking.refresh().state, asking.attempt) == (State.FAILED, 2)


def test_a_snooze_may_last_until_a_moment(queue: Queue) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    job = queue.enqueue(surface.snooze_until, until.isoformat())
    burst(queue)
    assert job.refresh().state is State.DELAYED
    assert job.due == until


@pytest.mark.slow
def test_a_job_may_say_that_it_has_failed_for_good(queue: Queue) -> None:
    job = queue.enqueue(surface.give_up, retry=5)
    burst(queue)
    job.refresh()
    assert jobs.seen == [1]
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.message == "no use"


# -- its policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retry", "runs"),
    [
        (Retry(2, backoff="fixed", base=0, never_on=surface.Refused), [1]),
        (Retry(2, backoff="fixed", base=0, on=surface.Refused), [1, 2, 3]),
        (Retry(2, backoff="fixed", base=0, on=ValueError), [1]),
        (Retry(2, backoff="fixed", base=0, on="tests.support.surface.Refused"), [1, 2, 3]),
    ],
)
def test_only_the_errors_that_a_policy_covers_are_followed_by_another_attempt(
    queue: Queue, retry: Retry, runs: list[int]
) -> None:
    queue.enqueue(surface.refuse, retry=retry)
    burst(queue)
    assert jobs.seen == runs


def test_no_attempt_comes_after_the_time_that_a_policy_allows(queue: Queue) -> None:
    retry = Retry(50, backoff=[0, 0, 3600], max_time=1800)
    job = queue.enqueue(surface.refuse, retry=retry)
    burst(queue)
    assert jobs.seen == [1, 2, 3]
    assert job.refresh().state is State.FAILED


@pytest.mark.slow
def test_that_time_counts_from_when_the_job_was_first_due(queue: Queue, raw: redis.Redis) -> None:
    """Neither from its latest due time, nor from when it was enqueued."""
    job = queue.enqueue(surface.refuse, retry=Retry(50, backoff="fixed", base=500, max_time=1200))
    for _ in range(3):
        burst(queue)
        if job.refresh().state is State.FAILED:
            break
        job.promote()
        line = raw.hget(queue.keys["run"], job.id)
        assert isinstance(line, bytes)
        *rest, first = line.split(b" ")
        earlier = b" ".join([*rest, b"%d" % (int(first) - 500_000_000)])
        raw.hset(queue.keys["run"], job.id, earlier.decode())  # as if 500 s had passed
    assert jobs.seen == [1, 2, 3]
    assert job.refresh().state is State.FAILED


@pytest.mark.slow
def test_a_retry_by_hand_has_all_that_time_again(queue: Queue) -> None:
    job = queue.enqueue(surface.refuse, retry=Retry(1, backoff="fixed", base=0, max_time=3600))
    burst(queue)
    assert jobs.seen == [1, 2]
    job.retry()
    burst(queue)
    assert jobs.seen == [1, 2, 1, 2]
    assert len(job.refresh().attempts) == 4


def test_a_function_of_the_workers_may_say_how_long_to_wait(queue: Queue) -> None:
    queue.enqueue(surface.refuse, retry=Retry(5, backoff=surface.pauses))
    burst(queue)
    assert jobs.seen == [
        *(1, ("asked for a delay", 1, "never")),
        *(2, ("asked for a delay", 2, "never")),
    ]


@pytest.mark.slow
def test_a_task_has_a_policy_and_a_job_may_have_another(queue: Queue) -> None:
    queue.enqueue(surface.with_policy)
    burst(queue)
    assert jobs.seen == [1, 2]
    jobs.seen.clear()
    queue.enqueue(surface.with_policy, retry=0)
    burst(queue)
    assert jobs.seen == [1]


@pytest.mark.slow
@pytest.mark.parametrize(("timeout", "state"), [(None, State.FAILED), (90, State.COMPLETED)])
def test_also_for_its_time_out(queue: Queue, timeout: float | None, state: State) -> None:
    job = queue.enqueue(surface.brief, 1.5, timeout=timeout)
    burst(queue)
    assert job.refresh().state is state


def kept_for(queue: Queue, raw: redis.Redis, id: str, state: State) -> float:
    """Seconds for which a finished job is kept, while the queue keeps others for a day."""
    job = queue.fetch(id)
    assert job.state is state
    assert job.finished is not None
    score = raw.zscore(queue.keys[state], id)
    assert isinstance(score, float)
    return float(86_400 + score / 1e6 - job.finished.timestamp())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 77), ({"retention": "1h"}, 3600), ({"retention": "3d"}, 259_200)]
)
def test_also_for_how_long_it_is_kept(
    queue: Queue, raw: redis.Redis, options: Any, seconds: float
) -> None:
    from bide import Retention

    queue.configure(retention=Retention(failed="1d"))
    job = queue.enqueue(surface.with_policy, **options)
    burst(queue)
    assert kept_for(queue, raw, job.id, State.FAILED) == pytest.approx(seconds, abs=0.1)
    done = queue.enqueue(jobs.add, 1, **options)
    burst(queue)
    expected = seconds if options else 86_400
    assert kept_for(queue, raw, done.id, State.COMPLETED) == pytest.approx(expected, abs=0.1)


# -- its worker's death


def die(queue: Queue, count: int = 1) -> None:
    """A worker takes jobs and is never heard of again."""
    client = blocking.Client(queue.url)
    taken = client.run(worker_commands.claim(queue.keys, "dead", 1, count, 1, 0)).jobs
    assert len(taken) == count
    client.close()


def test_a_job_whose_worker_died_is_run_again_and_knows(queue: Queue) -> None:
    job = queue.enqueue(surface.how_redelivered)
    die(queue)
    burst(queue)
    assert jobs.seen == [(1, True)]
    job.refresh()
    assert (job.state, job.attempt) == (State.COMPLETED, 1)
    assert [attempt.crashed for attempt in job.attempts] == [True]


def test_one_that_was_never_lost_knows_that_too(queue: Queue) -> None:
    queue.enqueue(surface.how_redelivered)
    burst(queue)
    assert jobs.seen == [(1, False)]


def test_one_that_must_not_be_run_twice_fails_instead(queue: Queue) -> None:
    job = queue.enqueue(surface.how_redelivered, on_crash="fail", retry=5)
    die(queue)
    burst(queue)
    assert jobs.seen == []
    job.refresh()
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.type == "bide.WorkerCrashed"
    assert "on_crash='fail'" in job.error.message


def test_as_its_task_says_unless_it_says_otherwise_itself(queue: Queue) -> None:
    first = queue.enqueue(surface.with_policy)
    second = queue.enqueue(surface.with_policy, on_crash="rerun")
    die(queue, 2)
    burst(queue)
    assert jobs.seen == [1, 2]
    assert first.refresh().error is not None
    assert second.refresh().error is not None
    assert first.error.type == "bide.WorkerCrashed"  # type: ignore[union-attr]
    assert second.error.type == "ValueError"  # type: ignore[union-attr]


def test_an_attempt_after_a_retry_is_no_redelivery(queue: Queue) -> None:
    """What had an outcome was not lost, whatever came before it."""
    job = queue.enqueue(surface.with_policy, on_crash="rerun")
    die(queue)
    burst(queue)
    assert jobs.seen == [1, 2]
    job.retry()
    job.cancel()
    job.retry()
    jobs.seen.clear()
    burst(queue)
    assert jobs.seen == [1, 2]


# -- its time


def test_a_job_in_time_is_not_disturbed(queue: Queue) -> None:
    job = queue.enqueue(surface.brief, 0)
    burst(queue)
    assert job.refresh().result == "in time"


@pytest.mark.slow
def test_one_that_took_too_long_is_retried_as_its_policy_says(queue: Queue) -> None:
    retry = Retry(1, backoff="fixed", base=0, on=TimeoutError)
    for timeout in (0.5, 4, 16):  # on a busy machine a run may not begin in time
        jobs.seen.clear()
        job = queue.enqueue(surface.sleep_for, 3600, timeout=timeout, retry=retry)
        burst(queue)
        if jobs.seen == ["begun", "begun"]:
            break
    assert jobs.seen == ["begun", "begun"]
    job.refresh()
    assert job.state is State.FAILED
    errors = [attempt.error for attempt in job.attempts]
    assert [error.type for error in errors if error] == ["bide.JobTimeout"] * 2


def test_a_thread_that_outlasts_its_time_and_raises_changes_nothing(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue(jobs.wait_and_fail, timeout=0.05)
    with at_work(queue):
        eventually(lambda: ended(queue, job.id))
        jobs.gate.set()
        queue.enqueue(jobs.add, 1).wait(90)
    error = job.refresh().error
    assert error is not None
    assert error.type == "bide.JobTimeout"
    assert len(job.attempts) == 1
    assert caplog.text.count("failed: JobTimeout") == 1


# -- methods of instances


def test_a_method_runs_with_its_instance(queue: Queue) -> None:
    cart = surface.Cart("ada", [1, 2, 3])
    plain = queue.enqueue(cart.total, discount=1)
    awaited = queue.enqueue(cart.total_later)
    burst(queue)
    assert plain.refresh().result == "ada: 5"
    assert awaited.refresh().result == "ada: 6"
    assert plain.task == "tests.support.surface:Cart.total"


def test_a_method_of_a_class_that_is_not_served_is_not_run(queue: Queue) -> None:
    job = queue.enqueue(surface.Cart("ada", []).total)
    worker(queue, modules=["tests.support.jobs"]).run(burst=True)
    error = job.refresh().error
    assert error is not None
    assert error.type == "bide.TaskNotFound"
