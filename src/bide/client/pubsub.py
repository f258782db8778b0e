"""Listeners that need a connection of their own: wake-up messages, and messages on channels.

All waiters of a channel on one event loop share a subscription. A task of its own reads it. The
task is cancelled only when there are no waiters left, because the client library closes a
connection whose read is cancelled. Waiters wait on `asyncio.Event`s, which they can leave at any
time.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import hiredis
import redis

from bide.client.url import LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE, REPLY_TIMEOUT, WAKE_WAIT
from bide.errors import BideError

CLOSED: Final = (redis.RedisError, OSError, TypeError, ValueError, AttributeError)
"""Errors of a blocking connection that broke; the last three if another thread closes it."""

LOST: Final = (redis.RedisError, OSError, RuntimeError)
"""Errors of an awaited connection that broke; uvloop raises the last for one that is closed."""


class WakeListener:
    """Reads wake-up messages.

    The server ends a blocking call up to 0.1 s after its time-out. So one call stays in flight for
    long, and the waiter has a more precise timer of its own.
    """

    def __init__(
        self, locate: Callable[[], redis.Redis], doubt: Callable[[], None], key: str
    ) -> None:
        """Set up.

        `locate` finds the client library's client of the node that has the list. `doubt` is called
        if that node does not answer as it should.
        """
        self._locate = locate
        self._doubt = doubt
        self._key = key
        self._connection: Any = None
        self._asks = False
        """Whether a call is in flight."""
        self._answer_by = 0.0
        """The latest time of its reply, unless the server hangs (`time.monotonic()`)."""
        self._is_cut = False

    def wait(self, until: float) -> str | None:
        """Return the sender of the next message; None at `until`, or if messages may be lost.

        `until` is a `time.monotonic()`. A message that came since the last call counts.
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
                message = self._read()
            except (redis.RedisError, OSError):
                self._doubt()
                self._drop()
                if not self._is_cut:
                    time.sleep(max(0.0, min(RECONNECT_PAUSE, until - time.monotonic())))
                return None
            if message is not None:
                return message

    def close(self) -> bool:
        """Stop listening; return whether there was an unread message."""
        came = False
        with suppress(redis.RedisError, OSError):
            came = self._asks and self._connection.can_read(timeout=0) and self._read() is not None
        self._drop()
        return came

    def cut(self) -> None:
        """Interrupt a `wait` in another thread; later calls return at once too."""
        self._is_cut = True
        shut(self._connection)

    def _ask(self) -> None:
        if self._connection is None:
            pool = self._locate().connection_pool
            self._connection = pool.connection_class(**pool.connection_kwargs)
            self._connection.connect()
        self._connection.send_command("BLPOP", self._key, WAKE_WAIT)
        self._answer_by = time.monotonic() + WAKE_WAIT + REPLY_TIMEOUT
        self._asks = True

    def _read(self) -> str | None:
        """Return the sender of the message in the reply, if there is one."""
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
    """Waits for a text on a channel; after a broken connection, messages may be lost."""

    def __init__(
        self,
        locate: Callable[[], redis.Redis],
        doubt: Callable[[], None],
        channel: str,
        text: str,
    ) -> None:
        """Set up; `locate` and `doubt` as for `WakeListener`."""
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
        """Return on the text, at `until` (`time.monotonic()`), or if messages may be lost."""
        while (left := until - time.monotonic()) > 0:
            if self._pubsub is None:
                time.sleep(min(left, self._pause))
                self._connect()
                return
            try:
                message = self._pubsub.get_message(timeout=left)
            except CLOSED:
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
            with suppress(*CLOSED):
                pubsub.close()


class Listener:
    """Reads messages on channels; after a broken connection, messages may be lost."""

    def __init__(
        self,
        make_connection: Callable[[], Awaitable[Any]],
        doubt: Callable[[], None],
        channels: Sequence[str],
        reply_timeout: float,
    ) -> None:
        """Set up; `doubt` is called if a node cannot be reached: another may be the right one."""
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
        """Return the next channel and text; None if messages may be lost."""
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
        except LOST:
            await self._drop()
            return None

    def abandon(self) -> None:
        """Drop the connection without telling the server; the event loop may have ended."""
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
        except (*LOST, BideError):
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
    """A listener on one channel, shared by all waiters on one event loop."""

    def __init__(self, listener: Listener) -> None:
        """Start the task; needs a running event loop."""
        self.begun = asyncio.Event()
        """Set once it listens, or will listen as soon as the server can be reached."""
        self.ended = False
        self._listener = listener
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._task = asyncio.get_running_loop().create_task(self._listen())
        self._task.add_done_callback(self._over)

    def add_waiter(self, text: str, event: asyncio.Event) -> None:
        """Set an event when `text` arrives, and when messages may be lost."""
        self._waiters.setdefault(text, set()).add(event)

    async def remove_waiter(self, text: str, event: asyncio.Event) -> None:
        """Remove the event; the last one ends the subscription."""
        events = self._waiters.get(text, set())
        events.discard(event)
        if not events:
            self._waiters.pop(text, None)
        if not self._waiters:
            await self.end()

    async def end(self) -> None:
        """Close the connection; remaining waiters wake up, and may subscribe again."""
        self.ended = True
        self._task.cancel()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """End the subscription if its event loop may have ended."""
        self.ended = True
        self._listener.abandon()
        with suppress(RuntimeError):  # the event loop has closed
            self._task.cancel()

    async def _listen(self) -> None:
        async with self._listener:
            self.begun.set()
            while True:
                said = await self._listener.next()
                if said is None:
                    self._wake_all()
                else:
                    for event in self._waiters.get(said[1], ()):
                        event.set()

    def _over(self, _task: asyncio.Task[None]) -> None:
        self.ended = True
        self.begun.set()
        self._wake_all()

    def _wake_all(self) -> None:
        for events in self._waiters.values():
            for event in events:
                event.set()


class AsyncWaiter:
    """Waits for a text on a channel while the context lasts."""

    def __init__(self, subscribe: Callable[[], Subscription], text: str) -> None:
        """Set up; `subscribe` returns the shared subscription, or a new one if it has ended."""
        self._subscribe = subscribe
        self._text = text
        self._event = asyncio.Event()

    async def __aenter__(self) -> AsyncWaiter:
        await self._join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._subscription.remove_waiter(self._text, self._event)

    async def wait(self, until: float) -> None:
        """Return on the text, at `until` (`time.monotonic()`), or if messages may be lost.

        A message since the last call counts. The caller has to check the state in any case.
        """
        if self._subscription.ended:  # the client was closed; messages may be lost
            await self._join()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await self._event.wait()
        self._event.clear()

    async def _join(self) -> None:
        self._subscription = subscription = self._subscribe()
        subscription.add_waiter(self._text, self._event)
        try:
            await subscription.begun.wait()
        except BaseException:
            await subscription.remove_waiter(self._text, self._event)
            raise


class AsyncWakeListener:
    """Reads wake-up messages.

    The server ends a blocking call up to 0.1 s after its time-out. So one call stays in flight for
    long, and the waiter has a more precise timer of its own.
    """

    def __init__(self, pop: Callable[[], Awaitable[tuple[str, str] | None]]) -> None:
        """Set up; `pop` waits long for a message, and returns the list and the sender."""
        self._pop = pop
        self._popping: asyncio.Future[tuple[str, str] | None] | None = None

    async def wait(self, until: float) -> str | None:
        """Return the sender of the next message; None at `until`, or if messages may be lost.

        `until` is a `time.monotonic()`. A message that came since the last call counts.
        """
        while True:
            popping = self._popping = self._popping or asyncio.ensure_future(self._pop())
            await asyncio.wait([popping], timeout=max(0.0, until - time.monotonic()))
            if not popping.done():
                return None
            self._popping = None
            try:
                message = popping.result()
            except BideError:
                await asyncio.sleep(max(0.0, min(RECONNECT_PAUSE, until - time.monotonic())))
                return None
            if message is not None:
                return message[1]

    async def close(self) -> bool:
        """Stop listening; return whether there was an unread message."""
        popping, self._popping = self._popping, None
        if popping is None:
            return False
        popping.cancel()
        (end,) = await asyncio.gather(popping, return_exceptions=True)
        return isinstance(end, tuple)


def abort(connection: Any) -> None:
    """Drop a connection of the client library's whose event loop may have ended."""
    writer, connection._writer = connection._writer, None
    transport = getattr(writer, "transport", None)
    if transport is None:
        return
    try:
        transport.abort()
    except RuntimeError:  # the event loop has closed, and cannot run the rest of this
        with suppress(Exception):
            transport._call_connection_lost(None)


def shut(connection: Any) -> None:
    """Interrupt another thread that reads from a connection.

    That thread closes the connection. If this closed it during the read, the next opened socket
    could get the same file descriptor, and the reader would take its bytes.
    """
    opened = getattr(connection, "_sock", None)
    if opened is not None:
        with suppress(OSError):  # not TLS's method, which would send a message first
            socket.socket.shutdown(opened, socket.SHUT_RDWR)
