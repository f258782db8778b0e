"""Workers as programs: killed, stopped by signals; they leave no process, and no job is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bide import State
from bide.worker.processes import linux
from tests.chaos.processes import hostile
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ROOT, ProcessBench, program
from tests.support.workers import eventually

pytestmark = pytest.mark.slow

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(bench: ProcessBench, tmp_path: Path) -> Iterator[Start]:
    """Starts workers, whose output goes nowhere; they are ended with the test."""
    with ExitStack() as stack:

        def begin() -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / "log").open("ab"))
            worker = subprocess.Popen(
                program(bench.queue.url, bench.executor),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            return worker

        yield begin


def family(worker: subprocess.Popen[bytes]) -> list[int]:
    """What a worker has started, directly or not."""
    mark = f"{linux.MARK}={worker.pid}-".encode()
    found = []
    for pid in linux._all():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def test_a_killed_worker_leaves_no_process_and_its_jobs_come_back(
    bench: ProcessBench, start: Start
) -> None:
    worker = start()
    bench.queue.enqueue(hostile.leave_processes).wait(60)
    bench.queue.enqueue(hostile.daemonize, "").wait(60)
    jobs = [bench.queue.enqueue(task, "gate") for task in (tasks.held, tasks.held_async)]
    bench.wait("begun", 3)
    assert len(family(worker)) >= 3
    worker.kill()
    worker.wait()
    eventually(lambda: not family(worker))
    with bench.at_work():
        bench.wait("begun", 5)
        bench.open("gate")
        assert [job.wait(60) for job in jobs] == ["held"] * 2
    for job in jobs:
        assert [attempt.crashed for attempt in job.refresh().attempts] == [True]
        assert len(bench.notes("begun", job.id)) == 2


@PROCESS
def test_a_worker_that_is_killed_while_its_fork_server_stands_still(
    bench: ProcessBench, start: Start
) -> None:
    worker = start()
    bench.queue.enqueue(tasks.held, "never")
    (begun,) = bench.wait("begun")
    fork_server = _parent(begun.pid)
    os.kill(fork_server, signal.SIGSTOP)
    eventually(lambda: linux.is_idle(fork_server))
    worker.kill()
    worker.wait()
    eventually(lambda: not family(worker))


def _parent(pid: int) -> int:
    stat = linux._stat(pid)
    assert stat is not None
    return stat[1]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_that_is_told_to_stop(
    bench: ProcessBench, start: Start, signals: int, tmp_path: Path
) -> None:
    worker = start()
    jobs = [bench.queue.enqueue(tasks.held, "gate") for _ in range(2)]
    bench.wait("begun", 2)
    pids = family(worker)
    for _ in range(signals):
        worker.send_signal(signal.SIGTERM)
        # Two that are sent before the first has been heard are one.
        eventually(lambda: "jobs may finish" in (tmp_path / "log").read_text())
    if signals == 1:
        bench.open("gate")
    assert worker.wait(60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    expected = State.COMPLETED if signals == 1 else State.WAITING
    assert [job.refresh().state for job in jobs] == [expected] * 2
    if signals == 2:
        assert [(job.attempt, job.attempts) for job in jobs] == [(0, ())] * 2


@PROCESS
def test_gigabytes_may_be_printed(bench: ProcessBench, start: Start) -> None:
    start()
    job = bench.queue.enqueue(hostile.print_much, 200)
    other = bench.queue.enqueue(hostile.ran)
    assert other.wait(60) == "ran"
    assert job.wait(60) == 200
