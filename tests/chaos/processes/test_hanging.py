"""Children that hang in what they do before and after their jobs."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from bide import State
from bide.errors import BideError
from bide.worker.processes import pool
from tests.chaos.processes import hostile
from tests.chaos.processes.test_killed import pool_of
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ProcessBench
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CLOSING", 0.5)


def test_jobs_do_not_wait_for_ever_behind_a_child_that_closes(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.BROKEN, "closes for ever")
    options = {"max_jobs": 1} if bench.executor == "process" else {}
    with bench.at_work(concurrency=1, **options):
        jobs = [bench.queue.enqueue(hostile.ran) for _ in range(3)]
        assert [job.wait(60) for job in jobs] == ["ran"] * 3
    assert all((job.refresh().attempt, job.attempts) == (1, ()) for job in jobs)


def test_one_that_closes_is_not_counted_on(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.BROKEN, "closes for ever")
    monkeypatch.setattr(pool, "CLOSING", 60)
    options = {"max_jobs": 1} if bench.executor == "process" else {}
    with bench.at_work(concurrency=1, **options) as worker:
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
        bench.wait("close")
        (slot,) = pool_of(worker).slots
        eventually(lambda: not slot.takes_jobs and slot.pid)
        later = bench.queue.enqueue(hostile.ran)
        monkeypatch.delenv(tasks.BROKEN)
        with bench.at_work(concurrency=1):
            assert later.wait(60) == "ran"
        os.kill(slot.pid, signal.SIGKILL)  # the worker would wait for it
    assert (later.refresh().attempt, later.attempts) == (1, ())


def test_a_crash_that_nobody_could_judge_yet_counts_when_the_worker_stops(
    bench: ProcessBench,
) -> None:
    with bench.at_work(concurrency=1) as worker:
        job = bench.queue.enqueue(tasks.held, "never")
        (begun,) = bench.wait("begun")
        bench.open("no pool")  # whoever is to say what becomes of it does not begin
        os.kill(begun.pid, signal.SIGKILL)
        held: Any = worker._executor
        eventually(lambda: any(run.death for run in held.held_jobs()))
        for _ in range(2):
            worker.stop()
    assert job.refresh().state is State.WAITING
    (crash,) = job.attempts
    assert crash.crashed
    assert crash.error is not None
    assert "SIGKILL" in crash.error.message


@PROCESS
def test_one_that_never_ends_opening_is_killed_and_the_worker_cannot_begin(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.BROKEN, "opens for ever")
    monkeypatch.setattr(pool, "OPENING", 0.5)
    with pytest.raises(BideError, match="was killed by SIGKILL"):
        bench.burst()
