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
    """A queue of data that come out when they are due, for event loops; safe to share by tasks.

    Items come out in due order; items that are due at the same instant, in the order of their
    pushes. No two consumers receive the same item, unless a consumer held it with `take` for
    longer than its lease.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        prefix: str | None = None,
        retry_for: float = RETRY_FOR,
    ) -> None:
        """Create a delay queue; nothing is sent before the first call. Arguments as for `Queue`.

        Raises:
            UsageError: a name, the URL or `retry_for` is invalid.
        """
        self.queue: Final = AsyncQueue(name, url=url, prefix=prefix, retry_for=retry_for)
        """The queue that holds the items; use its `counts`, `pause`, `resume` and `configure`."""
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
        """Add items: up to some thousands in one round trip.

        Args:
            data: values that JSON can encode, each at most 1 MB.
            delay: time from now until they are due; without it, they are due at once.
            at: an aware `datetime` at which they are due, instead of `delay`.
            ids: an id for each item; by default new ids. Pushing an id again adds nothing. The
                server remembers an id while its item exists, and at least 15 s longer.
            durability: what to wait for: `"local"` (the server's answer), `"replica"` or `"fsync"`.

        Raises:
            UsageError: an argument is invalid.
            PayloadError: JSON cannot encode an item, or it takes more than 1 MB.
            ServerFull: the server has reached its memory limit; some items may have been added.
            ServerUnavailable: the server did not answer, so the items may exist. Their ids are in
                the error's `job_ids`: a retry with `ids=` is safe.
            DurabilityUnavailable: the server cannot give the durability; nothing was added.
            DurabilityTimeout: the items were added, but the durability was not confirmed within
                3 s. A retry with `ids=` is safe here too.
        """
        jobs = self._core.prepare(data, delay, at, ids, durability)
        await self._drive(self._core.beginning(self._binding, pushes=True, jobs=jobs))
        added = await self.queue._send(jobs)
        return [pushed(job) for job in added]

    # -- taking

    async def pop(self, num: int = 1, previous: Duration = 0) -> list[Any]:
        """Remove up to `num` due items, and return their data.

        If a reply is lost and the server returns within 15 s, the call is retried and returns the
        same items. A later retry finds nothing, and logs how many items are lost. If this process
        dies, the items that it has removed are lost too. Use `take` for items that must not be
        lost.

        Args:
            num: maximum number of items.
            previous: only items that became due at least this long ago.

        Raises:
            UsageError: an argument is invalid, or the queue holds jobs and no data.
            ServerUnavailable: the server did not answer. A call within 15 s returns the items that
                this call has removed.
        """
        count, previous_us = checked_num(num), to_us(previous, "previous")
        binding = self._binding
        await self._drive(self._core.beginning(binding, pushes=False))
        return await self._drive(self._core.popping(binding.keys, count, previous_us))

    def take(
        self, num: int = 1, *, lease: Duration = LEASE, wait: Duration | None = 0
    ) -> AsyncTaking:
        """Hold up to `num` due items under a lease, for the length of a `with` block.

        Ack each item when your work on it is done. At the end of the block, all unanswered items
        return to the queue. After an exception, this counts as an attempt; otherwise it does not.
        If the consumer dies, other consumers receive its items when the lease ends. An item whose
        consumers die again and again fails.

        Args:
            num: maximum number of items, up to 250.
            lease: how long the items are held, unless they are extended.
            wait: maximum time to wait for the first item; None for no limit. The wait also ends
                when the task is cancelled.

        Raises:
            UsageError: an argument is invalid; or, when the block is entered, the queue holds jobs
                and no data.
        """
        return AsyncTaking(self, take_options(num, lease, wait))

    def each(
        self, *, num: int = 1, lease: Duration = LEASE, wait: Duration | None = None
    ) -> AsyncIterator[AsyncItem]:
        """Iterate over items as they become due; end after `wait` without an item.

        Use an `async with item:` block for each item. At its end the item is acked. After an
        exception the item returns to the queue, which counts as an attempt. (Without the block, the
        loop cannot tell an exception from its end, and returns items as if they had not been
        taken.) If you go past an item without an answer, a warning is logged. The item comes again
        after a delay that grows, and this counts as an attempt.

        Args as for `take`. If `num` is above 1, that many items are taken together, and all their
        leases start then. Choose a lease that covers the work on all of them, or extend it.

        Raises:
            UsageError: an argument is invalid.
        """
        options = take_options(num, lease, wait)
        return self._each(options)

    # -- looking and removing

    async def length(self) -> int:
        """Return the number of items that are not taken: delayed and due."""
        counts = await self.queue.counts()
        return counts.delayed + counts.waiting

    async def peek(self, num: int = 10, *, within: Duration | None = None) -> list[ItemInfo]:
        """Return the items that come out next, in that order, without taking them.

        Args:
            num: maximum number of items, up to 500.
            within: only items that are due within this time; 0 for items that are due now.

        Raises:
            UsageError: an argument is invalid.
        """
        within_us = None if within is None else to_us(within, "within")
        return await self._drive(self._core.peeking(self._binding.keys, num, within_us))

    async def items(self, state: str, start: int = 0, count: int = 50) -> list[ItemInfo]:
        """Return a page of the items in a state: `delayed`, `waiting`, `active`, `failed` ..."""
        return await self._drive(self._core.listing(self._binding.keys, state, start, count))

    async def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove items that no consumer holds, failed items too.

        Returns:
            For each item `ok`, also if it was removed before; `active` if a consumer holds it, so
            that it was not removed; `completed` if it was taken recently; or `gone`.
        """
        return await self._drive(self._core.removing(self._binding.keys, ids))

    async def retry(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Return failed items to the queue; return for each `ok`, its state, or `gone`."""
        return await self.queue.retry_many(ids, delay, at)

    async def clear(self) -> int:
        """Remove all items that are not taken; return their number."""
        return await self.queue.purge()

    async def close(self) -> None:
        """Close the connections; the next call opens new ones.

        If the server is unavailable, this takes at most 1 s: held items return to the queue when
        their leases end.
        """
        here = asyncio.get_running_loop()
        if tidying := [task for task in self._tidying if task.get_loop() is here]:
            await asyncio.wait(tidying)
        binding = self._binding
        goodbye = aio.AsyncClient(
            binding.url, retry_for=0, reply_timeout=GOODBYE, clock=binding.clock
        )
        try:
            await self._drive(self._core.leaving(binding.keys), goodbye)
        finally:
            await goodbye.close()
        await self.queue.close()

    # -- what items and `take` use

    @property
    def _binding(self) -> ServerBinding[aio.AsyncClient]:
        return usable(self.queue._binding)

    async def _answer(
        self, items: Sequence[AsyncItem], outcome: Outcome, when: str = "", data: bytes = b""
    ) -> list[bool]:
        return await self._drive(self._core.answering(self.queue.keys, items, outcome, when, data))

    async def _extend(self, items: Sequence[AsyncItem], lease: Duration | None) -> list[bool]:
        return await self._drive(self._core.extending(self.queue.keys, items, lease))

    async def _begin(self, options: TakeOptions) -> AsyncItems:
        try:
            binding = self._binding
            await self._drive(self._core.beginning(binding, pushes=False))
            claimed = await self._drive(self._core.taking(binding.keys, options))
        except asyncio.CancelledError:
            # A task of its own returns what the call may have taken: the caller need not wait.
            tidying = asyncio.create_task(self._drive(self._core.giving_back(self.queue.keys)))
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)
            raise
        items = [AsyncItem(self, job, data, options.lease_us) for job, data in claimed]
        self._core.sessions.hold(items)
        return AsyncItems(self, items)

    async def _end(self, items: AsyncItems, error: BaseException | None) -> None:
        await self._drive(self._core.ending(self.queue.keys, items, error))

    async def _return(self, item: AsyncItem, error: BaseException) -> None:
        await self._drive(self._core.giving_up(self.queue.keys, [item], error))

    async def _each(self, options: TakeOptions) -> AsyncIterator[AsyncItem]:
        while True:
            async with AsyncTaking(self, options) as items:
                if not items:
                    return
                for item in items:
                    yield item
                left = items.unanswered
                await self._drive(self._core.passing_over(self.queue.keys, left))

    async def _drive(self, steps: Steps[T], by: aio.AsyncClient | None = None) -> T:
        """Run steps; their errors are thrown into them.

        Args:
            steps: the steps.
            by: the client that sends the commands, instead of the queue's own.
        """
        client, listener = by or self.queue._client, None
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
                    listener = listener or client.hints(self.queue.keys["wake"])
                    step = steps.send(await listener.wait(step.until))
                else:
                    came = listener is not None and await listener.close()
                    listener = None
                    step = steps.send(came)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()
            if listener is not None:
                await listener.close()


class AsyncTaking:
    """The context manager that `take` returns."""

    def __init__(self, delay_queue: AsyncDelayQueue, options: TakeOptions) -> None:
        self._delay_queue = delay_queue
        self._options = options
        self._items: AsyncItems | None = None

    async def __aenter__(self) -> AsyncItems:
        if self._items is not None:
            raise UsageError("This take has been entered already; call take() again.")
        self._items = await self._delay_queue._begin(self._options)
        return self._items

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        items, self._items = self._items, None
        if items is not None:
            await self._delay_queue._end(items, error)
