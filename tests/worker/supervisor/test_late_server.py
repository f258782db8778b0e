"""Workers of a supervisor that starts while the server is down."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from bide.embedded import Server
from tests.support.workers import eventually
from tests.worker.supervisor.test_health import ask
from tests.worker.supervisor.unit import started

pytestmark = pytest.mark.slow

WAITS = "Trying again until it works"


@pytest.fixture
def late(tmp_server: Callable[..., Server]) -> Server:
    """A server that is down."""
    server = tmp_server(persist=True)
    server.kill()
    return server


@pytest.fixture
def locked(one_url: str, direct: redis.Redis) -> Iterator[str]:
    """A server whose password the URL does not have."""
    direct.config_set("requirepass", "secret")
    yield one_url
    direct.config_set("requirepass", "")


def test_they_serve_when_the_server_is_there(tmp_path: Path, late: Server) -> None:
    """Until then the unit lives, and is not ready: the others start when the first has begun."""
    with started(tmp_path, late.url, "-w", "2", "--health-port", "127.0.0.1:0") as unit:
        unit.logged(WAITS)
        assert ask(unit, "/livez") == (200, "ok")
        assert ask(unit, "/readyz") == (503, "worker 1 has not started")
        assert len(unit.worker_pids()) == 1
        late.restart()
        unit.logged("serves", 2)
        eventually(lambda: ask(unit, "/readyz") == (200, "ok"), 30)
        assert "died" not in unit.log
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_a_signal_ends_it_at_once(tmp_path: Path, late: Server) -> None:
    with started(tmp_path, late.url, "-w", "2") as unit:
        unit.logged(WAITS)
        unit.signal(signal.SIGINT)
        assert unit.wait() == 0
        assert "stopped before it had started" in unit.log


def test_a_burst_ends_with_one_error(tmp_path: Path, late: Server) -> None:
    with started(tmp_path, late.url, "-w", "2", "--burst") as unit:
        assert unit.wait() == 1
        assert unit.log.count("Error: Cannot reach the server") == 1
        assert "died" not in unit.log


def test_so_does_one_with_a_wrong_password(tmp_path: Path, locked: str) -> None:
    with started(tmp_path, locked, "-w", "2") as unit:
        assert unit.wait() == 1
        assert unit.log.count("Error: ") == 1
        assert "refuses access" in unit.log
        assert "died" not in unit.log
