"""Items, as users hold them: one that was taken, one that was looked at, and what a push did.

`DelayQueue` and `AsyncDelayQueue` drive them and do nothing but what they yield:

    Ask(commands)   one round trip; answer with the results, a `BideError` for each that failed
    Hear(until)     wait for a wake hint, until then at most; answer with who pushed it, None, or
                    CLOSED if the delay queue was closed meanwhile
    Hush()          hear no more; answer with whether a hint had come meanwhile

A generator that is closed at one of these leaves nothing undone that the next call does not find.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from bide.errors import BideError, UsageError
from bide.model.context import Fail
from bide.model.durations import Duration, from_us, to_us
from bide.model.ids import short_id
from bide.model.job import Claimed, Snapshot, State
from bide.model.options import Durability
from bide.model.payload.body import ErrorInfo, decode_item, encode_error, is_item
from bide.protocol.command import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Outcome
from bide.queue.binding import ServerBinding

if TYPE_CHECKING:
    from bide.queue.delay._async import AsyncDelayQueue
    from bide.queue.delay._sync import DelayQueue
    from bide.queue.job_view import JobView

I = TypeVar("I", bound="ItemCore")  # noqa: E741 - an item


class PushResult(NamedTuple):
    """What a push did."""

    id: str
    """Of the item."""
    due: datetime | None
    """When it is due, on the server's clock; None where the id existed."""
    new: bool
    """False where the id existed and nothing was changed."""
    confirmed: Durability = "local"
    """What was waited for, and has come true."""


def pushed(job: JobView[Any]) -> PushResult:
    """What a push did, from what the enqueue beneath it did."""
    new = bool(job.created)
    return PushResult(job.id, job.due if new else None, new, job.confirmed or "local")


class ItemInfo(NamedTuple):
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
    def read(cls, snapshot: Snapshot | None) -> ItemInfo | None:
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
        return self._pile._answer([self], "retry", enqueue_commands.when(delay, at))[0]

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
        return (await self._pile._answer([self], "retry", enqueue_commands.when(delay, at)))[0]

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
        return all(self._pile._answer(self.unanswered, "retry", enqueue_commands.when(delay, at)))

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
        return all(
            await self._pile._answer(self.unanswered, "retry", enqueue_commands.when(delay, at))
        )

    async def extend(self, lease: Duration | None = None) -> bool:
        """`AsyncItem.extend` for all that are unanswered; whether all of them are still held."""
        return all(await self._pile._extend(self.unanswered, lease))


T = TypeVar("T")

CLOSED: Final = "(closed)"
"""No seat has such a name."""


class Send(NamedTuple):
    """Run these commands in one round trip."""

    commands: Sequence[Command[Any]]


class WaitForWakeUp(NamedTuple):
    """Wait for a wake hint."""

    until: float
    """By `time.monotonic()`."""


class CloseListener(NamedTuple):
    """Hear no more."""


Steps = Generator[Send | WaitForWakeUp | CloseListener, Any, T]


def ask(command: Command[T]) -> Steps[T]:
    """Run one command.

    Raises:
        BideError: whatever came of it instead of a result.
    """
    (result,) = yield from ask_all([command])
    return result  # type: ignore[no-any-return]


def ask_all(commands: Sequence[Command[Any]]) -> Steps[list[Any]]:
    """Run commands in one round trip.

    Raises:
        BideError: what the first that failed came to; the others have run.
    """
    results: list[Any] = (yield Send(commands)) if commands else []
    for result in results:
        if isinstance(result, BideError):
            raise result
    return results


C = TypeVar("C")

LEASE: Final = 30.0
"""Seconds for which an item is held, unless its consumer says otherwise."""


class TakeOptions(NamedTuple):
    """What a `take` asks for."""

    num: int
    lease_us: int
    wait: float | None
    """Seconds; None for as long as it takes."""


def take_options(num: int, lease: Duration, wait: Duration | None) -> TakeOptions:
    """What a `take` asks for.

    Raises:
        UsageError: one of them cannot be meant.
    """
    wait_us = None if wait is None else to_us(wait, "wait")
    seconds = None if wait_us is None else wait_us / 1e6
    return TakeOptions(checked_num(num, worker_commands.MAX_CLAIM), checked_lease(lease), seconds)


def checked_num(num: int, most: int | None = None) -> int:
    """How many items are asked for.

    Raises:
        UsageError: it is no number of items.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1 or (most and num > most):
        raise UsageError(
            f"num={num!r} is no number of items; give 1 {f'to {most}' if most else 'or more'}."
        )
    return num


def checked_lease(lease: Duration) -> int:
    """A lease in microseconds.

    Raises:
        UsageError: it is not a duration, or none at all.
    """
    lease_us = to_us(lease, "lease")
    if lease_us == 0:
        raise UsageError("lease=0 would hold nothing; give as long as the work on an item takes.")
    return lease_us


def usable(place: ServerBinding[C]) -> ServerBinding[C]:
    """The place, if it has a server.

    Raises:
        UsageError: functions run at once there, and there is nothing that could hold data.
    """
    if place.stand_in is not None:
        raise UsageError(
            "bide.testing.eager() has no server that could hold data; test a DelayQueue with the "
            "fixture `bide_test`, or bide.testing.start()."
        )
    return place
