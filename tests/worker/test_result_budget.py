"""A result that was dropped, as users meet it: in the job, in a wait, in the log."""

from __future__ import annotations

import pytest

from bide import Queue, ResultDropped, Retention
from tests.support import jobs
from tests.support.workers import burst


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_dropped_result_is_said_and_the_job_has_completed(
    queue: Queue, caplog: pytest.LogCaptureFixture, executor: str
) -> None:
    queue.configure(retention=Retention(results="150KB"))
    first, second = (queue.enqueue(jobs.echo, "x" * 100_000) for _ in range(2))
    assert burst(queue, executor=executor, concurrency=1) == 2
    assert second.refresh().result == "x" * 100_000
    assert first.refresh().state == "completed"
    with pytest.raises(ResultDropped, match=r"\(100,002 bytes\)"):
        print(first.result)
    with pytest.raises(ResultDropped):
        first.wait(1)
    assert caplog.text.count("the server drops the oldest results") == 1


def test_a_job_that_runs_again_has_its_new_result(queue: Queue) -> None:
    queue.configure(retention=Retention(results="50KB"))
    job = queue.enqueue(jobs.echo, "x" * 100_000)
    burst(queue)
    queue.configure(retention=Retention(results="1MB"))
    job.retry()
    burst(queue)
    assert job.refresh().result == "x" * 100_000
