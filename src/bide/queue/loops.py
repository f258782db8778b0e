"""The parts of queues that differ on event loops; `bide.queue.threads` has the same for threads.

On an event loop, one round trip that adds jobs is in flight at a time. Calls that start meanwhile,
or in the same tick of the event loop, share the next round trip. If one of several callers is
cancelled, the round trip is still read to the end. After a cancelled call its jobs may exist, as
after a lost reply.

`docs/make_sync.py` makes the blocking side of all other code of queues from the awaited side.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bide.client import aio
from bide.client.coalesce import Coalescer, PerLoop
from bide.client.pubsub import AsyncWakeListener
from bide.errors import BideError, UsageError
from bide.model.ids import short_id
from bide.model.job import Event, Snapshot
from bide.model.options import Kinds
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands.enqueue import CHUNK, TRIP, Prepared, Receipt
from bide.queue.batches import Batches
from bide.queue.core import QueueCore
from bide.queue.core import checked_callback as checked_callback
from bide.queue.event_reader import not_entered
from bide.tasks.middleware import around_sending

if TYPE_CHECKING:
    from bide.queue._async.events import AsyncEvents
    from bide.queue._async.job import AsyncJob
    from bide.queue._async.queue import AsyncQueue

Jobs = Sequence[Prepared]
Results = list[Receipt | BideError]
"""A receipt or an error for each job, up to the end of a round trip in which a job failed."""

MOST_CALLS: Final = CHUNK * TRIP
"""Calls that share a round trip."""


def unread(job: AsyncJob[Any]) -> Snapshot:
    """Refuse to read a job that was not read yet: a property cannot await."""
    raise UsageError(f"Job {short_id(job.id)} has not been read yet; await its refresh() first.")


class AsyncQueueSide(QueueCore[aio.AsyncClient]):
    """The part of an awaited queue that differs from a blocking one."""

    def _set_up(self) -> None:
        self._listeners: set[AsyncEventListenerSide] = set()
        self._coalescers: PerLoop[dict[Kinds, Coalescer[Jobs, Results]]] = PerLoop(dict)

    async def _attempt(self, jobs: Jobs) -> Results:
        raise NotImplementedError

    async def _attempt_shared(self, jobs: Jobs) -> Results:
        """Add jobs like `_attempt`, in round trips that the callers of this event loop share."""
        # A coalescer for each set of durabilities: no call waits for what only others ask for.
        coalescers, kinds = self._coalescers.current, enqueue_commands.wanted(jobs)
        coalescer = coalescers.get(kinds)
        if coalescer is None:
            coalescer = Coalescer(self._attempt_for_all, MOST_CALLS)
            coalescers[kinds] = coalescer
        return await coalescer.run(jobs)

    async def _attempt_for_all(self, callers: Sequence[Jobs]) -> list[Results]:
        """Add the jobs of all callers; a failed job stops only its own caller's jobs."""
        if len(callers) == 1:
            return [await self._attempt(callers[0])]
        came: list[Results] = [[] for _ in callers]
        todo = [(i, job) for i, jobs in enumerate(callers) for job in jobs]
        while todo:
            results = await self._attempt([job for _, job in todo])
            failed = set()
            for (i, _), result in zip(todo, results, strict=False):
                came[i].append(result)
                if isinstance(result, BideError):
                    failed.add(i)
            todo = [one for one in todo[len(results) :] if one[0] not in failed]
        return came

    async def _wind_up(self) -> None:
        """Stop the listeners of this event loop, and wait for the enqueues in flight."""
        await stop_all(self._listeners)
        for coalescer in [*self._coalescers.current.values()]:  # a call meanwhile may add one
            await coalescer.settled()

    def _leave(self, client: aio.AsyncClient) -> None:
        for listener in [*self._listeners]:
            listener.abandon()
        client.abandon()


async def add_batches(queue: AsyncQueue, batches: Batches) -> list[AsyncJob[Any]]:
    """Add batch after batch."""
    added: list[AsyncJob[Any]] = []
    for batch in batches:
        with batches.sending(batch), around_sending(queue.name, batch):
            added += await queue._send(batch)
    return added


class AsyncEventsSide:
    """The part of an awaited iterator over events that differs from a blocking one."""

    def __init__(self) -> None:
        self._client: aio.AsyncClient | None = None

    def _running_client(self) -> aio.AsyncClient:
        if self._client is None:
            raise not_entered("async with")
        return self._client

    def _answers(self, client: aio.AsyncClient) -> bool:
        return client.answers

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _abandon(self) -> None:
        """Drop the connection without telling the server; the event loop may have ended."""
        client, self._client = self._client, None
        if client is not None:
            client.abandon()


class AsyncEventListenerSide:
    """The part of an awaited event listener that differs from a blocking one: its task."""

    _events: AsyncEvents

    def _start(
        self, run: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[Any], object]
    ) -> None:
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(run(), name="bide-events")
        self._task.add_done_callback(lambda _: ended(self))

    @property
    def _is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def stop(self) -> None:
        """Stop listening; cancel a running callback, unless the callback itself calls this."""
        self._begin_to_stop()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])
            await self._events.__aexit__()  # where it was cancelled before it began

    def _begin_to_stop(self) -> None:
        """Cancel the task without waiting; only once, because it sends a goodbye as it ends."""
        if not self._stopping:
            self._stopping = True
            if self._task is not asyncio.current_task():
                self._task.cancel()

    def abandon(self) -> None:
        """Stop without telling the server; the event loop may have ended."""
        self._events._abandon()
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _hand_over(self, callback: Callable[[Event], object], event: Event) -> None:
        outcome = callback(event)
        if inspect.isawaitable(outcome):
            await outcome


async def stop_all(listeners: Iterable[AsyncEventListenerSide]) -> None:
    """Stop all listeners of this event loop together: all goodbyes take as long as one."""
    ending = [listener for listener in listeners if listener._is_here]
    for listener in ending:
        listener._begin_to_stop()
    for listener in ending:
        await listener.stop()


class AsyncDelayQueueSide:
    """The part of an awaited delay queue that differs from a blocking one."""

    _closes: Final = 0
    """Counts what ends a wait: cancelling its task does, and `close` does not."""

    def __init__(self) -> None:
        self._tidying: set[asyncio.Task[bool]] = set()

    @contextlib.contextmanager
    def _giving_back(self, give_back: Callable[[], Coroutine[Any, Any, bool]]) -> Iterator[None]:
        """Return what a cancelled call may have taken; the caller need not wait for that."""
        try:
            yield
        except asyncio.CancelledError:
            tidying = asyncio.create_task(give_back())
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)
            raise

    async def _end_waits(self) -> None:
        """Wait until the items of cancelled calls are returned."""
        here = asyncio.get_running_loop()
        if tidying := [task for task in self._tidying if task.get_loop() is here]:
            await asyncio.wait(tidying)

    async def _sleep_until(self, until: float, closes: int) -> bool:
        """Sleep until then (`time.monotonic()`); return False, as `close` does not end a wait."""
        await asyncio.sleep(until - time.monotonic())
        return False

    def _listen(self, client: aio.AsyncClient, key: str) -> AsyncWakeListener:
        return client.wake_listener(key)

    async def _stop_listening(self, listener: AsyncWakeListener) -> bool:
        return await listener.close()
