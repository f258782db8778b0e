"""When a worker is ill, when it is not ready, and whom systemd is told of."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from bide.worker.supervisor import (
    LIVE,
    READY,
    Notifier,
    WorkerConfig,
    WorkerProcess,
    WorkerStatus,
)


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
