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
            send: adds jobs; returns what came of each, and stops after a round trip in which one
                failed.
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
            self._sender = loop.create_task(self._send_waiting())
            self._sender.add_done_callback(self._sent)
        else:
            self._rest()

    def _sent(self, sender: asyncio.Task[None]) -> None:
        """Go on with who came meanwhile; the end of a sender that was cancelled is theirs, too."""
        if sender.cancelled():  # maybe before it began, so it could not see to this itself
            left, self._waiting = self._waiting, []
            for caller in left:
                caller.answer.cancel()
        if self._waiting:
            self._go_on(sender.get_loop())
        else:
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set_result(None)

    async def _send_waiting(self) -> None:
        while self._waiting:
            callers, self._waiting = self._waiting, []
            try:
                came = await self._send_for(callers)
            except Exception as error:
                for caller in callers:
                    if not caller.answer.done():
                        caller.answer.set_exception(error)
                continue
            except BaseException:
                for caller in callers:
                    caller.answer.cancel()
                raise
            for caller, mine in zip(callers, came, strict=True):
                if caller.answer.done():  # cancelled
                    continue
                failed = first_error(mine, caller.jobs)
                if failed is not None:
                    caller.answer.set_exception(failed)
                else:
                    caller.answer.set_result([r for r in mine if isinstance(r, Receipt)])

    async def _send_for(self, callers: Sequence[_Caller]) -> list[list[Receipt | BideError]]:
        """What came of each caller's jobs, up to the first that failed; that ends no other's."""
        came: list[list[Receipt | BideError]] = [[] for _ in callers]
        todo = [(i, job) for i, caller in enumerate(callers) for job in caller.jobs]
        while todo:
            receipts = await self._send([job for _, job in todo])
            failed = set()
            for (i, _), receipt in zip(todo, receipts, strict=False):
                came[i].append(receipt)
                if isinstance(receipt, BideError):
                    failed.add(i)
            todo = [one for one in todo[len(receipts) :] if one[0] not in failed]
        return came
