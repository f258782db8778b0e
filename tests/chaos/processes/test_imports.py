"""What modules do when they are imported that children would suffer from."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.chaos.processes import hostile
from tests.chaos.processes.test_killed import children, is_gone, pool_of
from tests.support import process_tasks as tasks
from tests.support.process_bench import MODULE, PROCESS, ROOT, ProcessBench, program
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


@PROCESS
def test_threads_and_connections_are_warned_of(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        command = program(bench.queue.url, bench.executor, "burst")
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        return ran.stderr

    assert "an imported module" not in said()
    monkeypatch.setenv(tasks.BROKEN, "has threads and connections")
    warned = said()
    assert "has started threads, which do not exist in child processes: ticker;" in warned
    assert "has opened connections, which all children share: to 127.0.0.1:" in warned


@pytest.fixture
def _limited() -> Iterator[None]:
    socket.setdefaulttimeout(0.1)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("_limited")
def test_a_limit_for_all_sockets_is_none_for_children_that_wait(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.BROKEN, "limits sockets")
    with bench.at_work(concurrency=1) as worker:
        children(worker)
        (slot,) = pool_of(worker).slots
        pid, since = slot.pid, time.monotonic()
        eventually(lambda: slot.pid != pid or time.monotonic() - since > 0.5)
        assert slot.pid == pid
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"


def test_a_process_that_an_import_started_is_left_alone(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While what dead children have left is swept."""
    monkeypatch.setenv(tasks.BROKEN, "has a process")
    with bench.at_work():
        (has,) = bench.wait("has")
        dead = bench.queue.enqueue_call(hostile.daemon_and_die, on_crash="fail")
        (daemon,) = bench.wait("daemon", id=dead.id)
        eventually(lambda: is_gone(daemon.what[1]))
        assert not is_gone(has.what[1])
    assert is_gone(has.what[1])


@PROCESS
def test_a_worker_ends_as_programs_do(bench: ProcessBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tasks.BROKEN, "says when it ends")
    command = [
        sys.executable,
        "-m",
        "bide",
        "worker",
        MODULE,
        "-u",
        bench.queue.url,
        "-q",
        "work",
        "-x",
        bench.executor,
        "--burst",
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "threads still run" not in ran.stderr
    assert "it ends" in ran.stdout
