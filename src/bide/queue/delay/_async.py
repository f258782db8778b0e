"""Delay queues for code on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from bide.client import aio
from bide.client.execute import RETRY_FOR
from bide.client.url import GOODBYE
from bide.errors import BideError, UsageError
from bide.model.durations import Duration, to_us
from bide.model.options import Durability
from bide.protocol.commands.worker import Outcome
from bide.queue import AsyncQueue
from bide.queue.binding import ServerBinding
from bide.queue.delay.core import DelayCore
from bide.queue.delay.items import (
    LEASE,
    AsyncItem,
    AsyncItems,
    ItemInfo,
    PushResult,
    Send,
    Steps,
    TakeOptions,
    WaitForWakeUp,
    checked_num,
    pushed,
    take_options,
    usable,
)

T = TypeVar("T")


class AsyncDelayQueue:
    """Data that come out when they are due, for code on an event loop; safe to share by tasks.

    What is pushed comes out in the order in which it is due, and of what is due at one instant,
    in the order in which it was pushed. However many consumers there are, no two of them receive
    the same item; with `take`, unless one held it for longer than its lease.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        prefix: str | None = None,
        retry_for: float = RETRY_FOR,
    ) -> None:
        """Name a delay queue; nothing is sent before the first call. Arguments as for `Queue`.

        Raises:
            UsageError: a name or the URL cannot be meant.
        """
        self.queue: Final = AsyncQueue(name, url=url, prefix=prefix, retry_for=retry_for)
        """What holds the items: its `counts()`, `pause()`, `resume()`, `configure()`."""
        self._core = DelayCore()
        self._tidying: set[asyncio.Task[bool]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    # -- pushing

    async def push(
        self,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> PushResult:
        """Add one item; arguments and errors as for `push_many`."""
        ids = None if id is None else [id]
        added = await self.push_many([data], delay=delay, at=at, ids=ids, durability=durability)
        return added[0]

    async def push_many(
        self,
        data: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        ids: Sequence[str] | None = None,
        durability: Durability | None = None,
    ) -> list[PushResult]:
        """Add items, in one round trip up to some thousands.

        Args:
            data: what JSON can hold, each at most a megabyte.
            delay: from now until they are due; without it, they are due at once.
            at: when they are due instead, an aware `datetime`.
            ids: one for each, so that pushing it again adds nothing; by default new ones. An id
                is remembered for as long as its item is there, and at least 15 s longer.
            durability: what to wait for: `"local"` (the server's answer), `"replica"` or `"fsync"`.

        Raises:
            UsageError: an argument cannot be meant.
            PayloadError: the data do not fit JSON, or take more than a megabyte.
            ServerFull: the server takes no more; those before may have been added.
            ServerUnavailable: no answer; the items may be there. Their ids are in the error's
                `job_ids`: repeating with `ids=` is safe.
            DurabilityUnavailable: the server cannot give the durability; nothing was added.
            DurabilityTimeout: it was not confirmed within 3 s; as for `ServerUnavailable`.
        """
        jobs = self._core.prepare(data, delay, at, ids, durability)
        await self._drive(self._core.beginning(self._place, pushes=True, jobs=jobs))
        added = await self.queue._send(jobs)
        return [pushed(job) for job in added]

    # -- taking

    async def pop(self, num: int = 1, previous: Duration = 0) -> list[Any]:
        """Take up to `num` data that are due, for good: they are gone when they are returned.

        A reply that is lost loses nothing if the server is back within 15 s: the call is repeated,
        and returns the same. What is repeated later finds nothing, and says so in the log; and
        what this process does not live to deal with is lost. `take` is for what must not be.

        Args:
            num: how many at most.
            previous: only what was due so long ago.

        Raises:
            UsageError: an argument cannot be meant, or the queue holds jobs and no data.
            ServerUnavailable: no answer; what was taken by then is what the next call returns, if
                it comes within 15 s.
        """
        count, previous_us = checked_num(num), to_us(previous, "previous")
        place = self._place
        await self._drive(self._core.beginning(place, pushes=False))
        return await self._drive(self._core.popping(place.keys, count, previous_us))

    def take(
        self, num: int = 1, *, lease: Duration = LEASE, wait: Duration | None = 0
    ) -> AsyncTaking:
        """Hold up to `num` items that are due, for the length of a `with` block.

        Ack each item that is dealt with. What is neither acked nor given back when the block ends
        is given back at once: after an exception as a delivery that failed, which counts as an
        attempt; else as if it had not been taken. Of a consumer that dies, others receive the items
        when the lease has ended; one whose consumers die of it again and again, fails.

        Args:
            num: how many at most, up to 250.
            lease: how long they are held, unless they are extended.
            wait: how long to wait for the first of them to be due; None for as long as it takes,
                or until the task is cancelled.

        Raises:
            UsageError: an argument cannot be meant; or, when the block is entered, the queue holds
                jobs and no data.
        """
        return AsyncTaking(self, take_options(num, lease, wait))

    def each(
        self, *, num: int = 1, lease: Duration = LEASE, wait: Duration | None = None
    ) -> AsyncIterator[AsyncItem]:
        """Items one after another, as they are due; ends when none came for `wait`.

        Deal with each in an `async with item:` block: at its end the item is acked, and after an
        exception given back, which counts as an attempt. (Without it the loop cannot tell an
        exception from its end, and gives back as if it had not been taken.) An item that is passed
        over without an answer comes again after a while, which grows and counts as an attempt, with
        a warning.

        Args as for `take`; with `num` above 1, that many are taken at once, and the leases of all
        begin then: choose a lease for as long as the work on all of them takes, or extend it.

        Raises:
            UsageError: an argument cannot be meant.
        """
        asked = take_options(num, lease, wait)
        return self._each(asked)

    # -- looking and removing

    async def length(self) -> int:
        """How many items there are that nobody has taken: delayed and due."""
        counts = await self.queue.counts()
        return counts.delayed + counts.waiting

    async def peek(self, num: int = 10, *, within: Duration | None = None) -> list[ItemInfo]:
        """The items that come out next, in that order; they stay where they are.

        Args:
            num: how many at most, up to 500.
            within: only what is due by then; 0 for what is due now.

        Raises:
            UsageError: an argument cannot be meant.
        """
        within_us = None if within is None else to_us(within, "within")
        return await self._drive(self._core.peeking(self._place.keys, num, within_us))

    async def items(self, state: str, start: int = 0, count: int = 50) -> list[ItemInfo]:
        """A page of the items in one state: `delayed`, `waiting`, `active`, `failed` ..."""
        return await self._drive(self._core.listing(self._place.keys, state, start, count))

    async def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove items that nobody holds, failed ones too.

        Returns:
            For each `ok`, also if it was removed before; `active` (it is held, nothing was
            removed), `completed` (it was taken lately) or `gone`.
        """
        return await self._drive(self._core.removing(self._place.keys, ids))

    async def retry(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Have failed items come out again; for each `ok`, its state instead, or `gone`."""
        return await self.queue.retry_many(ids, delay, at)

    async def clear(self) -> int:
        """Remove all items that nobody has taken; how many there were."""
        return await self.queue.purge()

    async def close(self) -> None:
        """Close the connections; the next call opens new ones.

        If the server is away, this takes a second at most: what is held comes back when its lease
        ends.
        """
        here = asyncio.get_running_loop()
        if tidying := [task for task in self._tidying if task.get_loop() is here]:
            await asyncio.wait(tidying)
        place = self._place
        goodbye = aio.AsyncClient(place.url, retry_for=0, reply_timeout=GOODBYE, clock=place.clock)
        try:
            await self._drive(self._core.leaving(place.keys), goodbye)
        finally:
            await goodbye.close()
        await self.queue.close()

    # -- what items and `take` use

    @property
    def _place(self) -> ServerBinding[aio.AsyncClient]:
        return usable(self.queue._binding)

    async def _answer(
        self, items: Sequence[AsyncItem], outcome: Outcome, when: str = "", data: bytes = b""
    ) -> list[bool]:
        return await self._drive(self._core.answering(self.queue.keys, items, outcome, when, data))

    async def _extend(self, items: Sequence[AsyncItem], lease: Duration | None) -> list[bool]:
        return await self._drive(self._core.extending(self.queue.keys, items, lease))

    async def _begin(self, asked: TakeOptions) -> AsyncItems:
        try:
            place = self._place
            await self._drive(self._core.beginning(place, pushes=False))
            claimed = await self._drive(self._core.taking(place.keys, asked))
        except asyncio.CancelledError:
            # What the call may have taken is given back, but nobody has to wait for that.
            tidying = asyncio.create_task(self._drive(self._core.giving_back(self.queue.keys)))
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)
            raise
        items = [AsyncItem(self, job, data, asked.lease_us) for job, data in claimed]
        self._core.seats.hold(items)
        return AsyncItems(self, items)

    async def _end(self, items: AsyncItems, error: BaseException | None) -> None:
        await self._drive(self._core.ending(self.queue.keys, items, error))

    async def _return(self, item: AsyncItem, error: BaseException) -> None:
        await self._drive(self._core.giving_up(self.queue.keys, [item], error))

    async def _each(self, asked: TakeOptions) -> AsyncIterator[AsyncItem]:
        while True:
            async with AsyncTaking(self, asked) as items:
                if not items:
                    return
                for item in items:
                    yield item
                left = items.unanswered
                await self._drive(self._core.passing_over(self.queue.keys, left))

    async def _drive(self, steps: Steps[T], by: aio.AsyncClient | None = None) -> T:
        """Do what the steps say; what fails is for them to judge.

        Args:
            steps: what to do.
            by: what else than the queue's client sends it.
        """
        client, hints = by or self.queue._client, None
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send):
                    try:
                        results = await client.attempt_many(step.commands)
                    except BideError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(results)
                elif isinstance(step, WaitForWakeUp):
                    hints = hints or client.hints(self.queue.keys["wake"])
                    step = steps.send(await hints.wait(step.until))
                else:
                    came = hints is not None and await hints.close()
                    hints = None
                    step = steps.send(came)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()
            if hints is not None:
                await hints.close()


class AsyncTaking:
    """The `with` block of a `take`."""

    def __init__(self, pile: AsyncDelayQueue, asked: TakeOptions) -> None:
        self._pile = pile
        self._asked = asked
        self._items: AsyncItems | None = None

    async def __aenter__(self) -> AsyncItems:
        if self._items is not None:
            raise UsageError("This take has been entered already; call take() again.")
        self._items = await self._pile._begin(self._asked)
        return self._items

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        items, self._items = self._items, None
        if items is not None:
            await self._pile._end(items, error)
