"""Producers that go on whatever happens to the servers, and keep what was acknowledged to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bide import AsyncQueue, Queue, ServerUnavailable
from tests.support.eventually import PATIENCE

JOB = "tests.support.ledger_jobs:quick"
PAUSE = 0.004
"""Seconds between two jobs of one producer."""


class Producers:
    """For each queue one that blocks and one that awaits, in threads of their own."""

    def __init__(self, url: str, *queues: str) -> None:
        self.acknowledged: set[str] = set()
        self.errors: list[BaseException] = []
        self.given_up: list[ServerUnavailable] = []
        """Calls that had no answer within the client's `retry_for`; the producer continues."""
        self._url = url
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(work, name))
            for name in queues
            for work in (self._block, self._await)
        ]
        for thread in self._threads:
            thread.start()

    def go_on(self, count: int = 50) -> None:
        """Wait until so many more were acknowledged, or one of them was refused."""
        with self._more:
            enough = len(self.acknowledged) + count
            done = self._more.wait_for(
                lambda: len(self.acknowledged) >= enough or self.errors, timeout=PATIENCE
            )
        assert done, "nothing is acknowledged any more"

    def stop(self) -> set[str]:
        """The ids of all that was acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.acknowledged

    def _run(self, work: object, name: str) -> None:
        try:
            work(name)  # type: ignore[operator]
        except BaseException as error:
            with self._more:
                self.errors.append(error)
                self._more.notify_all()

    def _block(self, name: str) -> None:
        queue = Queue(name, url=self._url)
        try:
            while not self._stop.wait(PAUSE):
                with self._going_on():
                    self._note(queue.enqueue(JOB).id)
        finally:
            queue.close()

    def _await(self, name: str) -> None:
        asyncio.run(self._enqueue(name))

    async def _enqueue(self, name: str) -> None:
        queue = AsyncQueue(name, url=self._url)
        try:
            while not self._stop.is_set():
                with self._going_on():
                    job, other = await asyncio.gather(
                        queue.enqueue(JOB), queue.enqueue(JOB, delay=0.01)
                    )
                    self._note(job.id, other.id)
                await asyncio.sleep(2 * PAUSE)
        finally:
            await queue.close()

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except ServerUnavailable as error:
            self.given_up.append(error)

    def _note(self, *ids: str) -> None:
        with self._more:
            self.acknowledged.update(ids)
            self._more.notify_all()
