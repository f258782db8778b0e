"""Fixtures that several of these tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support import jobs
from tests.support.console import TASKS
from tests.support.delay_queues import open_pile
from tests.support.invariants import assert_legal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a module of tasks, to stand in."""
    (tmp_path / "shop.py").write_text(TASKS)
    return tmp_path


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing was seen yet, and the gate is closed until the test has ended."""
    jobs.seen.clear()
    jobs.gate.clear()
    yield
    jobs.gate.set()


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """The queue that the tests' workers serve, on each server."""
    queue = Queue("work", url=url)
    yield queue
    queue.close()


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """The client library itself, on each server: to see what stands there, or to spoil it."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def pile(portal: Any, kind: str, url: str, raw: redis.Redis) -> Iterator[Any]:
    """A delay queue of either kind, on each server, which leaves nothing odd behind."""
    with open_pile(portal, kind, url) as pile:
        yield pile
    assert_legal(raw, "orders")
    assert raw.hlen(keys_of("orders")["claims"]) == 0, "close takes leave of the server"
