"""Coalescing: the requests of many callers share round trips.

One round trip is in flight at a time. Requests that come meanwhile, or in the same tick of the
event loop, share the next one. A caller that is cancelled does not affect the others.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bide.errors import BideError

T = TypeVar("T")
R = TypeVar("R")
"""A request."""


class _Caller(NamedTuple, Generic[R, T]):
    request: R | None
    """None if it only waits for the requests before it."""
    answer: asyncio.Future[T]


class Coalescer(Generic[R, T]):
    """Batches the requests of one event loop."""

    def __init__(
        self, send: Callable[[list[R]], Awaitable[Sequence[T | BideError]]], most: int = sys.maxsize
    ) -> None:
        """Set up; `send` returns a result or a `BideError` for each of at most `most` requests."""
        self._send: Final = send
        self._most: Final = most
        self._waiting: list[_Caller[R, T]] = []
        self._busy = False
        self._sender: asyncio.Task[None] | None = None

    async def run(self, request: R) -> T:
        """Run a request together with others."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Caller(request, answer))
        if not self._busy:
            self._busy = True
            try:
                await asyncio.sleep(0)  # let other callers of this tick join
                if len(self._waiting) == 1:
                    self._waiting = []  # the only caller: without a task of its own
                    (result,) = await self._send([request])
                    if isinstance(result, BideError):
                        raise result
                    return result
            except asyncio.CancelledError:
                answer.cancel()
                raise
            finally:
                self._go_on(loop)
        return await answer

    async def settled(self) -> None:
        """Wait for the requests that were made before, and not for those that come meanwhile."""
        if self._busy:
            answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Caller(None, answered))
            await asyncio.wait([answered])

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            self._sender = loop.create_task(self._send_waiting())
            self._sender.add_done_callback(self._sent)
        else:
            self._busy = False

    def _sent(self, sender: asyncio.Task[None]) -> None:
        """Serve callers that came meanwhile; if the sender was cancelled, cancel them too."""
        if sender.cancelled():  # maybe before it started, so it could not do this itself
            left, self._waiting = self._waiting, []
            for caller in left:
                caller.answer.cancel()
        self._go_on(sender.get_loop())

    async def _send_waiting(self) -> None:
        while self._waiting:
            these, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            callers = [
                (request, answer)
                for request, answer in these
                if request is not None and not answer.done()
            ]
            results: Sequence[T | Exception]
            try:
                try:
                    results = await self._send([request for request, _ in callers])
                except Exception as error:
                    results = [error] * len(callers)
                for (_, answer), result in zip(callers, results, strict=True):
                    if answer.done():  # cancelled
                        continue
                    if isinstance(result, Exception):
                        is_ours = isinstance(result, BideError)
                        answer.set_exception(copy(result) if is_ours else result)
                    else:
                        answer.set_result(result)
            finally:
                for one in these:  # no more comes for those that have no result
                    one.answer.cancel()


class PerLoop(Generic[T]):
    """One value for each event loop, in any thread."""

    def __init__(
        self,
        make: Callable[[], T],
        leave: Callable[[asyncio.AbstractEventLoop, T], None] = lambda _loop, _one: None,
    ) -> None:
        """Set up; `leave` disposes of the value of a closed event loop, and runs on another one."""
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

        A read is recent for `lasts` seconds from its start. `rest` takes the seconds that it took,
        and returns the seconds for which it is recent from its end; it is not called for a read
        that failed.
        """
        self._lasts: Final = lasts
        self._rest: Final = rest
        self._reads: dict[Hashable, _Read[T]] = {}

    async def read(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a read; call `read` if no equal one is in flight or recent."""
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
