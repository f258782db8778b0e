"""SIGSTOP of a child, of the fork server, of the worker: what they hold goes to others."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chaos.processes import hostile
from tests.chaos.processes.test_killed import children, pool_of
from tests.support import process_tasks as tasks
from tests.support.cpu_waits import Witness
from tests.support.process_bench import PROCESS, ROOT, ProcessBench, program
from tests.support.server_state import end_leases
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


def test_a_stopped_child_loses_its_lease_and_its_outcome_is_refused(
    bench: ProcessBench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bide"), bench.at_work(lease=60, concurrency=1) as worker:
        job = bench.queue.enqueue(tasks.held, "gate")
        (stopped,) = bench.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: any(slot.stopped_at for slot in pool_of(worker).slots))
        end_leases(bench.queue._client._redis, bench.queue.keys)
        with bench.at_work(lease=60, concurrency=1):
            bench.wait("begun", 2)
            bench.open("gate")
            assert job.wait(60) == "held"
        os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: "was refused" in caplog.text)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert bench.queue.counts().completed == 2
    assert len(bench.notes("begun", job.id)) == 2


def test_a_stopped_child_costs_its_own_slot_and_no_other(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=2) as worker:
        bench.queue.enqueue(tasks.held, "gate")
        (stopped,) = bench.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: any(slot.stopped_at for slot in pool_of(worker).slots))
        for job in [bench.queue.enqueue(hostile.ran) for _ in range(5)]:
            assert job.wait(60) == "ran"
        os.kill(stopped.pid, signal.SIGCONT)
        bench.open("gate")


def test_one_that_stays_stopped_is_killed_when_its_lease_has_long_passed(
    bench: ProcessBench,
) -> None:
    with bench.at_work(lease=0.4, concurrency=1):
        job = bench.queue.enqueue(tasks.held, "gate")
        (stopped,) = bench.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        bench.wait("begun", 2)
        bench.open("gate")
        assert job.wait(60) == "held"


@PROCESS
def test_a_job_that_holds_the_gil_keeps_its_lease(bench: ProcessBench, witness: Witness) -> None:
    """For several leases, beside a worker that would take it."""
    with bench.at_work(lease=1, concurrency=1):
        job = bench.queue.enqueue(hostile.hold_the_gil_for, 3)
        bench.wait("begun")
        with bench.at_work(lease=1, concurrency=1):
            assert job.wait(60) == "held"
    again = len(bench.notes("begun")) - 1
    assert again <= len(witness.starved(1)), "unless the machine kept it from renewing"
    assert job.refresh().attempt == 1
    assert len(job.attempts) == again


def test_idle_children_that_are_stopped_are_given_no_jobs(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1) as worker:
        (pid,) = children(worker)
        os.kill(pid, signal.SIGSTOP)
        job = bench.queue.enqueue(hostile.ran)
        with bench.at_work(concurrency=1):
            assert job.wait(60) == "ran"
        os.kill(pid, signal.SIGCONT)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert job.refresh().attempts == ()


def test_a_stopped_fork_server(bench: ProcessBench) -> None:
    """Its children go on; those that it cannot replace are missed, and their jobs go to others."""
    with bench.at_work(concurrency=1) as worker:
        children(worker)
        fork_server = pool_of(worker)._fork_server.pid
        os.kill(fork_server, signal.SIGSTOP)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
        dies = bench.queue.enqueue_call(hostile.leave, args=(3,), on_crash="fail")
        if bench.executor == "process":
            bench.wait("begun", id=dies.id)
        jobs = [bench.queue.enqueue(hostile.ran) for _ in range(5)]
        with bench.at_work(concurrency=1):
            assert [job.wait(60) for job in jobs] == ["ran"] * 5
        os.kill(fork_server, signal.SIGCONT)
        eventually(lambda: dies.refresh().finished)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert all(len(bench.notes("ran", job.id)) == 1 for job in jobs)


@PROCESS
def test_a_stopped_worker(bench: ProcessBench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        stopped = subprocess.Popen(
            program(bench.queue.url, bench.executor),
            cwd=ROOT,
            stderr=sink,
            stdin=subprocess.DEVNULL,
        )
    try:
        job = bench.queue.enqueue(tasks.held, "gate")
        bench.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        with bench.at_work():
            bench.wait("begun", 2)
            bench.open("gate")
            assert job.wait(60) == "held"
        os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: "was refused" in log.read_text())
        stopped.terminate()
        assert stopped.wait(60) == 0
    finally:
        stopped.kill()
        stopped.wait()
    assert bench.queue.counts().completed == 1
