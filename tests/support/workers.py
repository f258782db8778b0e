"""Workers that run in threads of the test, and what the tests wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis

from bide import Queue, Worker
from tests.support import jobs
from tests.support.eventually import PATIENCE, eventually

__all__ = [
    "MODULES",
    "Later",
    "at_work",
    "burst",
    "claims",
    "eventually",
    "listeners",
    "worker",
]

MODULES = ("tests.support.jobs", "tests.support.surface")


def worker(*queues: Queue, **options: Any) -> Worker:
    """A worker that serves the tests' tasks."""
    options.setdefault("modules", MODULES)
    return Worker(queues, **options)


def burst(*queues: Queue, **options: Any) -> int:
    """Run what is due; how many jobs that were."""
    return worker(*queues, **options).run(burst=True)


@contextmanager
def at_work(*queues: Queue, **options: Any) -> Iterator[Worker]:
    """A worker at work, which is stopped warmly at the end; it hears whom it is to cancel."""
    one = worker(*queues, **options)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        for queue in queues:
            eventually(partial(listeners, queue, "asked"))
        yield one
    finally:
        jobs.gate.set()
        one.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def listeners(queue: Queue, channel: str) -> int:
    """How many listen on a channel of a queue."""
    ((_, count),) = queue._client._redis.pubsub_numsub(queue.keys[channel])
    return int(count)


class Later:
    """Something that goes on in a thread, and its result."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._result.append(do())
            except BaseException as error:
                self._error.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self, within: float = PATIENCE) -> Any:
        """What it returned; raises what it raised."""
        self._thread.join(within)
        assert self.ended, f"it still goes on after {within} s"
        if self._error:
            raise self._error[0]
        return self._result[0]


def claims(direct: redis.Redis, queue: Queue) -> int:
    """How many claims the workers that are there have made of a queue."""
    told: Any = direct.hvals(queue.keys["claims"])
    return sum(int(claim.split()[1]) for claim in told)
