"""Commands of many callers that share round trips.

One is under way at a time; what is asked meanwhile, or in the same tick of the event loop, goes
with the next. A caller that is cancelled is detached, and harms no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, Final, TypeVar

from bide.command import Command
from bide.errors import BideError

T = TypeVar("T")

MOST: Final = 100
"""Commands per round trip: bounds what one reply brings."""


class Shared:
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
