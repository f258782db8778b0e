"""A job whose task a worker does not serve: it waits for one that does, for a while."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import Job, Queue, Retry, State
from bide.worker import heartbeat, outcome
from tests.support import jobs, surface
from tests.support.missing import age, unknown_tasks
from tests.support.workers import at_work, burst, eventually, worker

MODULE = "tests.support.jobs"
OTHER = ["tests.support.surface"]


def test_a_job_without_retries_waits_for_the_worker_that_has_its_function(queue: Queue) -> None:
    job = queue.enqueue(jobs.add, 1)
    assert burst(queue, modules=OTHER) == 0
    assert job.refresh().state is State.DELAYED
    assert job.attempt == 0
    job.promote()
    assert burst(queue) == 1
    assert (job.refresh().state, job.attempt, job.result) == (State.COMPLETED, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["nothing_here", "_private", "threading.Event"])
def test_what_a_module_does_not_define_may_come_with_its_next_version(
    queue: Queue, task: str
) -> None:
    job = queue.enqueue(f"{MODULE}:{task}")
    burst(queue)
    assert job.refresh().state is State.DELAYED
    assert job.error is not None
    assert job.error.type == "bide.TaskNotFound"


def test_its_error_says_at_once_how_to_allow_it_and_until_when_it_waits(queue: Queue) -> None:
    job = queue.enqueue("antigravity:fly")
    for _ in range(3):
        burst(queue)
        job.refresh().promote()
    assert len(job.attempts) == 1
    (attempt,) = job.attempts
    assert attempt.error is not None
    assert "bide worker antigravity" in attempt.error.message
    until = attempt.ended.timestamp() + outcome.PATIENCE
    said = attempt.error.message.partition("It waits for a worker that has it until ")[2]
    assert said.endswith(" UTC.")
    at = datetime.strptime(said, "%Y-%m-%d %H:%M:%S UTC.").replace(tzinfo=UTC)
    assert at.timestamp() == pytest.approx(until, abs=30)
    assert "antigravity" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "runs", "leaves"),
    [("async", jobs.add_async, jobs.add), ("thread", jobs.add, jobs.add_async)],
)
def test_functions_of_the_other_kind_wait_for_a_worker_that_runs_them(
    queue: Queue, executor: Any, runs: Any, leaves: Any
) -> None:
    ours, other = queue.enqueue(runs, 1), queue.enqueue(leaves, 1)
    assert burst(queue, executor=executor) == 1
    assert ours.refresh().state is State.COMPLETED
    assert (other.refresh().state, other.attempt) == (State.DELAYED, 0)
    assert other.error is not None
    assert f"executor='{executor}' does not run; start a worker with" in other.error.message
    other.promote()
    assert burst(queue) == 1
    assert other.refresh().state is State.COMPLETED


def test_but_a_callback_may_be_of_either(queue: Queue) -> None:
    queue.enqueue(jobs.add_async, 1, on_success=surface.told)
    assert burst(queue, executor="async") == 1
    assert jobs.seen[-1][0] == "told"


def test_what_nobody_serves_in_all_that_time_has_failed(
    queue: Queue, raw: redis.Redis, tmp_path: Path
) -> None:
    job = queue.enqueue("os:mkdir", str(tmp_path / "made"), on_failure=surface.told)
    burst(queue)
    age(raw, queue, job.id, outcome.PATIENCE - 60)
    job.promote()
    burst(queue)
    assert job.refresh().state is State.DELAYED
    age(raw, queue, job.id, 61)
    job.promote()
    burst(queue)
    assert (job.refresh().state, job.attempt) == (State.FAILED, 1)
    assert job.error is not None
    assert "bide worker os" in job.error.message
    assert job.error.message.endswith("No worker that took this job in 10m has it.")
    assert jobs.seen[-1][:2] == ("told", job.id)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_that_is_an_error_of_the_attempt_and_the_next_waits_as_well(
    queue: Queue, raw: redis.Redis
) -> None:
    job = queue.enqueue(jobs.add, 1, retry=Retry(1, "fixed", base=3600))
    burst(queue, modules=OTHER)
    age(raw, queue, job.id, outcome.PATIENCE + 1)
    job.promote()
    burst(queue, modules=OTHER)
    assert (job.refresh().state, job.attempt) == (State.DELAYED, 1)
    assert job.due.timestamp() - job.attempts[-1].ended.timestamp() > 3000
    job.promote()
    burst(queue, modules=OTHER)
    assert (job.refresh().state, job.attempt) == (State.DELAYED, 1)
    job.promote()
    burst(queue)
    assert (job.refresh().state, job.attempt) == (State.COMPLETED, 2)


def test_a_job_that_has_been_due_for_long_waits_from_its_first_claim_on(
    queue: Queue, raw: redis.Redis
) -> None:
    job = queue.enqueue(jobs.add, 1)
    (due,) = (key for key in queue.keys.names["due"] if raw.exists(key))
    raw.zincrby(due, -7200e6, job.id)
    burst(queue, modules=OTHER)
    assert job.refresh().state is State.DELAYED


@pytest.mark.slow
def test_it_is_looked_at_again_after_as_long_as_it_has_waited(
    queue: Queue, raw: redis.Redis
) -> None:
    job = queue.enqueue(jobs.add, 1)
    since, delays = time.monotonic(), []
    for aged in (0, 20, 400):
        age(raw, queue, job.id, aged)
        job.promote()
        burst(queue, modules=OTHER)
        job.refresh()
        delays.append(job.due.timestamp() - raw.time()[0])
    more = time.monotonic() - since + 5  # it has waited for so long besides
    assert delays == [pytest.approx(after, abs=more) for after in (1, 20, 60)]


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "many"), [(100, 50_000), (1, 5_000)])
def test_many_that_wait_cost_an_idle_worker_few_calls(
    queue: Queue, raw: redis.Redis, slots: int, many: int
) -> None:
    """Each is looked at again and again, in full claims."""
    for _ in range(many // 500):
        queue.enqueue_many([queue.prepare("os:system", ("true",)) for _ in range(500)])

    def calls() -> tuple[float, int]:
        """The server's time, and how many scripts it has run."""
        seconds, micros = raw.time()
        stats: Any = raw.info("commandstats")
        return seconds + micros / 1e6, stats["cmdstat_evalsha"]["calls"]

    with at_work(queue, concurrency=slots):
        eventually(lambda: queue.counts().delayed == many)  # each has been looked at once
        since, before = calls()
        eventually(lambda: calls()[0] - since > 5)
        until, after = calls()
    print(f"{(after - before) / (until - since):.1f} calls a second, with {many:,} that wait")
    assert after - before > 6, "it looks at some"
    assert (after - before) / (until - since) <= 20


# -- arguments that the worker's version of the task does not take


def newer(queue: Queue, *args: Any, task: str = f"{MODULE}:add", **kwargs: Any) -> Job[Any]:
    """A job of a producer whose version of a task has more arguments."""
    return queue.enqueue_call(task, args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ([1, 2, 3], {}, "takes 2 arguments by position, but 3 were given"),
        ([1], {"tone": "kind"}, "takes no argument 'tone' (it takes: b)"),
    ],
)
@pytest.mark.parametrize("kind", ["", "_async"])
def test_a_job_with_a_new_argument_waits_for_a_newer_worker(
    queue: Queue, raw: redis.Redis, args: Any, kwargs: Any, why: str, kind: str
) -> None:
    job = newer(queue, *args, task=f"{MODULE}:add{kind}", **kwargs)
    for _ in range(2):
        assert burst(queue) == 0
        job.refresh().promote()
    (attempt,) = job.refresh().attempts
    assert (job.state, job.attempt) == (State.WAITING, 0)
    assert attempt.error is not None
    assert attempt.error.type == "bide.PayloadError"
    assert why in attempt.error.message
    assert "It waits for a worker that takes it until 2" in attempt.error.message
    assert jobs.seen == []
    kept = raw.hget(queue.keys["jobs"], job.id)
    assert isinstance(kept, bytes)
    as_it_will_be = b'"args":[1],"kwargs":{"b":3}'
    task, _, _ = kept.partition(b',"args"')
    raw.hset(queue.keys["jobs"], job.id, task + b"," + as_it_will_be + b"}")
    assert burst(queue) == 1
    assert (job.refresh().state, job.attempt) == (State.COMPLETED, 1)


def test_what_no_worker_takes_in_all_that_time_has_failed_with_the_same_error(
    queue: Queue, raw: redis.Redis
) -> None:
    job = newer(queue, 1, tone="kind")
    burst(queue)
    age(raw, queue, job.id, outcome.PATIENCE + 1)
    job.promote()
    burst(queue)
    assert (job.refresh().state, job.attempt) == (State.FAILED, 1)
    assert job.error is not None
    assert job.error.type == "bide.PayloadError"
    assert job.error.message.endswith("keep it (with a default) until such jobs are done.")


def test_a_job_that_lacks_an_argument_or_has_an_unfit_one_fails_at_once(queue: Queue) -> None:
    """Such a job is older than the worker, or wrong: no newer worker would take it."""
    made = [newer(queue, "one"), newer(queue), newer(queue, 1, a=1)]
    burst(queue)
    assert [job.refresh().state for job in made] == [State.FAILED] * 3


def test_the_worker_says_which_task_got_other_arguments(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    jobs_of_newer = [newer(queue, n, tone="kind") for n in range(3)]
    fits = newer(queue, 1)
    with at_work(queue):
        eventually(lambda: unknown_tasks(queue) == [f"{MODULE}:add (other arguments)"])
        eventually(lambda: fits.refresh().state == State.COMPLETED)
        (reason,) = [
            reason.text
            for reason in jobs_of_newer[0].refresh().why()
            if reason.kind == "not_served"
        ]
    assert "by a worker whose tests.support.jobs:add does not take its arguments" in reason
    assert caplog.text.count("takes no argument 'tone'") == 1


def test_many_of_one_task_are_logged_once(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    many = [queue.enqueue("os:system", "true") for _ in range(30)]
    burst(queue)
    assert caplog.text.count("'os:system' is not served here") == 1
    assert all(job.refresh().state is State.DELAYED for job in many)


def test_the_worker_says_what_it_is_asked_for_and_lacks(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    for i in range(12):
        queue.enqueue(f"os:f{i:02}" + "x" * 240)
    with at_work(queue):
        eventually(lambda: len(unknown_tasks(queue)) == 10)
        assert all(name.startswith("os:f") for name in unknown_tasks(queue))


def test_a_worker_that_has_it_is_asked_for_nothing_else(queue: Queue) -> None:
    queue.enqueue(jobs.add, 1)
    one = worker(queue)
    one.run(burst=True)
    assert one._executor is not None
    assert one._executor.unknown_tasks.names() == []


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_a_worker_without_the_task_takes_nothing_from_one_that_has_it(
    queue: Queue, executor: Any
) -> None:
    """It is idle, and looks at what waits as soon as it is due; the other runs one at a time."""
    many = 60
    with (
        at_work(queue, modules=OTHER, concurrency=100),
        at_work(queue, concurrency=2, executor=executor),
    ):
        queue.enqueue_many([queue.prepare(jobs.add, (n,)) for n in range(many)])
        eventually(lambda: queue.counts().completed == many)
    assert queue.counts().failed == 0
