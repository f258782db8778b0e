"""Workers whose jobs run in processes, under hostile jobs; and little patience with these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bide.worker.executors import processes
from bide.worker.processes import pool
from tests.support.process_fixtures import (
    bench,
    executor,
    shared,
    shared_worker,
)

__all__ = ["bench", "executor", "shared", "shared_worker"]

GRACE = 0.3


def _with_grace(seconds: float) -> Iterator[None]:
    """Seconds between an exception in a job and the end of its process."""
    with pytest.MonkeyPatch.context() as patch:
        modules: Any = (processes, pool)
        for module in modules:
            patch.setattr(module, "GRACE", seconds)
        yield


@pytest.fixture(scope="package", autouse=True)
def _impatient() -> Iterator[None]:
    yield from _with_grace(GRACE)


@pytest.fixture
def patient() -> Iterator[None]:
    """However slow a job is to end, its process is not killed."""
    yield from _with_grace(3600)
