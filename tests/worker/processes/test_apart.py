"""What processes must not share, and what a job in one may do."""

from __future__ import annotations

import pytest

from bide import Queue
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ProcessBench, Shared


@pytest.mark.slow
def test_jobs_may_use_queues_whose_connections_were_made_before(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.URL, bench.queue.url)
    jobs = [bench.queue.enqueue(tasks.enqueue_children, 25) for _ in range(8)]
    assert bench.burst() == 8
    ids = [id for job in jobs for id in job.refresh().result or []]
    assert len(set(ids)) == 200
    children = Queue("children", url=bench.queue.url)
    assert children.counts().waiting == 200
    assert all(children.fetch(id).due for id in ids)
    children.close()


@pytest.mark.slow
def test_chance_differs_from_child_to_child(shared: Shared) -> None:
    jobs = [shared.queue.enqueue(tasks.chance) for _ in range(2)]
    shared.wait("chance", 2)
    shared.open("chance")
    seen = [job.wait(90) for job in jobs]
    assert all(len(set(column)) == 2 for column in zip(*seen, strict=True))


def test_jobs_may_have_threads_event_loops_and_processes(shared: Shared) -> None:
    for _ in range(2):
        job = shared.queue.enqueue(tasks.threads_and_loops)
        assert job.wait(90) == [0, 1, 2, 7, "hello"]


def test_a_job_that_forks_ends_once(shared: Shared) -> None:
    """Both copies come back from the function; only one of them is the job."""
    job = shared.queue.enqueue(tasks.fork_and_return)
    assert job.wait(90) == "returned"
    shared.wait("reaped", id=job.id)
    after = [shared.queue.enqueue(tasks.add, i) for i in range(10)]
    assert [other.wait(90) for other in after] == list(range(10))
    assert all(len(shared.notes("add", other.id)) == 1 for other in after)


@pytest.mark.slow
@PROCESS
@pytest.mark.parametrize("task", [tasks.keep_signals, tasks.block_signals])
def test_signals_that_one_job_keeps_from_us_end_the_next(bench: ProcessBench, task: object) -> None:
    bench.queue.enqueue(task)  # type: ignore[arg-type]
    late = bench.queue.enqueue(tasks.sleep, 3600, timeout=2)
    assert bench.burst(concurrency=1) == 2
    error = late.refresh().error
    assert error is not None
    assert error.type == "bide.JobTimeout"
    assert "time.sleep" in error.traceback, "by the exception, not by force"


def test_jobs_read_nobodys_input(shared: Shared) -> None:
    assert shared.queue.enqueue(tasks.read_input).wait(90) == ""


@pytest.mark.slow
@PROCESS
def test_the_url_of_a_server_is_on_no_command_line(bench: ProcessBench) -> None:
    """A password in it could be read by all users of the machine."""
    mark = "&" if "?" in bench.queue.url else "?"
    queue = Queue("work", url=f"{bench.queue.url}{mark}username=default&password=secret")
    with bench.at_work(queue):
        job = queue.enqueue(tasks.command_lines)
        assert "secret" not in job.wait(90)
    queue.close()
