"""Fixtures that several of these tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bide import Queue
from tests.integration import jobs
from tests.integration.console import TASKS


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
