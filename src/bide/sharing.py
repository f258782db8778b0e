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
        self._task: asyncio.Task[None] | None = None

    async def run(self, command: Command[T]) -> T:
        """Run a command together with others.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._asked.append((command, answer))
        if self._task is None:
            self._task = loop.create_task(self._send())
        return await answer

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _send(self) -> None:
        some: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        try:
            while self._asked:
                some, self._asked = self._asked[:MOST], self._asked[MOST:]
                some = [one for one in some if not one[1].done()]  # others were cancelled
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
        finally:
            self._task = None
            left, self._asked = [*some, *self._asked], []
            for _, answer in left:
                answer.cancel()  # only where the task itself was cancelled, as its loop ends
