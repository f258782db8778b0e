"""The asyncio executor: the same commands, awaited, by any number of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import redis
import redis.asyncio
from redis import exceptions as lib
from redis.asyncio.retry import Retry

from bide.client.coalesce import Coalescer, PerLoop
from bide.client.errors import map_error, unavailable, unwrapped
from bide.client.execute import (
    RETRY_FOR,
    Answer,
    Call,
    ClientState,
    DeadlineExceeded,
    Entries,
    Route,
    Send,
    ToNode,
    check_retry_for,
    execute,
    is_late,
    pack,
    read_entries,
    reading,
)
from bide.client.pubsub import AsyncWaiter, AsyncWakeListener, Listener, Subscription, abort
from bide.client.topology import Delivery, Finding, NodeRequest, Surveying, topology_for
from bide.client.url import (
    GOODBYE,
    HINT_WAIT,
    REPLY_TIMEOUT,
    check_master,
    hide_password,
    options,
    resolve_url,
)
from bide.errors import BideError
from bide.protocol.command import Command
from bide.protocol.scripts import SERVER_CLOCK, load

T = TypeVar("T")

CONNECTIONS: Final = 50
"""Connections that one client opens at most on an event loop; calls beyond that wait for one."""


class AsyncClient:
    """Runs commands on one server, on a Cluster, or on the master of Sentinels."""

    def __init__(
        self,
        url: str | None = None,
        *,
        retry_for: float = RETRY_FOR,
        reply_timeout: float = REPLY_TIMEOUT,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Set up; nothing is sent before the first command. Arguments as for the blocking one.

        Raises:
            UsageError: the URL is not of a form that bide takes.
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self._patience = check_retry_for(retry_for)
        self._clock = clock
        self.answered = 0.0
        """When the server last answered (`time.monotonic()`); 0 for never."""
        self.answers = True
        """Whether the last round trip came to its end, if there was one."""
        self._reply_timeout = reply_timeout
        self.missed_scripts = 0
        """How often a server lacked scripts that were called: it may have restarted since."""
        self._routes = topology_for(self.url)
        self._makers: dict[str, Callable[[], Any]] = {}
        """By a node's URL, what makes a connection to it."""
        self._open = PerLoop(lambda: _Open(self.attempt_many), _dispose)

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
        situation = ClientState(self.where, self._clock, self._patience, self.answered > 0)
        steps = execute(commands, situation)
        only = self._routes.only
        step = next(steps)
        try:
            while True:
                if isinstance(step, Send):
                    self.missed_scripts += step.calls[0][0] == "SCRIPT"
                    if only is None:
                        delivery = self._routes.deliver(step.calls, step.routes)
                        step = steps.send(await self._drive(delivery, until=step.until))
                    else:
                        trip = NodeRequest(only, step.calls)
                        step = steps.send(await self._visit(trip, 0, step.until))
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def send_last(self, command: Command[Any]) -> None:
        """Run a command that costs nothing if it is lost: within about a second, or not at all."""
        with contextlib.suppress(BideError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self.run(command)

    async def pop(self, keys: Sequence[str], seconds: int) -> tuple[str, str] | None:
        """Wait for a wake hint on any of `keys`, for at most `seconds`; the key, and who pushed it.

        Raises:
            ServerUnavailable: the connection broke; it is replaced at the next call.
        """
        call: Call = ("BLPOP", *keys, seconds)
        reply = await self._drive(self._routes.deliver([call], [keys[0]]), seconds)
        if isinstance(reply, Exception):
            raise unavailable(reply, self.where)
        first = reply[0]
        if isinstance(first, Exception):
            raise map_error(first, self.where)
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
        return read_entries(await self._drive(self._routes.deliver([call], [stream])), self.where)

    async def load(self, scripts: Sequence[str], keys: Sequence[str]) -> None:
        """Give the nodes that have these keys some scripts, so that they know them when called.

        Raises:
            BideError: one could not be reached, or refused.
        """
        await self._load(scripts, keys)

    async def load_everywhere(self, scripts: Sequence[str]) -> None:
        """Give all nodes some scripts; raises as `load`."""
        nodes: list[str] | Exception = await self._drive(self._routes.masters())
        if isinstance(nodes, Exception):
            raise map_error(nodes, self.where)
        await self._load(scripts, [ToNode(node) for node in nodes])

    async def _load(self, scripts: Sequence[str], to: Sequence[Route]) -> None:
        texts = [load(script, self._clock).text for script in scripts]
        calls: list[Call] = [("SCRIPT", "LOAD", text) for _ in to for text in texts]
        routes = [route for route in to for _ in texts]
        replies = await self._drive(self._routes.deliver(calls, routes))
        for reply in [replies] if isinstance(replies, Exception) else replies:
            if isinstance(reply, Exception):
                raise map_error(reply, self.where)

    async def ping(self, key: str) -> None:
        """Make a round trip to the node of a key, for its own sake; it may fail."""
        await self._drive(self._routes.deliver([("PING",)], [key]))

    async def share(self, command: Command[T]) -> T:
        """Run one command, in a round trip shared with what others ask meanwhile.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        return await self._open.current.shared.run(command)

    def waiting_for(self, channel: str, text: str) -> AsyncWaiter:
        """Hear when a script says `text` over a channel, for as long as the context lasts.

        All who wait on one event loop share a subscription, which ends with the last of them.
        """

        def subscription() -> Subscription:
            subscriptions = self._open.current.subscriptions
            found = subscriptions.get(channel)
            if found is None or found.ended:
                found = subscriptions[channel] = Subscription(self.listen(channel))
            return found

        return AsyncWaiter(subscription, text)

    def listen(self, *channels: str) -> Listener:
        """Hear what scripts say over channels, for as long as the context lasts."""

        async def connection() -> Any:
            """One that is not connected yet, to the node that has the first channel's key."""
            found: str | Exception = await self._drive(self._routes.locate(channels[0]))
            if isinstance(found, Exception):
                raise found
            return self._maker(found)()

        return Listener(connection, self._routes.doubt, channels, self._reply_timeout)

    def hints(self, key: str) -> AsyncWakeListener:
        """Hear the wake hints on a list, over a connection of its own; close it at the end."""
        return AsyncWakeListener(lambda: self.pop([key], HINT_WAIT))

    async def close(self) -> None:
        """Close all connections of this event loop; the next command opens new ones."""
        self._open.dispose_closed()
        opened = self._open.current
        for subscription in [*opened.subscriptions.values()]:
            await subscription.end()
        await opened.shared.settled()
        for connection in opened.take_idle():
            await connection.disconnect()

    def abandon(self) -> None:
        """Drop all connections without a word; for a client whose event loops may have ended."""
        for loop, opened in self._open.take_all():
            _dispose(loop, opened)

    def _maker(self, node: str) -> Callable[[], Any]:
        """What makes a connection to a node.

        Raises:
            OSError: the library could not read a file that the URL names.
        """
        made = self._makers.get(node)
        if made is None:
            settings = options(node, Retry, None)
            if self._routes.must_be_master(node):
                settings["redis_connect_func"] = _connect_to_master
            pool = redis.asyncio.ConnectionPool.from_url(node, **settings)
            made = self._makers.setdefault(node, pool.make_connection)
        return made

    async def _drive(
        self, steps: Delivery | Finding | Surveying, block: float = 0, until: float | None = None
    ) -> Any:
        """Make the round trips that the routes ask for, up to a time; what they come to.

        A reply may take `block` seconds longer than others.
        """
        try:
            trips = next(steps)
            while True:
                talks = [
                    self._visit(trip, 0 if trip.is_question else block, until) for trip in trips
                ]
                one = len(talks) == 1
                answers = [await talks[0]] if one else await asyncio.gather(*talks)
                trips = steps.send(answers)
        except StopIteration as end:
            return end.value

    async def _visit(self, trip: NodeRequest, block: float, until: float | None) -> Answer:
        """One round trip, over a connection of its own for as long as it lasts.

        The client library's pipeline packs in Python and asks the socket first whether it is sound;
        here the packing is C, and a broken connection shows itself when it is used.
        """
        opened = self._open.current
        async with opened.slots:
            if is_late(until):  # it may have waited long for its turn
                return DeadlineExceeded()
            idle = opened.idle.setdefault(trip.node, [])
            try:
                connection = idle.pop() if idle else self._maker(trip.node)()
            except OSError as error:  # the library reads a file of its own, once
                return error
            answer = await self._talk(opened, connection, trip, self._reply_timeout + block)
            if not trip.is_question:
                self.answers = not isinstance(answer, Exception)
            if isinstance(answer, redis.ConnectionError) and trip.node != self.url:
                # It may be gone for good, and what is open to it would never be looked at again.
                for other in opened.idle.pop(trip.node, ()):
                    await other.disconnect(nowait=True)
            return answer

    async def _talk(
        self, opened: _Open, connection: Any, trip: NodeRequest, patience: float
    ) -> Answer:
        replies: list[Any] = []
        is_new = False
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience) as limit:
                if not connection.is_connected:
                    await connection.connect()
                    is_new = True
                await connection.send_packed_command(pack(trip.calls), check_health=False)
                for _ in trip.calls:
                    limit.reschedule(loop.time() + patience)
                    try:
                        replies.append(await connection.read_response())
                    except redis.ResponseError as error:
                        replies.append(unwrapped(error))
        except TimeoutError:
            await connection.disconnect(nowait=True)
            return redis.TimeoutError(
                f"no reply within {patience:g} s, or this process was held up"
            )
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            if isinstance(error.__cause__, lib.AuthenticationError):  # the library wraps that
                return error.__cause__
            is_closed = is_new and isinstance(error, redis.ConnectionError)
            return (is_closed and await _why(self._maker(trip.node)())) or error
        except RuntimeError as error:  # uvloop's, where the other side has closed the connection
            abort(connection)
            return redis.ConnectionError(str(error))
        except BaseException:
            # A call that was cancelled leaves its reply in the socket: nobody else may read it.
            await connection.disconnect(nowait=True)
            raise
        if not trip.is_question:
            self.answered = time.monotonic()
        if opened.left:
            await connection.disconnect(nowait=True)
        else:
            opened.idle.setdefault(trip.node, []).append(connection)
        return replies


async def _why(connection: Any) -> Exception | None:
    """Why a new connection was closed, if a word to another finds it out (`bide.client.pool`)."""
    try:
        async with asyncio.timeout(REPLY_TIMEOUT):
            await connection.connect()
            await connection.send_command("PING")
            await connection.read_response()
    except lib.AuthenticationError as error:
        return error
    except (redis.RedisError, OSError, RuntimeError):  # uvloop's, of a connection that has gone
        return None
    finally:
        await connection.disconnect(nowait=True)
    return None


class _Open:
    """What a client has open on one event loop."""

    def __init__(
        self, attempt_many: Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]
    ) -> None:
        self.idle: dict[str, list[Any]] = {}
        """Connections by their node's URL."""
        self.slots = asyncio.Semaphore(CONNECTIONS)
        self.shared = Coalescer(attempt_many)
        self.subscriptions: dict[str, Subscription] = {}
        self.left = False
        """Whether it is used no more, so that what comes back is to be closed."""

    def abandon(self) -> None:
        """Drop it all without a word."""
        self.left = True
        for subscription in self.subscriptions.values():
            subscription.abandon()
        for connection in self.take_idle():
            abort(connection)

    def take_idle(self) -> list[Any]:
        """All connections that nobody uses now, which from here on are the caller's."""
        idle, self.idle = self.idle, {}
        return [connection for some in idle.values() for connection in some]


async def _connect_to_master(connection: Any) -> None:
    """Greet a node; raises the library's errors if it is no master."""
    await connection.on_connect()
    await connection.send_command("ROLE")
    try:
        role = await connection.read_response()
    except redis.ResponseError as error:
        role = error
    check_master(role)


def _dispose(loop: asyncio.AbstractEventLoop, opened: _Open) -> None:
    """Abandon what is open on an event loop, in that loop's thread if it runs in another."""
    if loop.is_running() and loop is not asyncio._get_running_loop():
        try:
            loop.call_soon_threadsafe(opened.abandon)
        except RuntimeError:  # it was closed just now
            opened.abandon()
    else:
        opened.abandon()
