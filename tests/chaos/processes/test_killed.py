"""Children and fork servers that are killed from outside, each while busy and while idle."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from bide import Job, JobFailed, State
from bide.worker.processes import linux
from tests.chaos.processes import hostile
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ProcessBench
from tests.support.server_state import end_leases
from tests.support.workers import eventually


def pool_of(worker: Any) -> Any:
    return worker._executor._pool


def children(worker: Any) -> list[int]:
    """The children of a worker, once all are there and wait."""
    eventually(lambda: worker._executor is not None)
    slots = pool_of(worker).slots
    eventually(lambda: all(slot.is_free for slot in slots))
    return [slot.pid for slot in slots]


def is_gone(pid: object) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_a_busy_child(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        job, other = (bench.queue.enqueue(tasks.held, "gate") for _ in range(2))
        bench.wait("begun", 2)
        (begun,) = bench.notes("begun", job.id)
        os.kill(begun.pid, signal.SIGKILL)
        bench.wait("begun", 2, job.id)
        bench.open("gate")
        assert job.wait(60) == other.wait(60) == "held"
        assert all(pid != begun.pid for pid in children(worker))
    assert (job.refresh().attempt, len(job.attempts)) == (1, 1)
    assert job.attempts[0].crashed
    assert other.refresh().attempts == ()
    assert len(bench.notes("begun", other.id)) == 1


@pytest.mark.slow
def test_idle_children(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        for _ in range(3):
            for pid in children(worker):
                with suppress(ProcessLookupError):  # it has had its one job
                    os.kill(pid, signal.SIGKILL)
            jobs = [bench.queue.enqueue(hostile.ran) for _ in range(5)]
            assert [job.wait(60) for job in jobs] == ["ran"] * 5
    assert all(job.refresh().attempts == () for job in jobs)


@pytest.mark.slow
def test_a_fork_server_with_one_job(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        job = bench.queue.enqueue(tasks.held, "gate")
        bench.wait("begun")
        os.kill(pool_of(worker)._fork_server.pid, signal.SIGKILL)
        bench.wait("begun", 2)
        bench.open("gate")
        assert job.wait(60) == "held"
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
    (attempt,) = job.refresh().attempts
    assert attempt.error is not None
    assert "SIGKILL" in attempt.error.message


@pytest.mark.slow
@PROCESS
def test_a_fork_server_with_two_jobs_accuses_neither(bench: ProcessBench) -> None:
    with bench.at_work(lease=60) as worker:
        jobs = [bench.queue.enqueue(tasks.held, "gate") for _ in range(2)]
        bench.wait("begun", 2)
        os.kill(pool_of(worker)._fork_server.pid, signal.SIGKILL)
        eventually(lambda: len(worker._executor) == 0)  # type: ignore[arg-type]
        end_leases(bench.queue._client._redis, bench.queue.keys)
        bench.wait("begun", 4)
        bench.open("gate")
        assert [job.wait(60) for job in jobs] == ["held"] * 2
    for job in jobs:
        (attempt,) = job.refresh().attempts
        assert (attempt.crashed, attempt.error) == (True, None)
        assert len(bench.notes("begun", job.id)) == 2


@pytest.mark.slow
@PROCESS
def test_an_idle_fork_server(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        for _ in range(2):
            daemon = bench.queue.enqueue(hostile.daemonize, "").wait(60)
            children(worker)
            os.kill(pool_of(worker)._fork_server.pid, signal.SIGKILL)
            eventually(partial(is_gone, daemon))
            assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"


@pytest.mark.slow
@PROCESS
def test_a_job_that_kills_the_fork_server_each_time(bench: ProcessBench) -> None:
    with bench.at_work():
        job = bench.queue.enqueue(hostile.kill_parent)
        with pytest.raises(JobFailed):
            job.wait(60)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert len(bench.notes("begun", job.id)) == 3


def stop_unseen(worker: Any, pids: tuple[int, ...]) -> bool:
    """Stop these children in the worker's own thread, between two looks at them."""

    async def stop() -> bool:
        if worker._executor._checking:
            return False
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return True

    return asyncio.run_coroutine_threadsafe(stop(), worker._event_loop).result(60)


def taken_by_nobody(bench: ProcessBench, worker: Any) -> tuple[Job[Any], int, int]:
    """A job that the test itself took off the line, between two children that stand still."""
    one, two = children(worker)
    # Unseen by the worker, which claims nothing for children that it knows to stand still.
    eventually(partial(stop_unseen, worker, (one, two)))
    eventually(lambda: linux.is_idle(one) and linux.is_idle(two))
    # The worker must not return the job to the queue before this test takes it.
    worker._executor._release_waiting = lambda: None
    job = bench.queue.enqueue(hostile.ran)
    eventually(pool_of(worker).reclaim)
    del worker._executor._release_waiting
    return job, one, two


@pytest.mark.slow
@PROCESS
def test_a_child_that_took_a_job_and_could_not_say_so(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        job, one, two = taken_by_nobody(bench, worker)
        os.kill(one, signal.SIGKILL)
        os.kill(two, signal.SIGCONT)
        assert job.wait(60) == "ran"
    assert (job.refresh().attempt, job.attempts) == (1, ())
    assert len(bench.notes("ran")) == 1


@pytest.mark.slow
@PROCESS
def test_a_child_that_took_a_job_and_stands_still(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        job, one, two = taken_by_nobody(bench, worker)
        with bench.at_work():
            assert job.wait(60) == "ran"
        for pid in (one, two):
            os.kill(pid, signal.SIGCONT)
    assert (job.refresh().attempt, job.attempts) == (1, ())


@pytest.mark.slow
def test_what_waits_behind_a_long_job_goes_to_others_unharmed(
    bench: ProcessBench,
) -> None:
    with bench.at_work(concurrency=1) as worker:
        held: Any = worker._executor
        held._prefetch._mean = 1e-4  # all were quick so far: it takes many at once
        ids = [bench.queue.prepare(tasks.held, ["gate"])]
        ids += [bench.queue.prepare(tasks.who) for _ in range(20)]
        first, *others = bench.queue.enqueue_many(ids)
        bench.wait("begun")
        eventually(lambda: len(held) == 1)
        eventually(lambda: bench.queue.counts().active == 1)
        assert {job.refresh().state for job in others} == {State.WAITING}
        with bench.at_work(concurrency=1):
            seen = [job.wait(60) for job in others]
        bench.open("gate")
        assert first.wait(60) == "held"
    assert {who["attempt"] for who in seen} == {1}
    assert not any(who["redelivered"] for who in seen)
    assert all(job.refresh().attempts == () for job in others)


@pytest.mark.slow
def test_the_first_job_that_ends_says_how_long_jobs_take(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        held: Any = worker._executor
        children(worker)
        assert held.capacity == 2
        since = time.monotonic()
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
        assert 0 < held._prefetch._mean < time.monotonic() - since
