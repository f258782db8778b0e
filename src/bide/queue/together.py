"""Concurrent enqueues on one event loop that share a round trip.

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
    """Gathers what concurrent callers on one event loop enqueue."""

    def __init__(self, send: Send) -> None:
        """Set up.

        Args:
            send: adds jobs; returns what came of each.
        """
        self._send = send
        self._waiting: list[_Caller] = []
        self._busy = False
        self._sender: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None

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
        if not self._busy:
            self._busy = True
            try:
                await asyncio.sleep(0)  # others of this tick
                if len(self._waiting) == 1:
                    return await self._add_alone(jobs)
            except asyncio.CancelledError:
                caller.answer.cancel()
                raise
            finally:
                self._go_on(loop)
        return await caller.answer

    async def settled(self) -> None:
        """Wait until nothing is being added."""
        if self._busy:
            self._settled = self._settled or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled])

    async def _add_alone(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Nobody else is concerned, so it needs no task of its own."""
        self._waiting = []
        receipts = await self._send(jobs)
        failed = first_error(receipts, jobs)
        if failed is not None:
            raise failed
        return [receipt for receipt in receipts if isinstance(receipt, Receipt)]

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            self._sender = loop.create_task(self._send_all())
        else:
            self._rest()

    async def _send_all(self) -> None:
        try:
            await self._send_waiting()
        finally:
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set_result(None)

    async def _send_waiting(self) -> None:
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
