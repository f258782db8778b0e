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
    """What becomes of a queue's jobs, event by event, from where the `async with` begins."""

    def __init__(self, following: EventReader, make_client: Callable[[], aio.AsyncClient]) -> None:
        self._following = following
        self._make_client = make_client
        self._client: aio.AsyncClient | None = None
        self._steps = following.steps()
        self._todo: Any = None

    @property
    def after(self) -> str:
        """The id up to which events were read: `queue.events(after=...)` goes on behind it."""
        return self._following.after

    async def __aenter__(self) -> Self:
        """Hold the stream open.

        Raises:
            UsageError: it is held open already, by another `async with` for these events.
            BideError: the server cannot be reached, or refuses.
        """
        if self._client is not None:
            raise entered_already()
        client = self._make_client()
        try:
            self._following.began(await client.run(self._following.hold()))
        except BaseException:
            await client.close()
            raise
        self._client = client
        return self

    async def __aexit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                named = self._following.is_named
                if client.answers and not named:  # else it is let go of ten minutes later
                    await client.send_last(self._following.let_go())
            finally:
                await client.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; waits for it. Who cancels this loses no event: another call brings it.

        Raises:
            StopAsyncIteration: there was none for as long as the time-out; another call waits
                again.
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
            self._steps = self._following.steps()
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
        """Drop the connection without a word; the event loop may have ended."""
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
        """Begin.

        Args:
            events: have been entered, on the event loop that runs.
            kinds: those that are wanted.
            callback: takes an event.
            ended: takes this, at the end.
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
        """The id of the event that was read last: `after=` goes on behind it."""
        return self._events.after

    @property
    def _is_here(self) -> bool:
        """Whether it listens on the event loop that runs."""
        return self._loop is asyncio.get_running_loop()

    async def stop(self) -> None:
        """End it; a callback that is awaited is cancelled, unless it is this one that calls."""
        self._begin_to_stop()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])
            await self._events.__aexit__()  # where it was cancelled before it began

    def _begin_to_stop(self) -> None:
        """`stop`, without waiting; once, because it says goodbye to the server first."""
        if not self._stopping:
            self._stopping = True
            if self._task is not asyncio.current_task():
                self._task.cancel()

    def abandon(self) -> None:
        """End it without a word; the event loop may have ended."""
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


async def stop_all(listenings: Iterable[AsyncEventListener]) -> None:
    """Stop all that listen on this event loop, at once: all goodbyes take no longer than one."""
    ending = [listening for listening in listenings if listening._is_here]
    for listening in ending:
        listening._begin_to_stop()
    for listening in ending:
        await listening.stop()
