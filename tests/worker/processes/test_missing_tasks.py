"""A job whose task the worker's children do not serve waits, as where the worker runs it itself."""

from __future__ import annotations

import pytest
import redis

from bide import State
from bide.worker import heartbeat, outcome
from tests.support import process_tasks as tasks
from tests.support.missing import age, unknown_tasks
from tests.support.process_bench import HOSTILE, ProcessBench
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


def test_a_job_without_retries_waits_for_the_worker_that_has_its_function(
    bench: ProcessBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    some = [bench.queue.enqueue(tasks.add, 1, i) for i in range(4)]
    with bench.at_work(modules=[HOSTILE]):
        eventually(lambda: unknown_tasks(bench.queue) == [some[0].task])
        eventually(lambda: all(job.refresh().state is State.DELAYED for job in some))
    assert caplog.text.count("is not served here") == 1
    assert [job.refresh().attempt for job in some] == [0] * 4
    for job in some:
        job.promote()
    assert bench.burst() == 4
    assert [(job.refresh().result, job.attempt) for job in some] == [(1 + i, 1) for i in range(4)]


def test_what_nobody_serves_in_all_that_time_has_failed(bench: ProcessBench) -> None:
    job = bench.queue.enqueue(f"{tasks.__name__}:nothing")
    with redis.Redis.from_url(bench.queue.url) as raw:
        bench.burst()
        assert job.refresh().state is State.DELAYED
        age(raw, bench.queue, job.id, outcome.PATIENCE + 1)
    job.promote()
    bench.burst()
    assert (job.refresh().state, job.attempt) == (State.FAILED, 1)
    assert job.error is not None
    assert job.error.type == "bide.TaskNotFound"
    assert job.error.message.endswith("in 10m has it.")


def test_a_job_with_a_new_argument_waits_for_a_newer_worker(bench: ProcessBench) -> None:
    job = bench.queue.enqueue_call(f"{tasks.__name__}:add", (1, 2, 3))
    bench.burst()
    assert (job.refresh().state, job.attempt) == (State.DELAYED, 0)
    assert job.error is not None
    assert job.error.type == "bide.PayloadError"
    assert "It waits for a worker that takes it until 2" in job.error.message
