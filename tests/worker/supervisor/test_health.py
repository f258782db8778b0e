"""How a supervisor says how it is: over HTTP, and to systemd."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bide import Queue
from tests.support.console import bide, error_of, said
from tests.support.workers import eventually
from tests.worker.supervisor.unit import Unit, started

pytestmark = pytest.mark.slow


def ask(unit: Unit, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer."""
    (port,) = unit.logged(r"on 127\.0\.0\.1:(\d+)")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=90)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()


def test_it_is_live_at_once_and_ready_when_workers_have_begun(tmp_path: Path, one_url: str) -> None:
    (tmp_path / "late.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('gate').exists(): time.sleep(0.01)\n"
    )
    with started(tmp_path, one_url, "late", "-w", "2", "--health-port", "127.0.0.1:0") as unit:
        assert ask(unit, "/livez") == (200, "ok")
        assert ask(unit, "/readyz") == (503, "worker 1 has not started")
        unit.open_gate()
        unit.logged("serves", 2)
        eventually(lambda: ask(unit, "/readyz") == (200, "ok"))
        assert ask(unit, "/livez?verbose=1") == (200, "ok")
        assert ask(unit, "/livez", "HEAD") == (200, "")
        assert ask(unit, "/") == (404, "there is /livez, /readyz, /metrics")
        assert ask(unit, "/livez", "POST") == (405, "GET or HEAD")
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_doctor_asks_the_workers_for_their_port_and_their_time_outs(
    tmp_path: Path, one_url: str
) -> None:
    (tmp_path / "orders.py").write_text(
        "from bide import Queue\nqueue = Queue('orders')\n"
        "@queue.task(timeout='10m')\ndef slow(): ...\n"
        "@queue.task(timeout='30s')\ndef quick(): ...\n"
    )
    with started(tmp_path, one_url, "orders", "-w", "2", "--health-port", "127.0.0.1:0") as unit:
        unit.logged("serves", 2)
        queue = Queue("orders", url=one_url)
        eventually(lambda: len(queue.workers()) == 2)
        report = json.loads(said(bide(tmp_path, "doctor", "--json", url=one_url)))
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
    points = {each["point"]: each for each in report["production"]}
    assert points["health port"]["state"] == "ok"
    assert points["workers"]["says"].startswith("one machine runs all workers of ")
    assert points["time-outs"]["says"].startswith("orders:slow may run for longer than --grace")


def test_it_is_not_ready_while_it_stops(tmp_path: Path, one_url: str) -> None:
    with started(tmp_path, one_url, "--health-port", "127.0.0.1:0") as unit:
        unit.logged("serves")
        queue = Queue("default", url=one_url)
        queue.enqueue("shop:slow", 60)
        unit.saw("slow")
        unit.signal(signal.SIGTERM)
        unit.logged("may finish")
        assert ask(unit, "/readyz") == (503, "it stops")
        unit.open_gate()
        assert unit.wait() == 0
        queue.close()


def test_a_port_that_is_taken_is_said(tmp_path: Path, one_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(tmp_path, one_url, "--health-port", f"127.0.0.1:{port}") as unit:
            assert unit.wait() == 1
    assert "The health port cannot be opened" in unit.log


@pytest.mark.parametrize("port", ["x", "70000", ":80", "-1", "1.2.3.4:"])
def test_a_port_that_cannot_be_meant(tmp_path: Path, port: str) -> None:
    done = bide(tmp_path, "worker", "shop", "--health-port", port)
    assert "is not a port; write it as 8080 or 127.0.0.1:8080" in error_of(done, 2)


class Systemd:
    """What a service manager hears."""

    def __init__(self, line: socket.socket, path: str) -> None:
        self.path = path
        self._line = line

    def hears(self, word: str) -> str:
        """Wait for a word; all that came with it."""
        while True:
            said = self._line.recv(4096).decode()
            if word in said.split("\n"):
                return said


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(path)
        line.settimeout(30)
        yield Systemd(line, path)


def test_systemd_hears_when_it_is_ready_that_it_lives_and_when_it_stops(
    tmp_path: Path, one_url: str, systemd: Systemd
) -> None:
    told = partial(started, NOTIFY_SOCKET=systemd.path, WATCHDOG_USEC="100000")
    with told(tmp_path, one_url, "-w", "2") as unit:
        assert "STATUS=2 workers" in systemd.hears("READY=1")
        assert unit.log.count("serves") == 2
        systemd.hears("WATCHDOG=1")
        unit.signal(signal.SIGTERM)
        systemd.hears("STOPPING=1")
        assert unit.wait() == 0
