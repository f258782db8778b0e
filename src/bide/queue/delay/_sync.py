"""Delay queues for code that blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from bide.client import blocking
from bide.client.execute import RETRY_FOR
from bide.client.pubsub import WakeListener
from bide.client.url import GOODBYE
from bide.errors import BideError, UsageError
from bide.model.durations import Duration, to_us
from bide.model.options import Durability
from bide.protocol.commands.worker import Outcome
from bide.queue import Queue
from bide.queue.binding import ServerBinding
from bide.queue.delay.core import DelayCore
from bide.queue.delay.items import (
    CLOSED,
    LEASE,
    Item,
    ItemInfo,
    Items,
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


class DelayQueue:
    """A queue of data that come out when they are due, for blocking code; safe for threads.

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
        self.queue: Final = Queue(name, url=url, prefix=prefix, retry_for=retry_for)
        """The queue that holds the items; use its `counts`, `pause`, `resume` and `configure`."""
        self._core = DelayCore()
        self._lock = threading.Lock()
        self._listeners: list[WakeListener] = []
        """The listeners that are waiting; `close` cuts them off."""
        self._closes = 0
        """The number of calls of `close`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    # -- pushing

    def push(
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
        return self.push_many([data], delay=delay, at=at, ids=ids, durability=durability)[0]

    def push_many(
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
        self._drive(self._core.beginning(self._binding, pushes=True, jobs=jobs))
        added = self.queue._send(jobs)
        return [pushed(job) for job in added]

    # -- taking

    def pop(self, num: int = 1, previous: Duration = 0) -> list[Any]:
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
        self._drive(self._core.beginning(binding, pushes=False))
        return self._drive(self._core.popping(binding.keys, count, previous_us))

    def take(self, num: int = 1, *, lease: Duration = LEASE, wait: Duration | None = 0) -> Taking:
        """Hold up to `num` due items under a lease, for the length of a `with` block.

        Ack each item when your work on it is done. At the end of the block, all unanswered items
        return to the queue. After an exception, this counts as an attempt; otherwise it does not.
        If the consumer dies, other consumers receive its items when the lease ends. An item whose
        consumers die again and again fails.

        Args:
            num: maximum number of items, up to 250.
            lease: how long the items are held, unless they are extended.
            wait: maximum time to wait for the first item; None for no limit. The wait also ends
                when `close` is called.

        Raises:
            UsageError: an argument is invalid; or, when the block is entered, the queue holds jobs
                and no data.
        """
        return Taking(self, take_options(num, lease, wait), self._closes)

    def each(
        self, *, num: int = 1, lease: Duration = LEASE, wait: Duration | None = None
    ) -> Iterator[Item]:
        """Iterate over items as they become due; end after `wait` without an item, or by `close`.

        Use a `with item:` block for each item. At its end the item is acked. After an exception the
        item returns to the queue, which counts as an attempt. (Without the block, the loop cannot
        tell an exception from its end, and returns items as if they had not been taken.) If you go
        past an item without an answer, a warning is logged. The item comes again after a delay that
        grows, and this counts as an attempt.

        Args as for `take`. If `num` is above 1, that many items are taken together, and all their
        leases start then. Choose a lease that covers the work on all of them, or extend it.

        Raises:
            UsageError: an argument is invalid.
        """
        options = take_options(num, lease, wait)
        return self._each(options)

    # -- looking and removing

    def length(self) -> int:
        """Return the number of items that are not taken: delayed and due."""
        counts = self.queue.counts()
        return counts.delayed + counts.waiting

    def __len__(self) -> int:
        return self.length()

    def __bool__(self) -> bool:
        return True  # an empty delay queue is true, and needs no round trip

    def peek(self, num: int = 10, *, within: Duration | None = None) -> list[ItemInfo]:
        """Return the items that come out next, in that order, without taking them.

        Args:
            num: maximum number of items, up to 500.
            within: only items that are due within this time; 0 for items that are due now.

        Raises:
            UsageError: an argument is invalid.
        """
        within_us = None if within is None else to_us(within, "within")
        return self._drive(self._core.peeking(self._binding.keys, num, within_us))

    def items(self, state: str, start: int = 0, count: int = 50) -> list[ItemInfo]:
        """Return a page of the items in a state: `delayed`, `waiting`, `active`, `failed` ..."""
        return self._drive(self._core.listing(self._binding.keys, state, start, count))

    def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove items that no consumer holds, failed items too.

        Returns:
            For each item `ok`, also if it was removed before; `active` if a consumer holds it, so
            that it was not removed; `completed` if it was taken recently; or `gone`.
        """
        return self._drive(self._core.removing(self._binding.keys, ids))

    def retry(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Return failed items to the queue; return for each `ok`, its state, or `gone`."""
        return self.queue.retry_many(ids, delay, at)

    def clear(self) -> int:
        """Remove all items that are not taken; return their number."""
        return self.queue.purge()

    def close(self) -> None:
        """Close the connections; the next call opens new ones.

        A `take` that waits in another thread returns no items, and `each` ends. If the server is
        unavailable, this takes at most 1 s: held items return to the queue when their leases end.
        """
        with self._lock:
            self._closes += 1
            for listener in self._listeners:
                listener.cut()
        binding = self._binding
        goodbye = blocking.Client(
            binding.url, retry_for=0, reply_timeout=GOODBYE, clock=binding.clock
        )
        try:
            self._drive(self._core.leaving(binding.keys), by=goodbye)
        finally:
            goodbye.close()
        self.queue.close()

    # -- what items and `take` use

    @property
    def _binding(self) -> ServerBinding[blocking.Client]:
        return usable(self.queue._binding)

    def _answer(
        self, items: Sequence[Item], outcome: Outcome, when: str = "", data: bytes = b""
    ) -> list[bool]:
        return self._drive(self._core.answering(self.queue.keys, items, outcome, when, data))

    def _extend(self, items: Sequence[Item], lease: Duration | None) -> list[bool]:
        return self._drive(self._core.extending(self.queue.keys, items, lease))

    def _begin(self, options: TakeOptions, closes: int) -> Items:
        binding = self._binding
        self._drive(self._core.beginning(binding, pushes=False))
        claimed = self._drive(self._core.taking(binding.keys, options), closes)
        items = [Item(self, job, data, options.lease_us) for job, data in claimed]
        self._core.sessions.hold(items)
        return Items(self, items)

    def _end(self, items: Items, error: BaseException | None) -> None:
        self._drive(self._core.ending(self.queue.keys, items, error))

    def _return(self, item: Item, error: BaseException) -> None:
        self._drive(self._core.giving_up(self.queue.keys, [item], error))

    def _each(self, options: TakeOptions) -> Iterator[Item]:
        closes = self._closes
        while closes == self._closes:
            with Taking(self, options, closes) as items:
                if not items:
                    return
                yield from items
                self._drive(self._core.passing_over(self.queue.keys, items.unanswered))

    def _drive(self, steps: Steps[T], closes: int = 0, by: blocking.Client | None = None) -> T:
        """Run steps; their errors are thrown into them.

        Args:
            steps: the steps.
            closes: the number of calls of `close` when the caller started.
            by: the client that sends the commands, instead of the queue's own.
        """
        client, listener = by or self.queue._client, None
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send):
                    try:
                        results = client.attempt_many(step.commands)
                    except BideError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(results)
                elif isinstance(step, WaitForWakeUp):
                    listener = listener or self._listen(client)
                    heard = None if closes != self._closes else listener.wait(step.until)
                    step = steps.send(heard if closes == self._closes else CLOSED)
                else:
                    came = listener is not None and self._stop_listening(listener)
                    listener = None
                    step = steps.send(came)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()
            if listener is not None:
                self._stop_listening(listener)

    def _listen(self, client: blocking.Client) -> WakeListener:
        listener = client.hints(self.queue.keys["wake"])
        with self._lock:
            self._listeners.append(listener)
        return listener

    def _stop_listening(self, listener: WakeListener) -> bool:
        with self._lock:
            self._listeners.remove(listener)
        return listener.close()


class Taking:
    """The context manager that `take` returns."""

    def __init__(self, delay_queue: DelayQueue, options: TakeOptions, closes: int) -> None:
        self._delay_queue = delay_queue
        self._closes = closes
        self._options = options
        self._items: Items | None = None

    def __enter__(self) -> Items:
        if self._items is not None:
            raise UsageError("This take has been entered already; call take() again.")
        self._items = self._delay_queue._begin(self._options, self._closes)
        return self._items

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        items, self._items = self._items, None
        if items is not None:
            self._delay_queue._end(items, error)
