"""The asyncio executor: the same commands, awaited; by one event loop at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry

from bide.command import Command
from bide.connection import (
    LONGEST_RECONNECT_PAUSE,
    RECONNECT_PAUSE,
    REPLY_TIMEOUT,
    hide_password,
    options,
    resolve_url,
)
from bide.dialogue import (
    PATIENCE,
    Call,
    Send,
    Situation,
    check_patience,
    dialogue,
    translate,
    unavailable,
)
from bide.errors import BideError
from bide.script import SERVER_CLOCK

T = TypeVar("T")

CONNECTIONS: Final = 50
"""Connections that one client opens at most; calls beyond that wait for one."""


class Client:
    """Runs commands on one server."""

    def __init__(
        self,
        url: str | None = None,
        *,
        patience: float = PATIENCE,
        reply_timeout: float = REPLY_TIMEOUT,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Set up; nothing is sent before the first command. Arguments as for the blocking one.

        Raises:
            UsageError: the URL is not of a form that bide takes.
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self._patience = check_patience(patience)
        self._clock = clock
        self._reached = False
        self._reply_timeout = reply_timeout
        pool = redis.asyncio.ConnectionPool.from_url(self.url, **options(self.url, Retry, None))
        self._make_connection: Callable[[], Any] = pool.make_connection
        self._idle: list[Any] = []
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, command: Command[T]) -> T:
        """Run one command.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        (result,) = await self.run_many([command])
        return result  # type: ignore[no-any-return]

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip.

        Raises:
            BideError: what the first that failed came to; the others have run.
        """
        results = await self.attempt_many(commands)
        for result in results:
            if isinstance(result, BideError):
                raise result
        return results

    async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; a `BideError` stands in place of each that failed."""
        if not commands:
            return []
        situation = Situation(self.where, self._clock, self._patience, self._reached)
        steps = dialogue(commands, situation)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Send):
                    step = steps.send(await self._send(step.calls))
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def pop(self, keys: Sequence[str], seconds: int) -> tuple[str, str] | None:
        """Wait for a wake hint on any of `keys`, for at most `seconds`; the key, and who pushed it.

        Raises:
            ServerUnavailable: the connection broke; it is replaced at the next call.
        """
        reply = await self._send([("BLPOP", *keys, seconds)])
        if isinstance(reply, Exception):
            raise unavailable(reply, self.where)
        first = reply[0]
        if isinstance(first, Exception):
            raise translate(first, self.where)
        return (first[0].decode(), first[1].decode("utf-8", "replace")) if first else None

    async def ping(self) -> None:
        """Make a round trip for its own sake; what comes of it does not matter."""
        await self._send([("PING",)])

    def listen(self, *channels: str) -> Listener:
        """Hear what scripts say over channels, for as long as the context lasts."""
        return Listener(self._make_connection, channels, self._reply_timeout)

    async def close(self) -> None:
        """Close all connections; the next command opens new ones."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()

    def abandon(self) -> None:
        """Drop all connections without a word; for a client whose event loop may have ended."""
        idle, self._idle = self._idle, []
        for connection in idle:
            writer, connection._writer = connection._writer, None
            transport = getattr(writer, "transport", None)
            if transport is None:
                continue
            try:
                transport.abort()
            except RuntimeError:  # the event loop has closed, and does no more of what this needs
                with contextlib.suppress(Exception):
                    transport._call_connection_lost(None)

    async def _send(self, calls: list[Call]) -> list[Any] | Exception:
        """One round trip, over a connection of its own for as long as it lasts.

        The client library's pipeline packs in Python and asks the socket first whether it is sound;
        here the packing is C, and a broken connection shows itself when it is used.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another `asyncio.run`: connections are of no use across loops
            self.abandon()
            self._slots = asyncio.Semaphore(CONNECTIONS)
            self._loop = loop
        async with self._slots:
            connection = self._idle.pop() if self._idle else self._make_connection()
            return await self._talk(connection, calls)

    async def _talk(self, connection: Any, calls: list[Call]) -> list[Any] | Exception:
        replies: list[Any] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._reply_timeout) as limit:
                if not connection.is_connected:
                    await connection.connect()
                packed = [hiredis.pack_command(call) for call in calls]
                await connection.send_packed_command(b"".join(packed), check_health=False)
                for _ in calls:
                    limit.reschedule(loop.time() + self._reply_timeout)
                    try:
                        replies.append(await connection.read_response())
                    except redis.ResponseError as error:
                        replies.append(error)
        except TimeoutError:
            await connection.disconnect(nowait=True)
            return redis.TimeoutError(
                f"no reply within {self._reply_timeout:g} s, or this process was held up"
            )
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            return error
        except BaseException:
            # A call that was cancelled leaves its reply in the socket: nobody else may read it.
            await connection.disconnect(nowait=True)
            raise
        self._idle.append(connection)
        self._reached = True
        return replies


class Listener:
    """What is said over some channels; a connection that breaks is replaced, and costs words."""

    def __init__(
        self, make_connection: Callable[[], Any], channels: Sequence[str], reply_timeout: float
    ) -> None:
        self._make_connection = make_connection
        self._channels = channels
        self._reply_timeout = reply_timeout
        self._connection: Any = None
        self._pause = RECONNECT_PAUSE

    async def __aenter__(self) -> Listener:
        await self._connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._drop()

    async def hear(self, text: str, until: float) -> None:
        """Return when `text` is said, at `until` (`time.monotonic()`), or when words were lost."""
        try:
            async with asyncio.timeout(until - time.monotonic()):
                while (said := await self.next()) is not None and said[1] != text:
                    pass
        except TimeoutError:
            pass

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
        except (redis.RedisError, OSError):
            await self._drop()
            return None

    async def _connect(self) -> None:
        self._connection = self._make_connection()
        try:
            async with asyncio.timeout(self._reply_timeout):
                await self._connection.connect()
                words: tuple[Any, ...] = ("SUBSCRIBE", *self._channels)
                call = hiredis.pack_command(words)
                await self._connection.send_packed_command(call, check_health=False)
                for _ in self._channels:
                    await self._connection.read_response()
            self._pause = RECONNECT_PAUSE
        except (redis.RedisError, OSError):
            self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
