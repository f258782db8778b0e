"""State for each event loop: futures and connections are of no use in another one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One of something for each event loop, in whatever threads they run."""

    def __init__(
        self,
        make: Callable[[], T],
        leave: Callable[[asyncio.AbstractEventLoop, T], None] = lambda _loop, _one: None,
    ) -> None:
        """Set up.

        Args:
            make: makes one for the event loop that runs.
            leave: lets go of one whose event loop has been closed; another loop finds it so.
        """
        self._make = make
        self._leave = leave
        self._all: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    @property
    def here(self) -> T:
        """That of the event loop that runs; made when it is first asked for."""
        loop = asyncio.get_running_loop()
        found = self._all.get(loop)
        if found is None:
            self.leave_closed()
            found = self._make()
            with self._lock:
                self._all[loop] = found
        return found

    def leave_closed(self) -> None:
        """Let go of those whose event loop has been closed."""
        with self._lock:
            closed = [(loop, self._all.pop(loop)) for loop in [*self._all] if loop.is_closed()]
        for loop, one in closed:
            self._leave(loop, one)

    def take_all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """All there are, which from now on are not."""
        with self._lock:
            taken = [*self._all.items()]
            self._all.clear()
        return taken


class _Read(NamedTuple, Generic[T]):
    began: float
    task: asyncio.Task[T]


class Recent(Generic[T]):
    """Reads of one event loop that are alike share one: that under way, or a recent one.

    Who gives up waiting stops no read: others wait for it, and it goes on asking the server anyway.
    """

    def __init__(self, lasts: float) -> None:
        """Set up; a read counts as recent for so many seconds from its beginning."""
        self._lasts: Final = lasts
        self._reads: dict[Hashable, _Read[T]] = {}

    async def read(
        self, key: Hashable, read: Callable[[], Coroutine[Any, Any, T]], since: float = 0.0
    ) -> T:
        """What is read by that key.

        Args:
            key: alike for reads that are.
            read: called where no other's read will do.
            since: of `time.monotonic()`; a read that began before will not do.
        """
        now = time.monotonic()
        self._reads = {
            key: one
            for key, one in self._reads.items()
            if not one.task.done() or now - one.began < self._lasts
        }
        known = self._reads.get(key)
        if known is None or known.began < since:
            known = self._reads[key] = _Read(now, asyncio.create_task(read()))
            known.task.add_done_callback(_heard)
        return await asyncio.shield(known.task)


def _heard(task: asyncio.Task[Any]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
