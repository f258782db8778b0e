"""The items of delay queues, for code on an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from bide.errors import UsageError
from bide.model.context import Fail
from bide.model.durations import Duration
from bide.model.job import Claimed
from bide.model.payload.body import encode_error
from bide.protocol.commands.enqueue import when
from bide.queue.items import ItemBatch, ItemCore, TakeOptions

if TYPE_CHECKING:
    from bide.queue._async.delay import AsyncDelayQueue


class AsyncTaking:
    """The context manager that `take` returns."""

    def __init__(self, delay_queue: AsyncDelayQueue, options: TakeOptions, closes: int) -> None:
        self._delay_queue = delay_queue
        self._closes = closes
        self._options = options
        self._items: AsyncItems | None = None

    def __aiter__(self) -> NoReturn:
        """Refuse a loop over `take()` itself, which would not ack the items."""
        raise UsageError(
            "Enter take(), and loop over its items: `with pile.take() as items:`, on an event "
            "loop with async."
        )

    async def __aenter__(self) -> AsyncItems:
        if self._items is not None:
            raise UsageError("This take has been entered already; call take() again.")
        self._items = await self._delay_queue._begin(self._options, self._closes)
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


class AsyncItem(ItemCore):
    """An item under a lease, for code on an event loop.

    An `async with item:` block acks it at its end, unless it was answered in the block. After an
    exception the item returns to the queue, which counts as an attempt.
    """

    def __init__(
        self, delay_queue: AsyncDelayQueue, claimed: Claimed, data: Any, lease_us: int
    ) -> None:
        super().__init__(claimed, data, lease_us)
        self._delay_queue = delay_queue

    async def __aenter__(self) -> AsyncItem:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.answer is not None:
            return
        if error is None:
            await self.ack()
        else:
            await self._delay_queue._give_up([self], error)

    async def ack(self) -> bool:
        """Report that the item is done, which removes it.

        Returns:
            False if its lease had ended and another consumer took it: the item is, or was,
            delivered twice.

        Raises:
            UsageError: the item already has another answer.
        """
        return (await self._delay_queue._answer([self], "complete"))[0]

    async def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Return the item to the queue: it is due at once, after a delay, or at a moment.

        Returns:
            False if its lease had ended and another consumer took it.

        Raises:
            UsageError: the item already has another answer, or the delay is invalid.
        """
        return (await self._delay_queue._answer([self], "retry", when(delay, at)))[0]

    async def fail(self, reason: str = "The consumer has failed the item.") -> bool:
        """Fail the item: it is not delivered again, but kept as failed, for `retry`.

        Returns:
            False if its lease had ended and another consumer took it.

        Raises:
            UsageError: the item already has another answer.
        """
        return (await self._delay_queue._answer([self], "fail", data=encode_error(Fail(reason))))[0]

    async def extend(self, lease: Duration | None = None) -> bool:
        """Renew the lease from now; without `lease`, for the duration of the `take`.

        Returns:
            False if its lease had ended and another consumer took it: further work on the item is
            done twice.
        """
        return (await self._delay_queue._extend([self], lease))[0]


class AsyncItems(ItemBatch[AsyncItem]):
    """The items of one `take`; each method answers all of them in one round trip."""

    def __init__(self, delay_queue: AsyncDelayQueue, items: Sequence[AsyncItem]) -> None:
        super().__init__(items)
        self._delay_queue = delay_queue

    async def ack(self) -> bool:
        """Ack all unanswered items; return whether all answers counted."""
        return all(await self._delay_queue._answer(self.unanswered, "complete"))

    async def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Nack all unanswered items; return whether all answers counted."""
        return all(await self._delay_queue._answer(self.unanswered, "retry", when(delay, at)))

    async def extend(self, lease: Duration | None = None) -> bool:
        """Renew the leases of all unanswered items; return whether all are still held."""
        return all(await self._delay_queue._extend(self.unanswered, lease))
