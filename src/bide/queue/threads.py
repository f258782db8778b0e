"""The parts of queues that differ in threads; `bide.queue.loops` has the same for event loops.

A blocking queue sends the next batch of an iterator before it has read the reply to the last. The
jobs of one caller must be added in order, so a batch may only follow a batch that it cannot
overtake: both must be one call of the script `enqueue` with the same keys, because then both get
the same answer. If a batch had to be retried nevertheless, the batch behind it is sent alone.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from bide.client import blocking
from bide.client.pubsub import WakeListener
from bide.errors import BideError, UsageError
from bide.model.job import Event, Snapshot
from bide.protocol.commands import Command
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.queue import core
from bide.queue.batches import Batches
from bide.queue.core import Exchange, QueueCore, signed
from bide.queue.event_reader import not_entered
from bide.tasks import middleware
from bide.tasks.middleware import around_sending

if TYPE_CHECKING:
    from bide.queue._sync.events import Events
    from bide.queue._sync.job import Job
    from bide.queue._sync.queue import Queue

_calling: Final = threading.local()
"""Whether this thread is in a callback."""


def unread(job: Job[Any]) -> Snapshot:
    """Read a job that was not read yet."""
    return job.refresh()._seen()


class QueueSide(QueueCore[blocking.Client]):
    """The part of a blocking queue that differs from an awaited one."""

    def _set_up(self) -> None:
        self._listeners: set[EventListenerSide] = set()

    def _wind_up(self) -> None:
        stop_all(self._listeners)

    def _leave(self, client: blocking.Client) -> None:
        stop_all(self._listeners)
        client.close()


def add_batches(queue: Queue, batches: Batches) -> list[Job[Any]]:
    """Add batch after batch; prepare and send the next one while the server adds one."""
    added: list[Job[Any]] = []
    pending: _Pending | None = None
    ahead: _Pending | None = None
    is_smooth = queue._binding.known  # or the answer might be that a script is missing
    try:
        for batch in batches:
            with batches.sending(batch), around_sending(queue.name, batch):
                pending, ahead = ahead, None
                if pending is None and batches.are_several:
                    pending = _begin(queue, batch)
                if queue._binding.known:
                    batches.look_ahead()
                if is_smooth and batches.ready and not middleware.in_use:
                    ahead = _begin(queue, batches.ready, pending)
                added += queue._send(batch) if pending is None else pending.end()
                is_smooth = pending is not None and pending.is_smooth
    finally:
        for left in (pending, ahead):
            if left is not None:
                left.drop()
    return added


def _begin(
    queue: Queue, jobs: Sequence[Prepared], behind: _Pending | None = None
) -> _Pending | None:
    binding = queue._binding
    return _Pending(queue, jobs, behind) if binding.fake_server is None else None


class _Pending:
    """A batch whose first round trip may be in flight."""

    def __init__(self, queue: Queue, jobs: Sequence[Prepared], behind: _Pending | None) -> None:
        """Send the first round trip.

        Args:
            queue: the queue that adds the jobs.
            jobs: at least one.
            behind: the batch in flight. If this batch could overtake it, nothing is sent yet.
        """
        binding = queue._binding
        self._queue = queue
        self._jobs = signed(jobs, binding.seal)
        self._in_flight: blocking.InFlight | None = None
        exchanges = queue._pipeline(self._jobs, binding)
        self._first, second = next(exchanges), next(exchanges, None)
        self._only: Command[Any] | None = None
        """The call, if the whole batch is one call that only adds jobs."""
        (command, *others) = self._first.commands
        if second is None and not others and not command.confirm and command.script == "enqueue":
            self._only = command
        if behind is None or self._may_follow(behind):
            before = None if behind is None else behind._in_flight
            self._in_flight = binding.client.begin(self._first.commands, before)
        self._rest: Iterator[Exchange] = chain(() if second is None else (second,), exchanges)

    def _may_follow(self, other: _Pending) -> bool:
        if self._only is None or other._only is None or other._in_flight is None:
            return False
        return self._only.keys == other._only.keys

    @property
    def is_smooth(self) -> bool:
        """Whether the first round trip ended without a retry."""
        return self._in_flight is not None and self._in_flight.is_smooth

    def end(self) -> list[Job[Any]]:
        """Read the reply to the first round trip, and make the others; raises as `enqueue_many`."""
        receipts: list[Receipt | BideError] = []
        if self._in_flight is None:
            goes_on, self._rest = True, chain((self._first,), self._rest)
        else:
            try:
                goes_on = self._first.read(self._in_flight.end(), receipts)
            except BideError as error:
                receipts.append(error)
                goes_on = False
        if goes_on:
            receipts += self._queue._attempt(self._jobs[len(receipts) :], self._rest)
        return self._queue._added(receipts, self._jobs)

    def drop(self) -> None:
        """Drop the reply to the first round trip, unless it was read."""
        if self._in_flight is not None:
            self._in_flight.drop()


class EventsSide:
    """The part of a blocking iterator over events that differs: another thread may cut it."""

    def __init__(self) -> None:
        self._client: blocking.Client | None = None
        self._is_cut = threading.Event()
        self._answered: bool | None = None
        """Whether the server answered when the connection was cut."""

    def _running_client(self) -> blocking.Client:
        if self._client is None:
            raise not_entered("with")
        if self._is_cut.is_set():
            raise _Cut
        return self._client

    def _answers(self, client: blocking.Client) -> bool:
        return client.answers if self._answered is None else self._answered

    def _pause(self, seconds: float) -> None:
        self._is_cut.wait(seconds)

    def _cut(self) -> None:
        """End the read of another thread now."""
        client = self._client
        if client is not None:
            self._answered = self._answers(client)
            self._is_cut.set()
            blocking.cut(client)


class _Cut(Exception):
    """The connection was cut: read nothing more."""


def checked_callback(
    kinds: str | Iterable[str], callback: Callable[[Event], object]
) -> frozenset[str]:
    """Check the kinds of events and the callback, which a thread calls; return the kinds."""
    checked = core.checked_callback(kinds, callback)
    if inspect.iscoroutinefunction(callback):
        raise UsageError(
            f"The callback {callback.__qualname__} is a coroutine function, and a thread would "
            "not await it; give a plain function, or use AsyncQueue.on()."
        )
    return checked


class EventListenerSide:
    """The part of a blocking event listener that differs from an awaited one: its thread."""

    _events: Events

    def _start(self, run: Callable[[], None], ended: Callable[[Any], object]) -> None:
        def run_to_end() -> None:
            run()
            ended(self)

        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=run_to_end, name="bide-events", daemon=True)
        self._thread.start()

    @property
    def _stopping(self) -> bool:
        return self._is_stopped.is_set()

    def stop(self) -> None:
        """Stop listening; return when the running callback, if any, has returned.

        If a callback calls this, it does not wait, because two callbacks that stop each other would
        deadlock.
        """
        self._begin_to_stop()
        if getattr(_calling, "back", False):
            return
        while self._thread.is_alive():
            self._events._cut()  # again, if it began to read meanwhile
            self._thread.join(0.05)

    def _begin_to_stop(self) -> None:
        self._is_stopped.set()
        self._events._cut()

    def _pause(self, seconds: float) -> None:
        self._is_stopped.wait(seconds)

    def _hand_over(self, callback: Callable[[Event], object], event: Event) -> None:
        _calling.back = True
        try:
            callback(event)
        finally:
            _calling.back = False


def stop_all(listeners: Iterable[EventListenerSide]) -> None:
    """Stop all listeners concurrently: all goodbyes take as long as one."""
    ending = [*listeners]
    for listener in ending:
        listener._begin_to_stop()
    for listener in ending:
        listener.stop()


class DelayQueueSide:
    """The part of a blocking delay queue that differs from an awaited one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Condition(self._lock)
        self._listeners: list[WakeListener] = []
        """The listeners that are waiting; `close` cuts them off."""
        self._closes = 0
        """The number of calls of `close`."""

    def length(self) -> int:
        """Return the number of items that are not taken."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.length()

    def __bool__(self) -> bool:
        return True  # an empty delay queue is true, and needs no round trip

    def _giving_back(self, give_back: Callable[[], bool]) -> AbstractContextManager[None]:
        """Do nothing: a blocking call is not cancelled."""
        return nullcontext()

    def _end_waits(self) -> None:
        with self._lock:
            self._closes += 1
            self._closing.notify_all()
            for listener in self._listeners:
                listener.cut()

    def _sleep_until(self, until: float, closes: int) -> bool:
        """Sleep until then (`time.monotonic()`); return whether the queue was closed instead."""
        with self._closing:
            while self._closes == closes and (left := until - time.monotonic()) > 0:
                self._closing.wait(left)
            return self._closes != closes

    def _listen(self, client: blocking.Client, key: str) -> WakeListener:
        listener = client.wake_listener(key)
        with self._lock:
            self._listeners.append(listener)
        return listener

    def _stop_listening(self, listener: WakeListener) -> bool:
        with self._lock:
            self._listeners.remove(listener)
        return listener.close()
