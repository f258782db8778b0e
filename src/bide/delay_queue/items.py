"""Items, as users hold them: one that was taken, one that was looked at, and what a push did."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from bide.clock import Duration, from_us
from bide.durability import Durability
from bide.ids import short_id
from bide.job import Claimed, Snapshot
from bide.ops import produce
from bide.ops.consume import Outcome
from bide.outcomes import Fail
from bide.payload.codec import ErrorInfo, encode_error
from bide.payload.items import decode_item, is_item
from bide.states import State

if TYPE_CHECKING:
    from bide.delay_queue.awaited import AsyncDelayQueue
    from bide.delay_queue.blocking import DelayQueue
    from bide.queue.view import JobView

I = TypeVar("I", bound="ItemCore")  # noqa: E741 - an item


class Pushed(NamedTuple):
    """What a push did."""

    id: str
    """Of the item."""
    due: datetime | None
    """When it is due, on the server's clock; None where the id existed."""
    new: bool
    """False where the id existed and nothing was changed."""
    confirmed: Durability = "local"
    """What was waited for, and has come true."""


def pushed(job: JobView[Any]) -> Pushed:
    """What a push did, from what the enqueue beneath it did."""
    new = bool(job.new)
    return Pushed(job.id, job.due if new else None, new, job.confirmed or "local")


class ItemSeen(NamedTuple):
    """An item as it was when it was looked at."""

    id: str
    data: Any
    state: State
    due: datetime
    attempt: int
    """How many deliveries have begun and counted."""
    error: ErrorInfo | None
    """Why it was last given back, or has failed, if that is known."""

    @classmethod
    def read(cls, snapshot: Snapshot | None) -> ItemSeen | None:
        """From what the server has; None for what is gone, and for a job, which is no item."""
        if snapshot is None or not is_item(snapshot.raw_body):
            return None
        return cls(
            snapshot.id,
            decode_item(snapshot.raw_body),
            snapshot.state,
            from_us(snapshot.due_us),
            snapshot.attempt,
            snapshot.notes.error,
        )


class ItemCore:
    """An item under a lease."""

    def __init__(self, claimed: Claimed, data: Any, lease_us: int) -> None:
        self.id: Final = claimed.id
        self.data: Final[Any] = data
        self.due: Final = from_us(claimed.due_us)
        """When it was due, on the server's clock."""
        self.attempt: Final = claimed.attempt
        """1 for the first delivery; one that was given back unseen does not count."""
        self.reclaims: Final = claimed.reclaims
        """How many leases have ended without an answer since the last delivery that had one."""
        self.token: Final = claimed.token
        self.pid: Final = os.getpid()
        self.lease_us: Final = lease_us
        self.answer: Outcome | None = None
        """What it was answered with."""
        self.counted = False
        """Whether the answer came before the lease had passed to another."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {short_id(self.id)} {self.data!r}>"


class Item(ItemCore):
    """An item under a lease, for code that blocks.

    A `with item:` block acks it at its end, unless it was answered in the block; after an exception
    it is given back, which counts as an attempt.
    """

    def __init__(self, pile: DelayQueue, claimed: Claimed, data: Any, lease_us: int) -> None:
        super().__init__(claimed, data, lease_us)
        self._pile = pile

    def __enter__(self) -> Item:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.answer is not None:
            return
        if error is None:
            self.ack()
        else:
            self._pile._return(self, error)

    def ack(self) -> bool:
        """The item is dealt with, and is removed.

        Returns:
            False if its lease had ended and another has taken it: it will be, or was, dealt with
            twice.

        Raises:
            UsageError: it was answered otherwise before.
        """
        return self._pile._answer([self], "complete")[0]

    def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Give the item back: it is due again at once, after a delay, or at a moment.

        Returns:
            False if its lease had ended and another has taken it.

        Raises:
            UsageError: it was answered otherwise before, or the delay cannot be meant.
        """
        return self._pile._answer([self], "retry", produce.when(delay, at))[0]

    def fail(self, reason: str = "Its consumer said that it has failed.") -> bool:
        """Nobody shall get the item again; it is kept as failed, where `retry` finds it.

        Returns:
            False if its lease had ended and another has taken it.

        Raises:
            UsageError: it was answered otherwise before.
        """
        return self._pile._answer([self], "fail", data=encode_error(Fail(reason)))[0]

    def extend(self, lease: Duration | None = None) -> bool:
        """Hold the item for so long from now; without `lease`, for as long as it was taken for.

        Returns:
            False if its lease had ended and another has taken it: what is done with it now is done
            twice.
        """
        return self._pile._extend([self], lease)[0]


class AsyncItem(ItemCore):
    """An item under a lease, for code on an event loop.

    An `async with item:` block acks it at its end, unless it was answered in the block; after an
    exception it is given back, which counts as an attempt.
    """

    def __init__(self, pile: AsyncDelayQueue, claimed: Claimed, data: Any, lease_us: int) -> None:
        super().__init__(claimed, data, lease_us)
        self._pile = pile

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
            await self._pile._return(self, error)

    async def ack(self) -> bool:
        """The item is dealt with, and is removed.

        Returns:
            False if its lease had ended and another has taken it: it will be, or was, dealt with
            twice.

        Raises:
            UsageError: it was answered otherwise before.
        """
        return (await self._pile._answer([self], "complete"))[0]

    async def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Give the item back: it is due again at once, after a delay, or at a moment.

        Returns:
            False if its lease had ended and another has taken it.

        Raises:
            UsageError: it was answered otherwise before, or the delay cannot be meant.
        """
        return (await self._pile._answer([self], "retry", produce.when(delay, at)))[0]

    async def fail(self, reason: str = "Its consumer said that it has failed.") -> bool:
        """Nobody shall get the item again; it is kept as failed, where `retry` finds it.

        Returns:
            False if its lease had ended and another has taken it.

        Raises:
            UsageError: it was answered otherwise before.
        """
        return (await self._pile._answer([self], "fail", data=encode_error(Fail(reason))))[0]

    async def extend(self, lease: Duration | None = None) -> bool:
        """Hold the item for so long from now; without `lease`, for as long as it was taken for.

        Returns:
            False if its lease had ended and another has taken it: what is done with it now is done
            twice.
        """
        return (await self._pile._extend([self], lease))[0]


class Batch(Sequence[I], Generic[I]):
    """The items of one `take`, in the order in which they were due."""

    def __init__(self, items: Sequence[I]) -> None:
        self._items: Final = items

    @overload
    def __getitem__(self, index: int) -> I: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[I]: ...
    def __getitem__(self, index: int | slice) -> I | Sequence[I]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[I]:
        return iter(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    @property
    def unanswered(self) -> list[I]:
        """Those which were neither acked nor given back."""
        return [item for item in self._items if item.answer is None]


class Items(Batch[Item]):
    """The items of one `take`; what is done with all of them takes one round trip."""

    def __init__(self, pile: DelayQueue, items: Sequence[Item]) -> None:
        super().__init__(items)
        self._pile = pile

    def ack(self) -> bool:
        """`Item.ack` for all that are unanswered; whether all of them counted."""
        return all(self._pile._answer(self.unanswered, "complete"))

    def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """`Item.nack` for all that are unanswered; whether all of them counted."""
        return all(self._pile._answer(self.unanswered, "retry", produce.when(delay, at)))

    def extend(self, lease: Duration | None = None) -> bool:
        """`Item.extend` for all that are unanswered; whether all of them are still held."""
        return all(self._pile._extend(self.unanswered, lease))


class AsyncItems(Batch[AsyncItem]):
    """The items of one `take`; what is done with all of them takes one round trip."""

    def __init__(self, pile: AsyncDelayQueue, items: Sequence[AsyncItem]) -> None:
        super().__init__(items)
        self._pile = pile

    async def ack(self) -> bool:
        """`AsyncItem.ack` for all that are unanswered; whether all of them counted."""
        return all(await self._pile._answer(self.unanswered, "complete"))

    async def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """`AsyncItem.nack` for all that are unanswered; whether all of them counted."""
        return all(await self._pile._answer(self.unanswered, "retry", produce.when(delay, at)))

    async def extend(self, lease: Duration | None = None) -> bool:
        """`AsyncItem.extend` for all that are unanswered; whether all of them are still held."""
        return all(await self._pile._extend(self.unanswered, lease))
