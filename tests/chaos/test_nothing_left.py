"""A worker that has stopped leaves nothing behind: no thread, no file descriptor, no process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bide import Queue, Worker
from bide.embedded import Server
from tests.support import ledger_jobs as jobs
from tests.support.eventually import PATIENCE, eventually
from tests.support.ledger import Ledger
from tests.support.processes import children
from tests.support.proxy import Proxy
from tests.support.worker_pool import JOBS


class Left:
    """What there is now beyond what there was; descriptors only where the system lists them."""

    def __init__(self) -> None:
        self._descriptors, self._threads = self._now()

    def _now(self) -> tuple[set[str], set[threading.Thread]]:
        listing = Path("/proc/self/fd")
        descriptors = {self._target(fd) for fd in listing.iterdir()} if listing.exists() else set()
        return descriptors, set(threading.enumerate())

    def _target(self, fd: Path) -> str:
        try:
            return f"{fd.name} {fd.readlink()}"
        except FileNotFoundError:  # the one that lists them
            return ""

    def nothing(self) -> bool:
        descriptors, threads = self._now()
        more = {d for d in descriptors - self._descriptors if d and "/proc/" not in d}
        rest = more, threads - self._threads
        print(f"left: {rest}")
        return not any(rest)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(jobs.LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv(jobs.GATES, str(tmp_path))
    return Ledger(tmp_path / "ledger")


@pytest.fixture(autouse=True)
def used_before(one_url: str) -> None:
    """What an event loop makes once and keeps as long as the process lives is nobody's leak."""
    work(one_url, burst=True)[1].join(PATIENCE)


def enqueue(url: str) -> None:
    queue = Queue("mail", url=url)
    for _ in range(20):
        queue.enqueue(f"{JOBS}:quick")
        queue.enqueue(f"{JOBS}:held_in_thread", "gate")
    queue.close()


def work(url: str, burst: bool = False) -> tuple[Worker, threading.Thread]:
    worker = Worker(["mail"], url=url, modules=[JOBS], grace=0.5)
    thread = threading.Thread(target=worker.run, args=(burst,), name="work")
    thread.start()
    return worker, thread


@pytest.mark.slow
def test_after_a_burst(one_url: str, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    enqueue(one_url)
    left = Left()
    work(one_url, burst=True)[1].join(PATIENCE)
    assert ledger.count("done").total() == 40
    eventually(left.nothing)


def test_after_a_stop_with_all_kinds_of_jobs_running(
    one_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    """Threads cannot be stopped: those that still run end with their jobs."""
    enqueue(one_url)
    left = Left()
    worker, thread = work(one_url)
    ledger.wait("begun", 40)
    worker.stop()
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    (tmp_path / "gate").touch()
    eventually(left.nothing)


@pytest.mark.slow
def test_after_lost_connections(one_url: str, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    with Proxy(one_url) as proxy:
        left = Left()
        worker, thread = work(proxy.url)
        enqueue(one_url)
        ledger_lines = 40
        ledger.wait(
            "done", ledger_lines
        )  # a worker that has never reached its server does not wait
        for _ in range(5):
            enqueue(one_url)
            ledger_lines += 40
            proxy.cut()
            ledger.wait("done", ledger_lines)
        worker.stop()
        thread.join(PATIENCE)
        proxy.cut()
        eventually(left.nothing)


@pytest.mark.slow
def test_after_the_server_has_gone(
    tmp_server: Callable[..., Server], ledger: Ledger, tmp_path: Path
) -> None:
    server = tmp_server()
    enqueue(server.url)
    left = Left()
    worker, thread = work(server.url)
    ledger.wait("begun", 40)
    server.kill()
    worker.stop()
    (tmp_path / "gate").touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    eventually(left.nothing)


@pytest.mark.slow
def test_a_worker_starts_no_other_process(one_url: str, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    enqueue(one_url)
    before = set(children(os.getpid()))
    work(one_url, burst=True)[1].join(PATIENCE)
    assert set(children(os.getpid())) <= before
