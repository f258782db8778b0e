"""The asyncio executor: the same commands, awaited, by any number of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry

from bide.command import Command
from bide.connection import (
    GOODBYE,
    HINT_WAIT,
    REPLY_TIMEOUT,
    hide_password,
    options,
    resolve_url,
)
from bide.dialogue import (
    PATIENCE,
    Call,
    Entries,
    Send,
    Situation,
    check_patience,
    dialogue,
    read_entries,
    reading,
    translate,
    unavailable,
)
from bide.errors import BideError
from bide.listening import Hints, Listener, Subscription, Waiter, abort
from bide.loops import PerLoop
from bide.script import SERVER_CLOCK, load
from bide.sharing import Shared

T = TypeVar("T")

CONNECTIONS: Final = 50
"""Connections that one client opens at most on an event loop; calls beyond that wait for one."""


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
        self.answered = 0.0
        """When the server last answered (`time.monotonic()`); 0 for never."""
        self.answers = True
        """Whether the last round trip came to its end, if there was one."""
        self._reply_timeout = reply_timeout
        pool = redis.asyncio.ConnectionPool.from_url(self.url, **options(self.url, Retry, None))
        self._make_connection: Callable[[], Any] = pool.make_connection
        self._open = PerLoop(lambda: _Open(self.attempt_many), _let_go)

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
        situation = Situation(self.where, self._clock, self._patience, self.answered > 0)
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

    async def say_goodbye(self, command: Command[Any]) -> None:
        """Run a command that costs nothing if it is lost: within about a second, or not at all."""
        with contextlib.suppress(BideError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self.run(command)

    async def pop(self, keys: Sequence[str], seconds: int) -> tuple[str, str] | None:
        """Wait for a wake hint on any of `keys`, for at most `seconds`; the key, and who pushed it.

        Raises:
            ServerUnavailable: the connection broke; it is replaced at the next call.
        """
        reply = await self._send([("BLPOP", *keys, seconds)], seconds)
        if isinstance(reply, Exception):
            raise unavailable(reply, self.where)
        first = reply[0]
        if isinstance(first, Exception):
            raise translate(first, self.where)
        return (first[0].decode(), first[1].decode("utf-8", "replace")) if first else None

    async def read(self, stream: str, after: str, seconds: float) -> Entries | None:
        """The next entries of a stream behind an id; waits for one for at most `seconds`.

        Returns:
            Id and line of each, none if none came; None where the connection broke. The reply that
            was lost then is no loss: the same call brings it again.

        Raises:
            BideError: the server refused.
        """
        call = reading(stream, after, min(seconds, self._reply_timeout / 2))
        return read_entries(await self._send([call]), self.where)

    async def load(self, scripts: Sequence[str]) -> None:
        """Give the server these scripts, so that it knows them when they are called.

        Raises:
            BideError: it could not be reached, or refused.
        """
        calls: list[Call] = [("SCRIPT", "LOAD", load(s, self._clock).text) for s in scripts]
        replies = await self._send(calls)
        for reply in [replies] if isinstance(replies, Exception) else replies:
            if isinstance(reply, Exception):
                raise translate(reply, self.where)

    async def ping(self) -> None:
        """Make a round trip for its own sake; what comes of it does not matter."""
        await self._send([("PING",)])

    async def share(self, command: Command[T]) -> T:
        """Run one command, in a round trip shared with what others ask meanwhile.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        return await self._open.here.shared.run(command)

    def waiting_for(self, channel: str, text: str) -> Waiter:
        """Hear when a script says `text` over a channel, for as long as the context lasts.

        All who wait on one event loop share a subscription, which ends with the last of them.
        """

        def subscription() -> Subscription:
            subscriptions = self._open.here.subscriptions
            found = subscriptions.get(channel)
            if found is None or found.ended:
                found = subscriptions[channel] = Subscription(self.listen(channel))
            return found

        return Waiter(subscription, text)

    def listen(self, *channels: str) -> Listener:
        """Hear what scripts say over channels, for as long as the context lasts."""
        return Listener(self._make_connection, channels, self._reply_timeout)

    def hints(self, key: str) -> Hints:
        """Hear the wake hints on a list, over a connection of its own; close it at the end."""
        return Hints(lambda: self.pop([key], HINT_WAIT))

    async def close(self) -> None:
        """Close all connections of this event loop; the next command opens new ones."""
        self._open.leave_closed()
        opened = self._open.here
        for subscription in [*opened.subscriptions.values()]:
            await subscription.end()
        await opened.shared.settled()
        idle, opened.idle = opened.idle, []
        for connection in idle:
            await connection.disconnect()

    def abandon(self) -> None:
        """Drop all connections without a word; for a client whose event loops may have ended."""
        for loop, opened in self._open.take_all():
            _let_go(loop, opened)

    async def _send(self, calls: list[Call], block: float = 0) -> list[Any] | Exception:
        """One round trip, over a connection of its own for as long as it lasts.

        A reply may take `block` seconds longer than others.

        The client library's pipeline packs in Python and asks the socket first whether it is sound;
        here the packing is C, and a broken connection shows itself when it is used.
        """
        opened = self._open.here
        async with opened.slots:
            try:
                connection = opened.idle.pop() if opened.idle else self._make_connection()
            except OSError as error:  # the library reads a file of its own, once
                return error
            replies = await self._talk(opened, connection, calls, self._reply_timeout + block)
            self.answers = not isinstance(replies, Exception)
            return replies

    async def _talk(
        self, opened: _Open, connection: Any, calls: list[Call], patience: float
    ) -> list[Any] | Exception:
        replies: list[Any] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience) as limit:
                if not connection.is_connected:
                    await connection.connect()
                packed = [hiredis.pack_command(call) for call in calls]
                await connection.send_packed_command(b"".join(packed), check_health=False)
                for _ in calls:
                    limit.reschedule(loop.time() + patience)
                    try:
                        replies.append(await connection.read_response())
                    except redis.ResponseError as error:
                        replies.append(error)
        except TimeoutError:
            await connection.disconnect(nowait=True)
            return redis.TimeoutError(
                f"no reply within {patience:g} s, or this process was held up"
            )
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            return error
        except RuntimeError as error:  # uvloop's, where the other side has closed the connection
            abort(connection)
            return redis.ConnectionError(str(error))
        except BaseException:
            # A call that was cancelled leaves its reply in the socket: nobody else may read it.
            await connection.disconnect(nowait=True)
            raise
        self.answered = time.monotonic()
        if opened.left:
            await connection.disconnect(nowait=True)
        else:
            opened.idle.append(connection)
        return replies


class _Open:
    """What a client has open on one event loop."""

    def __init__(
        self, attempt_many: Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]
    ) -> None:
        self.idle: list[Any] = []
        self.slots = asyncio.Semaphore(CONNECTIONS)
        self.shared = Shared(attempt_many)
        self.subscriptions: dict[str, Subscription] = {}
        self.left = False
        """Whether it is used no more, so that what comes back is to be closed."""

    def abandon(self) -> None:
        """Drop it all without a word."""
        self.left = True
        for subscription in self.subscriptions.values():
            subscription.abandon()
        idle, self.idle = self.idle, []
        for connection in idle:
            abort(connection)


def _let_go(loop: asyncio.AbstractEventLoop, opened: _Open) -> None:
    """Abandon what is open on an event loop, in that loop's thread if it runs in another."""
    if loop.is_running() and loop is not asyncio._get_running_loop():
        try:
            loop.call_soon_threadsafe(opened.abandon)
        except RuntimeError:  # it was closed just now
            opened.abandon()
    else:
        opened.abandon()
