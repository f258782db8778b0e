"""When a worker is ill, when it is not ready, and whom systemd is told of."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from bide.worker.metrics import MOST_TASKS, WorkerMetrics
from bide.worker.processes.pool import OPENING
from bide.worker.supervisor import (
    LIVE,
    READY,
    STUCK,
    Notifier,
    Supervisor,
    WorkerConfig,
    WorkerGone,
    WorkerProcess,
    WorkerStatus,
)
from tests.support.eventually import PATIENCE


@pytest.fixture
def worker_process() -> WorkerProcess:
    worker_process = WorkerProcess(0, WorkerConfig({}, False, (None, None)))
    worker_process.pid, worker_process.started = 42, 1000.0
    return worker_process


def test_a_worker_whose_loop_does_not_turn_is_ill(worker_process: WorkerProcess) -> None:
    assert not worker_process.ill(5000), "it may import for as long as it needs"
    worker_process.status = WorkerStatus(turned=1020.0, polled=1020.0)
    assert not worker_process.ill(1020 + LIVE)
    assert worker_process.ill(1021 + LIVE) == "worker 42 has not responded for 31 s"
    assert worker_process.silent(1021 + LIVE) == 31


def test_one_that_opens_its_resources_has_as_long_as_a_child_process(
    worker_process: WorkerProcess,
) -> None:
    worker_process.status = WorkerStatus(1020.0, polled=0.0, is_opening=True)
    for limit in (LIVE, STUCK):
        assert not worker_process.hangs(1020 + OPENING, limit)
        told = "worker 42 took more than 300 s to open its resources"
        assert worker_process.hangs(1021 + OPENING, limit) == told
    assert worker_process.ill(1021 + OPENING)
    worker_process.pid = 0
    assert not worker_process.ill(1021 + OPENING)


def test_one_that_is_being_started_again_is_not_ill_and_not_ready(
    worker_process: WorkerProcess,
) -> None:
    worker_process.pid = 0
    assert not worker_process.ill(5000)
    assert worker_process.unready(5000) == "worker 1 has not started"
    worker_process.done = True
    assert not worker_process.unready(5000)


def test_one_that_the_server_does_not_answer_is_not_ready(worker_process: WorkerProcess) -> None:
    assert worker_process.unready(1001) == "worker 1 has not started"
    worker_process.status = WorkerStatus(turned=1010.0, polled=0.0)
    assert worker_process.unready(1011) == "worker 1 has not started"
    worker_process.status = WorkerStatus(turned=1100.0, polled=1010.0)
    assert not worker_process.unready(1010 + READY)
    assert worker_process.unready(1041) == "the server has not answered worker 42 for 31 s"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as workers are."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def supervised(child: subprocess.Popen[bytes], turned: float) -> tuple[Supervisor, WorkerProcess]:
    """A supervisor that has run until now, and its worker, which last reported at `turned`."""
    supervisor = Supervisor([WorkerConfig({}, False, (None, None))], 1.0)
    (worker_process,) = supervisor._worker_processes
    worker_process.pid = child.pid
    worker_process.status = WorkerStatus(turned, polled=turned)
    supervisor._ran = turned
    return supervisor, worker_process


def look(supervisor: Supervisor, start: float, seconds: float) -> float:
    """Have it look once a second, for so long; when it last did."""
    for second in range(int(seconds) + 1):
        supervisor._check(start + second)
    return start + int(seconds)


def test_a_stuck_worker_is_killed(child: subprocess.Popen[bytes]) -> None:
    supervisor, _ = supervised(child, 1000.0)
    now = look(supervisor, 1000.0, STUCK)
    assert child.poll() is None
    supervisor._check(now + 1)
    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_one_that_opens_its_resources_is_killed_later(child: subprocess.Popen[bytes]) -> None:
    supervisor, worker_process = supervised(child, 1000.0)
    worker_process.status = WorkerStatus(1000.0, polled=0.0, is_opening=True)
    now = look(supervisor, 1000.0, OPENING)
    assert child.poll() is None
    supervisor._check(now + 1)
    assert child.wait(PATIENCE) == -signal.SIGKILL


def test_workers_that_were_frozen_with_their_supervisor_are_not_stuck(
    child: subprocess.Popen[bytes],
) -> None:
    """Its timer may fire before they can report."""
    supervisor, worker_process = supervised(child, 1000.0)
    now = look(supervisor, 1000.0 + 10 * STUCK, STUCK)
    assert child.poll() is None
    assert worker_process.silent(now) == STUCK
    supervisor._check(now + 1)
    assert child.wait(PATIENCE) == -signal.SIGKILL, "it has not reported since"


def test_a_probe_that_comes_first_after_a_freeze_finds_nothing_wrong(
    child: subprocess.Popen[bytes],
) -> None:
    before = time.monotonic() - LIVE - 1
    supervisor, _ = supervised(child, before)
    assert supervisor._what_is_ill() == ""
    supervisor, _ = supervised(child, before)
    supervisor._ran = time.monotonic()
    assert "has not responded" in supervisor._what_is_ill()


def test_tasks_keep_their_names_in_the_metrics_when_a_worker_ends() -> None:
    def report(prefix: str) -> WorkerStatus:
        metrics = WorkerMetrics()
        for number in range(MOST_TASKS):
            metrics.of(f"{prefix}{number}").settled["hold"] = 1
        return WorkerStatus(1.0, 1.0, {"mail": metrics})

    def settled() -> list[str]:
        text = asyncio.run(supervisor._metrics())
        return [line for line in text.splitlines() if 'outcome="hold"' in line]

    supervisor = Supervisor([WorkerConfig({}, True, (None, None))] * 2, 1.0)
    first, second = supervisor._worker_processes
    first.started, first.status, second.status = 1.0, report("a"), report("b")
    before = settled()
    assert sum(int(line.split()[-1]) for line in before) == 2 * MOST_TASKS
    second.gone = WorkerGone("ended")
    supervisor._ended(second, 0)
    assert settled() == before


def test_the_manager_is_forgotten_so_that_children_do_not_answer_it() -> None:
    environment = {
        "NOTIFY_SOCKET": "@bide",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    notifier = Notifier(environment)
    assert notifier.every == 1.5
    assert environment == {"HOME": "/"}
    notifier.say("READY=1")  # nobody listens there: no error


def test_a_manager_that_reads_nothing_holds_up_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
            full.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    full.sendto(b"STATUS=", path)
        saying = Thread(target=Notifier({"NOTIFY_SOCKET": path}).say, args=("x",), daemon=True)
        saying.start()
        saying.join(60)
        assert not saying.is_alive()


def test_a_watchdog_of_another_process_is_none_of_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).every is None
    assert Notifier({"WATCHDOG_USEC": "soon"}).every is None
