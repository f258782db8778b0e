"""Threads for plain functions.

They are daemons, because a thread that hangs must not keep the process from ending; and they are
started only when none is idle, so a worker with a hundred slots has as many threads as its jobs
have needed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Threads:
    """Runs work at once: in an idle thread, or a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, work: Work) -> None:
        """Run `work`, which must not raise.

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

    def close(self) -> None:
        """Let idle threads end; busy ones end after their work."""
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self, work: Work | None) -> None:
        while work is not None:
            work()
            with self._lock:
                self._idle += 1
            work = self._queue.get()
