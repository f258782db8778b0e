"""Coalescing: commands of many callers share round trips.

One round trip is in flight at a time. Commands that come meanwhile, or in the same tick of the
event loop, share the next one. A caller that is cancelled does not affect the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Generic, TypeVar

from bide.errors import BideError
from bide.protocol.command import Command

T = TypeVar("T")

MOST: Final = 100
"""Maximum commands per round trip, which bounds the size of a reply."""


class Coalescer:
    """Batches the commands of one event loop."""

    def __init__(self, attempt: Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]) -> None:
        """Set up.

        Args:
            attempt: runs commands; returns a result or a `BideError` for each.
        """
        self._attempt = attempt
        self._queued: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._under_way: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self, command: Command[T]) -> T:
        """Run a command together with others.

        Raises:
            BideError: the command failed.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queued.append((command, answer))
        if self._task is None:
            self._begin()
        return await answer

    async def settled(self) -> None:
        """Wait until no round trip is in flight."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send())
        self._task.add_done_callback(self._rest)

    async def _send(self) -> None:
        while self._queued:
            self._under_way, self._queued = self._queued[:MOST], self._queued[MOST:]
            some = [one for one in self._under_way if not one[1].done()]  # others were cancelled
            try:
                results = await self._attempt([command for command, _ in some])
            except Exception as error:
                results = [error] * len(some)
            for (_, answer), result in zip(some, results, strict=True):
                if answer.done():
                    continue
                if isinstance(result, BideError):
                    answer.set_exception(copy(result))
                elif isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

    def _rest(self, task: asyncio.Task[None]) -> None:
        """Finish; answers are missing only if the task was cancelled."""
        left, self._queued, self._under_way = [*self._under_way, *self._queued], [], []
        self._task = None
        if not task.cancelled() and (asked := [one for one in left if not one[1].done()]):
            self._queued = asked
            self._begin()
            return
        for _, answer in left:
            answer.cancel()


class PerLoop(Generic[T]):
    """One value for each event loop, in any thread."""

    def __init__(
        self,
        make: Callable[[], T],
        leave: Callable[[asyncio.AbstractEventLoop, T], None] = lambda _loop, _one: None,
    ) -> None:
        """Set up.

        Args:
            make: makes the value for the running event loop.
            leave: disposes of a value whose event loop was closed; called from another loop.
        """
        self._make = make
        self._leave = leave
        self._all: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    @property
    def current(self) -> T:
        """The value of the running event loop; created at the first access."""
        loop = asyncio.get_running_loop()
        found = self._all.get(loop)
        if found is None:
            self.dispose_closed()
            found = self._make()
            with self._lock:
                self._all[loop] = found
        return found

    def dispose_closed(self) -> None:
        """Dispose of the values whose event loops were closed."""
        with self._lock:
            closed = [(loop, self._all.pop(loop)) for loop in [*self._all] if loop.is_closed()]
        for loop, one in closed:
            self._leave(loop, one)

    def take_all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Remove and return all entries."""
        with self._lock:
            taken = [*self._all.items()]
            self._all.clear()
        return taken


class _Read(Generic[T]):
    def __init__(self, began: float, task: asyncio.Task[T], until: float) -> None:
        self.began = began
        self.task = task
        self.until = until
        """When it stops being recent, once it has ended."""


class ReadThroughCache(Generic[T]):
    """Equal reads of one event loop share a result: that of a read in flight, or a recent one.

    If a caller is cancelled, the read continues, because others may wait for it.
    """

    def __init__(self, lasts: float, rest: Callable[[float], float] = lambda took: 0.0) -> None:
        """Set up.

        Args:
            lasts: seconds for which a read counts as recent, from its start.
            rest: takes the seconds that a read took; returns the seconds for which it counts as
                recent, from its end. Not called for a read that failed.
        """
        self._lasts: Final = lasts
        self._rest: Final = rest
        self._reads: dict[Hashable, _Read[T]] = {}

    async def read(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a read.

        Args:
            key: equal for equal reads.
            read: called if there is no read in flight and no recent one.
        """
        now = time.monotonic()
        self._reads = {
            key: one for key, one in self._reads.items() if not one.task.done() or now < one.until
        }
        known = self._reads.get(key)
        if known is None:
            known = _Read(now, asyncio.create_task(read()), now + self._lasts)
            self._reads[key] = known
            known.task.add_done_callback(partial(self._ended, known))
        return await asyncio.shield(known.task)

    def _ended(self, one: _Read[T], task: asyncio.Task[T]) -> None:
        """Note how long the read took; mark its error as retrieved, even without a waiter."""
        if task.cancelled() or task.exception():
            return
        now = time.monotonic()
        one.until = max(one.until, now + self._rest(now - one.began))
