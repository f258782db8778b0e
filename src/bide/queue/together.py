"""Concurrent enqueues that share a round trip.

One round trip is under way at a time; what is to be enqueued meanwhile, or in the same tick of the
event loop, goes with the next. A caller that is cancelled is detached, and the round trip is read
to its end: its jobs may exist, as after a lost reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bide.errors import BideError
from bide.ops.produce import Prepared, Receipt
from bide.queue.core import first_error

Send = Callable[[Sequence[Prepared]], Awaitable[list[Receipt | BideError]]]


class _Caller(NamedTuple):
    jobs: Sequence[Prepared]
    answer: asyncio.Future[list[Receipt]]


class Together:
    """Gathers what concurrent callers enqueue."""

    def __init__(self, send: Send) -> None:
        """Set up.

        Args:
            send: adds jobs; returns what came of each.
        """
        self._send = send
        self._waiting: list[_Caller] = []
        self._sender: asyncio.Task[None] | None = None

    async def add(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Add jobs with whatever else is being added.

        Raises:
            BideError: what came of the first that failed.
        """
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        caller = _Caller(jobs, loop.create_future())
        self._waiting.append(caller)
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all())
        return await caller.answer

    async def settled(self) -> None:
        """Wait until nothing is being added."""
        if self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    async def _send_all(self) -> None:
        while self._waiting:
            callers, self._waiting = self._waiting, []
            jobs = [job for caller in callers for job in caller.jobs]
            try:
                receipts = await self._send(jobs)
            except Exception as error:
                for caller in callers:
                    if not caller.answer.done():
                        caller.answer.set_exception(error)
                continue
            except BaseException:
                for caller in callers:
                    caller.answer.cancel()
                raise
            start = 0
            for caller in callers:
                mine = receipts[start : start + len(caller.jobs)]
                start += len(caller.jobs)
                if caller.answer.done():  # cancelled
                    continue
                failed = first_error(mine, caller.jobs)
                if failed is not None:
                    caller.answer.set_exception(failed)
                else:
                    caller.answer.set_result([r for r in mine if isinstance(r, Receipt)])
