"""A queue's events, for code on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Self

from bide.client import aio
from bide.client.url import LONGEST_RECONNECT_PAUSE
from bide.logs import Log
from bide.model.events import GAP, Event
from bide.model.ids import short_id
from bide.protocol.command import Command
from bide.protocol.commands.jobs import Position
from bide.queue.event_reader import EventReader, Pause, Read, entered_already, not_entered

log = Log("bide.model.events")


class AsyncEvents:
    """An iterator over the events of a queue, from the moment the `async with` is entered."""

    def __init__(self, reader: EventReader, make_client: Callable[[], aio.AsyncClient]) -> None:
        self._reader = reader
        self._make_client = make_client
        self._client: aio.AsyncClient | None = None
        self._steps = reader.steps()
        self._todo: Any = None

    @property
    def after(self) -> str:
        """The id of the last event that was read: `queue.events(after=...)` continues after it."""
        return self._reader.after

    async def __aenter__(self) -> Self:
        """Hold the stream open.

        Raises:
            UsageError: another `async with` holds it open already.
            BideError: the server cannot be reached, or refuses.
        """
        if self._client is not None:
            raise entered_already()
        client = self._make_client()
        try:
            self._reader.began(await client.run(self._reader.hold()))
        except BaseException:
            await client.close()
            raise
        self._client = client
        return self

    async def __aexit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                named = self._reader.is_named
                if client.answers and not named:  # otherwise it expires after ten minutes
                    await client.send_last(self._reader.let_go())
            finally:
                await client.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it. If this is cancelled, the next call returns it.

        Raises:
            StopAsyncIteration: no event came within the time-out; another call waits again.
            BideError: the server cannot be reached, or refuses; another call tries again.
        """
        try:
            step = self._todo or next(self._steps)
            while not isinstance(step, Event):
                self._todo = step
                outcome = await self._do(step)
                self._todo = None
                step = self._steps.send(outcome)
        except StopIteration:
            self._steps = self._reader.steps()
            raise StopAsyncIteration from None
        return step

    async def _do(self, step: Command[Position] | Read | Pause) -> Any:
        client = self._client
        if client is None:
            raise not_entered("async with")
        if isinstance(step, Read):
            return await client.read(step.stream, step.after, step.seconds)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await client.run(step)

    def _abandon(self) -> None:
        """Drop the connection without telling the server; the event loop may have ended."""
        client, self._client = self._client, None
        if client is not None:
            client.abandon()


class AsyncEventListener:
    """A task that calls a function with events, until it is stopped or its queue is closed."""

    def __init__(
        self,
        events: AsyncEvents,
        kinds: frozenset[str],
        callback: Callable[[Event], object],
        ended: Callable[[AsyncEventListener], object],
    ) -> None:
        """Start the task.

        Args:
            events: the events, entered on the running event loop.
            kinds: the kinds of events to pass on.
            callback: takes an event.
            ended: takes this listener when it ends.
        """
        self._events = events
        self._kinds = kinds
        self._callback = callback
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="bide-events")
        self._task.add_done_callback(lambda _: ended(self))

    @property
    def after(self) -> str:
        """The id of the last event that was read: `after=` continues after it."""
        return self._events.after

    @property
    def _is_here(self) -> bool:
        """Whether it listens on the running event loop."""
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

    async def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopping:
                try:
                    async for event in self._events:
                        pause = 0.0
                        await self._call(event)
                        if self._stopping:
                            break
                except Exception as error:
                    if self._stopping:
                        break
                    pause = min(2 * pause or 1.0, LONGEST_RECONNECT_PAUSE)
                    log.warning("listening to events goes on in %g s: %s", pause, error)
                    await asyncio.sleep(pause)
        finally:
            await self._events.__aexit__()

    async def _call(self, event: Event) -> None:
        if event.kind == GAP and GAP not in self._kinds:
            log.warning("events before %s were lost", event.id)
            return
        try:
            outcome = self._callback(event)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception(
                "the callback for %s of %s raised", event.kind, short_id(event.job_id or "")
            )


async def stop_all(listeners: Iterable[AsyncEventListener]) -> None:
    """Stop all listeners of this event loop together: all goodbyes take as long as one."""
    ending = [listener for listener in listeners if listener._is_here]
    for listener in ending:
        listener._begin_to_stop()
    for listener in ending:
        await listener.stop()
