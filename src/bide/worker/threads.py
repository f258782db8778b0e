"""Threads for plain functions.

They are daemons, because a thread that hangs must not keep the process from ending; and they are
started only when none is idle, so a worker with a hundred slots has as many threads as its jobs
have needed at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

Work = Callable[[], Callable[[], object]]
"""Returns what is to be called once its thread is free: who hears of its end finds that one idle.
Neither must raise."""


class Threads:
    """Runs work at once: in an idle thread, or a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, work: Work) -> None:
        """Run `work`.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        with self._lock:
            start = self._idle == 0
            if start:
                self._count += 1
            else:
                self._idle -= 1
        if start:
            try:
                threading.Thread(
                    target=self._serve,
                    args=(work,),
                    name=f"{self._name}-{self._count}",
                    daemon=True,
                ).start()
            except RuntimeError:
                with self._lock:
                    self._count -= 1
                raise
        else:
            self._queue.put(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread, in this context; what it returns, or raises.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():  # whoever waited has been cancelled
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

        def call() -> Callable[[], None]:
            result: T | None = None
            raised: BaseException | None = None
            try:
                result = context.run(work)
            except BaseException as error:
                raised = error
                if isinstance(error, StopIteration):  # which no future can hold
                    raised = RuntimeError(repr(error))

            def tell() -> None:
                with suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(settle, result, raised)

            return tell

        self.submit(call)
        return await done

    def close(self) -> None:
        """Let idle threads end; busy ones end after their work."""
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self, work: Work | None) -> None:
        while work is not None:
            ended = work()
            with self._lock:
                self._idle += 1
            ended()
            work = self._queue.get()
