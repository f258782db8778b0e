"""Items as users hold them, and the steps of a delay queue.

The steps are generators. `DelayQueue` and `AsyncDelayQueue` do the I/O for what they yield:

    Send(commands)          make one round trip; answer with the results, a `BideError` for each
                            command that failed
    WaitForWakeUp(until)    wait for a wake-up message, at most until then; answer with the name of
                            its sender, None, or CLOSED if the delay queue was closed meanwhile
    CloseListener()         stop listening; answer whether a message had arrived meanwhile

A generator may be closed at any of these: the next call finds and completes what it left undone.
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
    """The result of a push."""

    id: str
    """The item's id."""
    due: datetime | None
    """When the item is due, on the server's clock; None if the id already existed."""
    created: bool
    """False if the id already existed and nothing was changed."""
    confirmed: Durability = "local"
    """The durability that the server has confirmed."""


def pushed(job: JobView[Any]) -> PushResult:
    """Return the result of a push, from the enqueued job."""
    created = bool(job.created)
    return PushResult(job.id, job.due if created else None, created, job.confirmed or "local")


class ItemInfo(NamedTuple):
    """An item as it was when it was read."""

    id: str
    data: Any
    state: State
    due: datetime
    attempt: int
    """Number of deliveries that count as attempts."""
    error: ErrorInfo | None
    """Why it was last returned to the queue, or has failed, if that is known."""

    @classmethod
    def read(cls, snapshot: Snapshot | None) -> ItemInfo | None:
        """Convert a snapshot; return None for a missing item, and for a job."""
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
        """1 for the first delivery; a delivery that was returned unused does not count."""
        self.reclaims: Final = claimed.reclaims
        """Number of leases that ended without an answer since the last answered delivery."""
        self.token: Final = claimed.token
        self.pid: Final = os.getpid()
        self.lease_us: Final = lease_us
        self.answer: Outcome | None = None
        """The answer, once there is one."""
        self.counted = False
        """Whether the answer came before another consumer got the lease."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {short_id(self.id)} {self.data!r}>"


class Item(ItemCore):
    """An item under a lease, for code that blocks.

    A `with item:` block acks it at its end, unless it was answered in the block. After an exception
    the item returns to the queue, which counts as an attempt.
    """

    def __init__(self, delay_queue: DelayQueue, claimed: Claimed, data: Any, lease_us: int) -> None:
        super().__init__(claimed, data, lease_us)
        self._delay_queue = delay_queue

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
            self._delay_queue._return(self, error)

    def ack(self) -> bool:
        """Report that the item is done, which removes it.

        Returns:
            False if its lease had ended and another consumer took it: the item is, or was,
            delivered twice.

        Raises:
            UsageError: the item already has another answer.
        """
        return self._delay_queue._answer([self], "complete")[0]

    def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Return the item to the queue: it is due at once, after a delay, or at a moment.

        Returns:
            False if its lease had ended and another consumer took it.

        Raises:
            UsageError: the item already has another answer, or the delay is invalid.
        """
        return self._delay_queue._answer([self], "retry", enqueue_commands.when(delay, at))[0]

    def fail(self, reason: str = "Its consumer said that it has failed.") -> bool:
        """Fail the item: it is not delivered again, but kept as failed, for `retry`.

        Returns:
            False if its lease had ended and another consumer took it.

        Raises:
            UsageError: the item already has another answer.
        """
        return self._delay_queue._answer([self], "fail", data=encode_error(Fail(reason)))[0]

    def extend(self, lease: Duration | None = None) -> bool:
        """Renew the lease from now; without `lease`, for the duration of the `take`.

        Returns:
            False if its lease had ended and another consumer took it: further work on the item is
            done twice.
        """
        return self._delay_queue._extend([self], lease)[0]


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
            await self._delay_queue._return(self, error)

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
        return (await self._delay_queue._answer([self], "retry", enqueue_commands.when(delay, at)))[
            0
        ]

    async def fail(self, reason: str = "Its consumer said that it has failed.") -> bool:
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
        """The items that have no answer yet."""
        return [item for item in self._items if item.answer is None]


class Items(Batch[Item]):
    """The items of one `take`; each method answers all of them in one round trip."""

    def __init__(self, delay_queue: DelayQueue, items: Sequence[Item]) -> None:
        super().__init__(items)
        self._delay_queue = delay_queue

    def ack(self) -> bool:
        """Ack all unanswered items; return whether all answers counted."""
        return all(self._delay_queue._answer(self.unanswered, "complete"))

    def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Nack all unanswered items; return whether all answers counted."""
        return all(
            self._delay_queue._answer(self.unanswered, "retry", enqueue_commands.when(delay, at))
        )

    def extend(self, lease: Duration | None = None) -> bool:
        """Renew the leases of all unanswered items; return whether all are still held."""
        return all(self._delay_queue._extend(self.unanswered, lease))


class AsyncItems(Batch[AsyncItem]):
    """The items of one `take`; each method answers all of them in one round trip."""

    def __init__(self, delay_queue: AsyncDelayQueue, items: Sequence[AsyncItem]) -> None:
        super().__init__(items)
        self._delay_queue = delay_queue

    async def ack(self) -> bool:
        """Ack all unanswered items; return whether all answers counted."""
        return all(await self._delay_queue._answer(self.unanswered, "complete"))

    async def nack(self, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Nack all unanswered items; return whether all answers counted."""
        return all(
            await self._delay_queue._answer(
                self.unanswered, "retry", enqueue_commands.when(delay, at)
            )
        )

    async def extend(self, lease: Duration | None = None) -> bool:
        """Renew the leases of all unanswered items; return whether all are still held."""
        return all(await self._delay_queue._extend(self.unanswered, lease))


T = TypeVar("T")

CLOSED: Final = "(closed)"
"""The answer to `WaitForWakeUp` after `close`; no session has this name."""


class Send(NamedTuple):
    """Run these commands in one round trip."""

    commands: Sequence[Command[Any]]


class WaitForWakeUp(NamedTuple):
    """Wait for a wake-up message."""

    until: float
    """By `time.monotonic()`."""


class CloseListener(NamedTuple):
    """Stop listening for wake-up messages."""


Steps = Generator[Send | WaitForWakeUp | CloseListener, Any, T]


def ask(command: Command[T]) -> Steps[T]:
    """Run one command.

    Raises:
        BideError: the command failed.
    """
    (result,) = yield from ask_all([command])
    return result  # type: ignore[no-any-return]


def ask_all(commands: Sequence[Command[Any]]) -> Steps[list[Any]]:
    """Run commands in one round trip.

    Raises:
        BideError: a command failed; this is the first error. The other commands have run.
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
    """The arguments of a `take`."""

    num: int
    lease_us: int
    wait: float | None
    """Seconds; None for no limit."""


def take_options(num: int, lease: Duration, wait: Duration | None) -> TakeOptions:
    """Check the arguments of a `take`.

    Raises:
        UsageError: an argument is invalid.
    """
    wait_us = None if wait is None else to_us(wait, "wait")
    seconds = None if wait_us is None else wait_us / 1e6
    return TakeOptions(checked_num(num, worker_commands.MAX_CLAIM), checked_lease(lease), seconds)


def checked_num(num: int, most: int | None = None) -> int:
    """Check a number of items.

    Raises:
        UsageError: it is not an integer from 1 to `most`.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1 or (most and num > most):
        raise UsageError(
            f"num={num!r} is not a number of items; give 1 {f'to {most}' if most else 'or more'}."
        )
    return num


def checked_lease(lease: Duration) -> int:
    """Convert a lease to microseconds.

    Raises:
        UsageError: it is not a duration, or is 0.
    """
    lease_us = to_us(lease, "lease")
    if lease_us == 0:
        raise UsageError("lease=0 would hold nothing; give as long as the work on an item takes.")
    return lease_us


def usable(binding: ServerBinding[C]) -> ServerBinding[C]:
    """Return the binding if it has a server.

    Raises:
        UsageError: this is eager mode, which has no server that could hold data.
    """
    if binding.fake_server is not None:
        raise UsageError(
            "bide.testing.eager() has no server that could hold data; test a DelayQueue with the "
            "fixture `bide_test`, or bide.testing.start()."
        )
    return binding
