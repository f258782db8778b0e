"""Commands of many callers that share round trips.

One is under way at a time; what is asked meanwhile, or in the same tick of the event loop, goes
with the next. A caller that is cancelled is detached, and harms no other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from bide.errors import BideError
from bide.protocol.command import Command

T = TypeVar("T")

MOST: Final = 100
"""Commands per round trip: bounds what one reply brings."""


class Coalescer:
    """Gathers the commands of one event loop."""

    def __init__(self, attempt: Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]) -> None:
        """Set up.

        Args:
            attempt: runs commands; returns a result or a `BideError` for each.
        """
        self._attempt = attempt
        self._asked: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._under_way: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self, command: Command[T]) -> T:
        """Run a command together with others.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.append((command, answer))
        if self._task is None:
            self._begin()
        return await answer

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send())
        self._task.add_done_callback(self._rest)

    async def _send(self) -> None:
        while self._asked:
            self._under_way, self._asked = self._asked[:MOST], self._asked[MOST:]
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
        """Nothing is under way; answers are missing only where the task was cancelled."""
        left, self._asked, self._under_way = [*self._under_way, *self._asked], [], []
        self._task = None
        if not task.cancelled() and (asked := [one for one in left if not one[1].done()]):
            self._asked = asked
            self._begin()
            return
        for _, answer in left:
            answer.cancel()


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
    def current(self) -> T:
        """That of the event loop that runs; made when it is first asked for."""
        loop = asyncio.get_running_loop()
        found = self._all.get(loop)
        if found is None:
            self.dispose_closed()
            found = self._make()
            with self._lock:
                self._all[loop] = found
        return found

    def dispose_closed(self) -> None:
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


@dataclass
class _Read(Generic[T]):
    began: float
    task: asyncio.Task[T]
    until: float
    """Until when it will do, once it has ended."""


class ReadThroughCache(Generic[T]):
    """Reads of one event loop that are alike share one: that under way, or a recent one.

    Who gives up waiting stops no read: others wait for it, and it goes on asking the server anyway.
    """

    def __init__(self, lasts: float, rest: Callable[[float], float] = lambda took: 0.0) -> None:
        """Set up.

        Args:
            lasts: seconds for which a read counts as recent, from its beginning.
            rest: from the seconds that one took to those for which it counts as recent from its
                end; not asked of one that failed.
        """
        self._lasts: Final = lasts
        self._rest: Final = rest
        self._reads: dict[Hashable, _Read[T]] = {}

    async def read(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is read by that key.

        Args:
            key: alike for reads that are.
            read: called where no other's read will do.
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
        """An error that nobody waits for any more is nobody's."""
        if task.cancelled() or task.exception():
            return
        now = time.monotonic()
        one.until = max(one.until, now + self._rest(now - one.began))
