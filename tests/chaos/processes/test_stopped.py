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
from tests.support.server_state import end_leases
from tests.support.stand import PROCESS, ROOT, Stand, program
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


def test_a_stopped_child_loses_its_lease_and_its_outcome_is_refused(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bide"), stand.at_work(lease=60, concurrency=1) as worker:
        job = stand.queue.enqueue(tasks.held, "gate")
        (stopped,) = stand.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: any(slot.stopped_at for slot in pool_of(worker).slots))
        end_leases(stand.queue._client._redis, stand.queue.keys)
        with stand.at_work(lease=60, concurrency=1):
            stand.wait("begun", 2)
            stand.open("gate")
            assert job.wait(60) == "held"
        os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: "was refused" in caplog.text)
        assert stand.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert stand.queue.counts().completed == 2
    assert len(stand.notes("begun", job.id)) == 2


def test_a_stopped_child_costs_its_own_slot_and_no_other(stand: Stand) -> None:
    with stand.at_work(concurrency=2) as worker:
        stand.queue.enqueue(tasks.held, "gate")
        (stopped,) = stand.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: any(slot.stopped_at for slot in pool_of(worker).slots))
        for job in [stand.queue.enqueue(hostile.ran) for _ in range(5)]:
            assert job.wait(60) == "ran"
        os.kill(stopped.pid, signal.SIGCONT)
        stand.open("gate")


def test_one_that_stays_stopped_is_killed_when_its_lease_has_long_passed(stand: Stand) -> None:
    with stand.at_work(lease=0.4, concurrency=1):
        job = stand.queue.enqueue(tasks.held, "gate")
        (stopped,) = stand.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        stand.wait("begun", 2)
        stand.open("gate")
        assert job.wait(60) == "held"


@PROCESS
def test_a_job_that_holds_the_gil_keeps_its_lease(stand: Stand, witness: Witness) -> None:
    """For several leases, beside a worker that would take it."""
    with stand.at_work(lease=1, concurrency=1):
        job = stand.queue.enqueue(hostile.hold_the_gil_for, 3)
        stand.wait("begun")
        with stand.at_work(lease=1, concurrency=1):
            assert job.wait(60) == "held"
    again = len(stand.notes("begun")) - 1
    assert again <= len(witness.starved(1)), "unless the machine kept it from renewing"
    assert job.refresh().attempt == 1
    assert len(job.attempts) == again


def test_idle_children_that_are_stopped_are_given_no_jobs(stand: Stand) -> None:
    with stand.at_work(concurrency=1) as worker:
        (pid,) = children(worker)
        os.kill(pid, signal.SIGSTOP)
        job = stand.queue.enqueue(hostile.ran)
        with stand.at_work(concurrency=1):
            assert job.wait(60) == "ran"
        os.kill(pid, signal.SIGCONT)
        assert stand.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert job.refresh().attempts == ()


def test_a_stopped_fork_server(stand: Stand) -> None:
    """Its children go on; those that it cannot replace are missed, and their jobs go to others."""
    with stand.at_work(concurrency=1) as worker:
        children(worker)
        fork_server = pool_of(worker)._fork_server.pid
        os.kill(fork_server, signal.SIGSTOP)
        assert stand.queue.enqueue(hostile.ran).wait(60) == "ran"
        dies = stand.queue.enqueue_call(hostile.leave, args=(3,), on_crash="fail")
        if stand.executor == "process":
            stand.wait("begun", id=dies.id)
        jobs = [stand.queue.enqueue(hostile.ran) for _ in range(5)]
        with stand.at_work(concurrency=1):
            assert [job.wait(60) for job in jobs] == ["ran"] * 5
        os.kill(fork_server, signal.SIGCONT)
        eventually(lambda: dies.refresh().finished)
        assert stand.queue.enqueue(hostile.ran).wait(60) == "ran"
    assert all(len(stand.notes("ran", job.id)) == 1 for job in jobs)


@PROCESS
def test_a_stopped_worker(stand: Stand, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        stopped = subprocess.Popen(
            program(stand.queue.url, stand.executor),
            cwd=ROOT,
            stderr=sink,
            stdin=subprocess.DEVNULL,
        )
    try:
        job = stand.queue.enqueue(tasks.held, "gate")
        stand.wait("begun")
        os.kill(stopped.pid, signal.SIGSTOP)
        with stand.at_work():
            stand.wait("begun", 2)
            stand.open("gate")
            assert job.wait(60) == "held"
        os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: "was refused" in log.read_text())
        stopped.terminate()
        assert stopped.wait(60) == 0
    finally:
        stopped.kill()
        stopped.wait()
    assert stand.queue.counts().completed == 1
