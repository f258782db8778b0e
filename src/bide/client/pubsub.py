"""What is heard over a connection of one's own, in code that blocks: wake hints, and words.

All who wait for words of one channel share one subscription. A task of its own reads it, and is
cancelled only when nobody waits any more: whoever cancels a read of the client library's has it
close the connection. Waiters wait on events, which are theirs to leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis

from bide.client.pool import shut
from bide.client.url import HINT_WAIT, LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE, REPLY_TIMEOUT
from bide.errors import BideError


class WakeListener:
    """Wake hints, as they come.

    A blocking call's own time-out is no clock: it fires up to a tenth of a second late. So the call
    stays outstanding for long, and who waits for its reply has a timer besides.
    """

    def __init__(
        self, locate: Callable[[], redis.Redis], doubt: Callable[[], None], key: str
    ) -> None:
        """Set up.

        Args:
            locate: finds the client library's client of the node that has the list.
            doubt: is told when that does not answer as it should.
            key: the list.
        """
        self._locate = locate
        self._doubt = doubt
        self._key = key
        self._connection: Any = None
        self._asks = False
        """Whether a call is outstanding."""
        self._answer_by = 0.0
        """When that has an answer at the latest, unless the server hangs (`time.monotonic()`)."""
        self._is_cut = False

    def wait(self, until: float) -> str | None:
        """Who pushed the next hint; None at `until` (`time.monotonic()`), or when some were lost.

        What came since the last time counts.
        """
        while True:
            try:
                if not self._asks:
                    self._ask()
                if self._is_cut:
                    return None
                by = min(until, self._answer_by)
                if not self._connection.can_read(timeout=max(0.0, by - time.monotonic())):
                    if by == until:
                        return None
                    raise redis.TimeoutError("no answer to BLPOP")
                hint = self._read()
            except (redis.RedisError, OSError):
                self._doubt()
                self._drop()
                if not self._is_cut:
                    time.sleep(max(0.0, min(RECONNECT_PAUSE, until - time.monotonic())))
                return None
            if hint is not None:
                return hint

    def close(self) -> bool:
        """Hear no more; whether a hint had come that nobody was told of."""
        came = False
        with suppress(redis.RedisError, OSError):
            came = self._asks and self._connection.can_read(timeout=0) and self._read() is not None
        self._drop()
        return came

    def cut(self) -> None:
        """Have `hear`, which waits in another thread, come back at once and for good."""
        self._is_cut = True
        shut(self._connection)

    def _ask(self) -> None:
        if self._connection is None:
            pool = self._locate().connection_pool
            self._connection = pool.connection_class(**pool.connection_kwargs)
            self._connection.connect()
        self._connection.send_command("BLPOP", self._key, HINT_WAIT)
        self._answer_by = time.monotonic() + HINT_WAIT + REPLY_TIMEOUT
        self._asks = True

    def _read(self) -> str | None:
        """Who pushed the hint that the reply has, if it has one."""
        self._asks = False
        reply = self._connection.read_response()
        return reply[1].decode("utf-8", "replace") if reply else None

    def _drop(self) -> None:
        self._asks = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()


class Waiter:
    """One who waits for a word; a connection that breaks is replaced, and costs words."""

    def __init__(
        self,
        locate: Callable[[], redis.Redis],
        doubt: Callable[[], None],
        channel: str,
        text: str,
    ) -> None:
        """Set up; `locate` and `doubt` as for `AsyncWakeListener`."""
        self._locate = locate
        self._doubt = doubt
        self._channel = channel
        self._text = text
        self._pubsub: Any = None
        self._pause = RECONNECT_PAUSE

    def __enter__(self) -> Waiter:
        self._connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self._drop()

    def wait(self, until: float) -> None:
        """Return when the word is said, at `until` (`time.monotonic()`), or when some were lost."""
        while (left := until - time.monotonic()) > 0:
            if self._pubsub is None:
                time.sleep(min(left, self._pause))
                self._connect()
                return
            try:
                message = self._pubsub.get_message(timeout=left)
            except (redis.RedisError, OSError):
                self._drop()
                continue
            if message and message["type"] == "message" and message["data"] == self._text.encode():
                return

    def _connect(self) -> None:
        try:
            self._pubsub = self._locate().pubsub()  # type: ignore[no-untyped-call]
            self._pubsub.subscribe(self._channel)
            if self._pubsub.get_message(timeout=REPLY_TIMEOUT) is None:
                raise redis.TimeoutError("no answer to SUBSCRIBE")
            self._pause = RECONNECT_PAUSE
        except (redis.RedisError, OSError):
            self._doubt()
            self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)
            self._drop()

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(redis.RedisError, OSError):
                pubsub.close()


class Listener:
    """What is said over some channels; a connection that breaks is replaced, and costs words."""

    def __init__(
        self,
        make_connection: Callable[[], Awaitable[Any]],
        doubt: Callable[[], None],
        channels: Sequence[str],
        reply_timeout: float,
    ) -> None:
        """Set up.

        Args:
            make_connection: makes one, not connected yet, to the node where to listen.
            doubt: is called when a node cannot be reached: the next may have to be another.
            channels: what to listen to.
            reply_timeout: seconds.
        """
        self._make_connection = make_connection
        self._doubt = doubt
        self._channels = channels
        self._reply_timeout = reply_timeout
        self._connection: Any = None
        self._pause = RECONNECT_PAUSE

    async def __aenter__(self) -> Listener:
        await self._connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._drop()

    async def next(self) -> tuple[str, str] | None:
        """The next channel and text; None after words may have been lost."""
        while self._connection is None:
            await asyncio.sleep(self._pause)
            await self._connect()
            return None
        try:
            while True:
                kind, *said = await self._connection.read_response()
                if kind == b"message":
                    channel, text = said
                    return channel.decode(), text.decode("utf-8", "replace")
        except (redis.RedisError, OSError, RuntimeError):  # the last is uvloop's, for a closed one
            await self._drop()
            return None

    def abandon(self) -> None:
        """Drop the connection without a word; the event loop may have ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            abort(connection)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._reply_timeout):
                self._connection = await self._make_connection()
                await self._connection.connect()
                words: tuple[Any, ...] = ("SUBSCRIBE", *self._channels)
                call = hiredis.pack_command(words)
                await self._connection.send_packed_command(call, check_health=False)
                for _ in self._channels:
                    await self._connection.read_response()
            self._pause = RECONNECT_PAUSE
        except (redis.RedisError, OSError, BideError, RuntimeError):  # the last is uvloop's
            self._doubt()
            self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)
            await self._drop()
        except BaseException:
            await self._drop()
            raise

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect(nowait=True)
            except RuntimeError:
                abort(connection)


class Subscription:
    """One listener on one channel, shared by all on one event loop who wait for a word of it."""

    def __init__(self, listener: Listener) -> None:
        """Begin; needs a running event loop."""
        self.begun = asyncio.Event()
        """Set once what is said is heard, or will be when the server can be reached."""
        self.ended = False
        self._listener = listener
        self._told: dict[str, set[asyncio.Event]] = {}
        self._task = asyncio.get_running_loop().create_task(self._listen())
        self._task.add_done_callback(self._over)

    def tell(self, text: str, event: asyncio.Event) -> None:
        """Set an event when `text` is said, and when words were lost."""
        self._told.setdefault(text, set()).add(event)

    async def tell_no_more(self, text: str, event: asyncio.Event) -> None:
        """Forget the event; the last one ends the subscription."""
        events = self._told.get(text, set())
        events.discard(event)
        if not events:
            self._told.pop(text, None)
        if not self._told:
            await self.end()

    async def end(self) -> None:
        """Let go of the connection; who still waits is told to look, and may subscribe anew."""
        self.ended = True
        self._task.cancel()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """`end`, for one whose event loop may have ended."""
        self.ended = True
        self._listener.abandon()
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            self._task.cancel()

    async def _listen(self) -> None:
        async with self._listener:
            self.begun.set()
            while True:
                said = await self._listener.next()
                if said is None:
                    self._tell_all()
                else:
                    for event in self._told.get(said[1], ()):
                        event.set()

    def _over(self, _task: asyncio.Task[None]) -> None:
        self.ended = True
        self.begun.set()
        self._tell_all()

    def _tell_all(self) -> None:
        for events in self._told.values():
            for event in events:
                event.set()


class AsyncWaiter:
    """One who waits for a word, for as long as the context lasts."""

    def __init__(self, subscribe: Callable[[], Subscription], text: str) -> None:
        """Set up.

        Args:
            subscribe: the subscription that all share; a new one if it has ended.
            text: the word.
        """
        self._subscribe = subscribe
        self._text = text
        self._told = asyncio.Event()

    async def __aenter__(self) -> AsyncWaiter:
        await self._join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._subscription.tell_no_more(self._text, self._told)

    async def wait(self, until: float) -> None:
        """Return when the word is said, at `until` (`time.monotonic()`), or when some were lost.

        What was said since the last time counts: whoever returns from here is to look.
        """
        if self._subscription.ended:  # the client was closed; words may have been lost
            await self._join()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await self._told.wait()
        self._told.clear()

    async def _join(self) -> None:
        self._subscription = subscription = self._subscribe()
        subscription.tell(self._text, self._told)
        try:
            await subscription.begun.wait()
        except BaseException:
            await subscription.tell_no_more(self._text, self._told)
            raise


class AsyncWakeListener:
    """Wake hints, as they come.

    A blocking call's own time-out is no clock: it fires up to a tenth of a second late. So the call
    stays outstanding for long, and who waits for its reply has a timer besides.
    """

    def __init__(self, pop: Callable[[], Awaitable[tuple[str, str] | None]]) -> None:
        """Set up; `pop` waits long for a hint, and returns the list and who pushed it."""
        self._pop = pop
        self._asked: asyncio.Future[tuple[str, str] | None] | None = None

    async def wait(self, until: float) -> str | None:
        """Who pushed the next hint; None at `until` (`time.monotonic()`), or when some were lost.

        What came since the last time counts.
        """
        while True:
            asked = self._asked = self._asked or asyncio.ensure_future(self._pop())
            await asyncio.wait([asked], timeout=max(0.0, until - time.monotonic()))
            if not asked.done():
                return None
            self._asked = None
            try:
                hint = asked.result()
            except BideError:
                await asyncio.sleep(max(0.0, min(RECONNECT_PAUSE, until - time.monotonic())))
                return None
            if hint is not None:
                return hint[1]

    async def close(self) -> bool:
        """Hear no more; whether a hint had come that nobody was told of."""
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        asked.cancel()
        (end,) = await asyncio.gather(asked, return_exceptions=True)
        return isinstance(end, tuple)


def abort(connection: Any) -> None:
    """Drop a connection of the client library's whose event loop may have ended."""
    writer, connection._writer = connection._writer, None
    transport = getattr(writer, "transport", None)
    if transport is None:
        return
    try:
        transport.abort()
    except RuntimeError:  # the event loop has closed, and does no more of what this needs
        with contextlib.suppress(Exception):
            transport._call_connection_lost(None)
