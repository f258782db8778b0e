"""Events of queues, for code on an event loop: an iterator over them, and listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from bide.client import aio
from bide.client.url import LONGEST_RECONNECT_PAUSE
from bide.errors import UsageError
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.job import GAP, Event
from bide.queue import loops
from bide.queue.event_reader import EventReader

log = Log("bide.model.events")


class AsyncEvents(loops.AsyncEventsSide):
    """An iterator over the events of a queue, from the moment the `async with` is entered."""

    def __init__(self, reader: EventReader, make_client: Callable[[], aio.AsyncClient]) -> None:
        super().__init__()
        self._reader = reader
        self._make_client = make_client

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
            raise UsageError("These events are being read already; ask queue.events() for others.")
        client = self._make_client()
        try:
            self._reader.held(await client.run(self._reader.hold()))
        except BaseException:
            await client.close()
            raise
        self._client = client
        return self

    async def __aexit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:  # a hold with a name expires after ten minutes
                if self._answers(client) and not self._reader.is_named:
                    await client.send_last(self._reader.release())
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
        reader = self._reader
        while (event := reader.next()) is None:
            if reader.is_over():
                raise StopAsyncIteration
            client = self._running_client()
            if reader.needs_renewal:
                reader.held(await client.run(reader.hold()))
            elif pause := reader.read(await client.read(reader.stream, reader.after, reader.wait)):
                await self._pause(pause)
        return event


class AsyncEventListener(loops.AsyncEventListenerSide):
    """A task that calls a function with events, until it is stopped or its queue is closed."""

    def __init__(
        self,
        events: AsyncEvents,
        kinds: frozenset[str],
        callback: Callable[[Event], object],
        ended: Callable[[AsyncEventListener], object],
    ) -> None:
        """Start it; `events` are entered, and `ended` takes this listener when it ends."""
        self._events = events
        self._kinds = kinds
        self._callback = callback
        self._start(self._run, ended)

    @property
    def after(self) -> str:
        """The id of the last event that was read: `after=` continues after it."""
        return self._events.after

    async def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopping:
                try:
                    async for event in self._events:
                        pause = 0.0
                        if not self._stopping:
                            await self._call(event)
                        if self._stopping:
                            break
                except Exception as error:  # also the error of a connection that was cut
                    if self._stopping:
                        break
                    pause = min(2 * pause or 1.0, LONGEST_RECONNECT_PAUSE)
                    log.warning("listening to events continues in %g s: %s", pause, error)
                    await self._pause(pause)
        finally:
            await self._events.__aexit__()

    async def _call(self, event: Event) -> None:
        if event.kind == GAP and GAP not in self._kinds:
            log.warning("events before %s were lost", event.id)
            return
        try:
            await self._hand_over(self._callback, event)
        except Exception:
            log.exception(
                "the callback for %s of %s raised", event.kind, short_id(event.job_id or "")
            )
