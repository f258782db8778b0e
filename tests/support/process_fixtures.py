"""Workers whose jobs run in processes: one that many tests share, and what the others start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide import Queue
from bide.embedded import Server
from bide.worker import lifespan
from tests.conftest import BINARIES
from tests.support import process_tasks as tasks
from tests.support.eventually import eventually
from tests.support.process_bench import ProcessBench, Shared, own_descriptors


@pytest.fixture(scope="package", params=["process", "fork"])
def executor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="package")
def shared_worker(
    executor: str, tmp_path_factory: pytest.TempPathFactory, one_server: Server
) -> Iterator[Shared]:
    """A worker at work on a server of its own, which no test empties."""
    with Server.start(binary=next(iter(BINARIES.values()))) as server:
        yield from _shared(server, executor, tmp_path_factory.mktemp("shared"))


def _shared(server: Server, executor: str, directory: Path) -> Iterator[Shared]:
    notes = directory / "notes"
    notes.touch()
    with Shared(Queue("work", url=server.url), notes, executor) as shared:
        yield shared


@pytest.fixture
def shared(shared_worker: Shared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    """The shared worker, for tests that need no other; none leaves a descriptor open in it."""
    monkeypatch.setenv(tasks.NOTES, str(shared_worker.path))
    yield shared_worker
    shared_worker.check_descriptors()


@pytest.fixture
def bench(
    executor: str, one_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessBench]:
    """A queue, and workers of the test's own."""
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv(tasks.NOTES, str(notes))
    monkeypatch.delenv("BIDE_FORK_SERVER", raising=False)
    lifespan.new_event_loop().close()  # uvloop has two descriptors for all of its loops
    gc.collect()  # what tests before have left, which would be closed in the middle of this one
    before = own_descriptors()
    with ProcessBench(Queue("work", url=one_url), notes, executor) as bench:
        yield bench
    eventually(
        lambda: is_like(before, own_descriptors()),
        told=lambda: f"left open: {before} became {own_descriptors()}",
    )


def is_like(before: dict[str, str], now: dict[str, str]) -> bool:
    """Whether the same is open.

    A shared worker, which is of this process too, looks at its children through files of /proc, at
    any moment: these may have come from before, or go; one that stays open is left open.
    """

    def lasting(open_: dict[str, str]) -> dict[str, str]:
        return {fd: what for fd, what in open_.items() if not what.startswith("/proc/")}

    return lasting(now) == lasting(before) and now.items() - before.items() == set()
