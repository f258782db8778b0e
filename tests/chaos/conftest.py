"""Fixtures of the fault tests: both executors, a pool of workers.

Many of these tests have the form "for every n, lose the n-th reply": `each_loss` counts until the
operation completes without there having been an n-th.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from anyio.from_thread import start_blocking_portal

from bide.client import aio, blocking
from bide.embedded import Server
from bide.protocol.commands import Command
from tests.support.worker_pool import WorkerPool

T = TypeVar("T")


class Executor(Protocol):
    """A client of either kind, called from a test."""

    def run(self, command: Command[T]) -> T: ...
    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]: ...
    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]: ...


Connect = Callable[..., Executor]
"""From a URL (and a client's other options) to a client that is closed with the test."""


class Awaited:
    """The asyncio executor, driven from a test that blocks."""

    def __init__(self, portal: Any, *args: Any, **options: Any) -> None:
        self._portal = portal
        self._client: aio.AsyncClient = portal.call(lambda: aio.AsyncClient(*args, **options))

    def run(self, command: Command[T]) -> T:
        result: T = self._portal.call(self._client.run, command)
        return result

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        results: list[Any] = self._portal.call(self._client.run_many, commands)
        return results

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        results: list[Any] = self._portal.call(self._client.attempt_many, commands)
        return results

    def close(self) -> None:
        self._portal.call(self._client.close)


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    clients: list[blocking.Client | Awaited] = []
    with start_blocking_portal("asyncio") as portal:

        def start(url: str, **options: Any) -> Executor:
            if request.param == "sync":
                clients.append(blocking.Client(url, **options))
            else:
                clients.append(Awaited(portal, url, **options))
            return clients[-1]

        try:
            yield start
        finally:
            for client in clients:
                client.close()


@pytest.fixture
def worker_pool(tmp_path: Path, one_server: Server) -> Iterator[WorkerPool]:
    """Workers; they wait for the server, and for this process, in which proxies run."""
    with WorkerPool(tmp_path) as worker_pool:
        worker_pool.beside.append(lambda: [one_server.pid, os.getpid()])
        yield worker_pool
