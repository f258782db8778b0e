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
    ClientCore,
    DeadlineExceeded,
    Encoded,
    Entries,
    Route,
    Send,
    ToNode,
    calls_of,
    execute,
    first_error,
    is_late,
    pack,
    read_entries,
    reading,
)
from bide.client.pubsub import LOST, AsyncWaiter, AsyncWakeListener, Listener, Subscription, abort
from bide.client.topology import Delivery, Finding, NodeRequest, Surveying, topology_for
from bide.client.url import (
    GOODBYE,
    REPLY_TIMEOUT,
    WAKE_WAIT,
    check_master,
    options,
)
from bide.errors import BideError, UsageError
from bide.protocol.commands import Command
from bide.protocol.scripts import SERVER_CLOCK, load

T = TypeVar("T")

CONNECTIONS: Final = 50
"""Maximum connections of one client on an event loop; further calls wait for a free one."""

MOST_SHARED: Final = 100
"""Maximum commands of callers that share a round trip, which bounds the size of a reply."""


class AsyncClient(ClientCore):
    """Runs commands on one server, on a Cluster, or on the master of Sentinels."""

    def __init__(
        self,
        url: str | None = None,
        *,
        retry_for: float = RETRY_FOR,
        reply_timeout: float = REPLY_TIMEOUT,
        clock: str = SERVER_CLOCK,
    ) -> None:
        super().__init__(url, retry_for, reply_timeout, clock)
        self.answered = 0.0
        """When the server last answered (`time.monotonic()`); 0 for never."""
        self.missed_scripts = 0
        """Number of times that a server lacked a script: it may have restarted."""
        self._routes = topology_for(self.url)
        self._makers: dict[str, Callable[[], Any]] = {}
        """By a node's URL, the function that makes a connection to it."""
        self._open = PerLoop(lambda: _Open(self.attempt_many), _dispose)

    async def run(self, command: Command[T]) -> T:
        """Run one command, or raise its error."""
        (result,) = await self.run_many([command])
        return result  # type: ignore[no-any-return]

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; raise the first error, after all have run."""
        return first_error(await self.attempt_many(commands))

    async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; a `BideError` stands in place of each that failed."""
        if not commands:
            return []
        encoded = commands.encoded if isinstance(commands, Encoded) else None
        steps = execute(commands, self._state)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Send):
                    self.missed_scripts += step.calls[0][0] == "SCRIPT"
                    sent = self._send(step.calls, step.routes, until=step.until, encoded=encoded)
                    step, encoded = steps.send(await sent), None
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def encode(self, commands: Sequence[Command[Any]]) -> Encoded:
        """Encode commands that wait for no durability, before it is time to send them.

        With several servers, the calls can only be encoded once their nodes are known.
        """
        is_one = self._routes.only is not None
        return Encoded(commands, pack(calls_of(commands, self._clock)) if is_one else None)

    async def send_last(self, command: Command[Any]) -> None:
        """Run a command that may be lost: within about 1 s, or not at all."""
        with contextlib.suppress(BideError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self.run(command)

    async def pop(self, keys: Sequence[str], seconds: int) -> tuple[str, str] | None:
        """Wait up to `seconds` for a wake-up message on any of `keys`; return key and sender.

        After `ServerUnavailable`, the next call opens another connection.
        """
        call: Call = ("BLPOP", *keys, seconds)
        reply = await self._send([call], [keys[0]], seconds)
        if isinstance(reply, Exception):
            raise unavailable(reply, self.where)
        first = reply[0]
        if isinstance(first, Exception):
            raise map_error(first, self.where)
        return (first[0].decode(), first[1].decode("utf-8", "replace")) if first else None

    async def read(self, stream: str, after: str, seconds: float) -> Entries | None:
        """Read the entries of a stream after an id; wait up to `seconds` for the first.

        Return the id and line of each; None if the connection broke. Then nothing is lost, because
        the same call reads the same entries again.
        """
        call = reading(stream, after, min(seconds, self._reply_timeout / 2))
        return read_entries(await self._send([call], [stream]), self.where)

    async def load_everywhere(self, scripts: Sequence[str]) -> None:
        """Load scripts on all nodes."""
        nodes: list[str] | Exception = await self._drive(self._routes.masters())
        if isinstance(nodes, Exception):
            raise map_error(nodes, self.where)
        await self.load(scripts, [ToNode(node) for node in nodes])

    async def load(self, scripts: Sequence[str], to: Sequence[Route]) -> None:
        """Load scripts on nodes, or on those that have these keys."""
        texts = [load(script, self._clock).text for script in scripts]
        calls: list[Call] = [("SCRIPT", "LOAD", text) for _ in to for text in texts]
        routes = [route for route in to for _ in texts]
        replies = await self._send(calls, routes)
        for reply in [replies] if isinstance(replies, Exception) else replies:
            if isinstance(reply, Exception):
                raise map_error(reply, self.where)

    async def ping(self, key: str) -> None:
        """Make an empty round trip to the node of a key; errors are ignored."""
        await self._send([("PING",)], [key])

    async def share(self, command: Command[T]) -> T:
        """Run one command, in a round trip that concurrent callers share."""
        result: T = await self._open.current.shared.run(command)
        return result

    def waiting_for(self, channel: str, text: str) -> AsyncWaiter:
        """Return a context that waits until a script publishes `text` on a channel.

        All waiters on one event loop share a subscription, which ends with the last waiter.
        """

        def subscription() -> Subscription:
            subscriptions = self._open.current.subscriptions
            found = subscriptions.get(channel)
            if found is None or found.ended:
                found = subscriptions[channel] = Subscription(self.listen(channel))
            return found

        return AsyncWaiter(subscription, text)

    def listen(self, *channels: str) -> Listener:
        """Return a context that reads what scripts publish on channels."""

        async def connection() -> Any:
            """An unconnected connection to the node that has the first channel's key."""
            found: str | Exception = await self._drive(self._routes.locate(channels[0]))
            if isinstance(found, Exception):
                raise found
            return self._maker(found)()

        return Listener(connection, self._routes.doubt, channels, self._reply_timeout)

    def wake_listener(self, key: str) -> AsyncWakeListener:
        """Listen for wake-up messages on a list, over a connection of its own; close it later."""
        return AsyncWakeListener(lambda: self.pop([key], WAKE_WAIT))

    async def close(self) -> None:
        """Close all connections of this event loop; the next command opens new ones.

        The connection of a call in flight is closed when the call ends.
        """
        self._open.dispose_closed()
        opened = self._open.current
        for subscription in [*opened.subscriptions.values()]:
            await subscription.end()
        await opened.shared.settled()
        for connection in opened.take_idle():
            await connection.disconnect()

    def abandon(self) -> None:
        """Drop all connections without telling the server; their event loops may have ended."""
        for loop, opened in self._open.take_all():
            _dispose(loop, opened)

    def _maker(self, node: str) -> Callable[[], Any]:
        """Return a function that makes a connection to a node."""
        made = self._makers.get(node)
        if made is None:
            settings = options(node, Retry, None)
            if self._routes.must_be_master(node):
                settings["redis_connect_func"] = _connect_to_master
            pool = redis.asyncio.ConnectionPool.from_url(**settings)
            made = self._makers.setdefault(node, pool.make_connection)
        return made

    async def _send(
        self,
        calls: list[Call],
        routes: Sequence[Route],
        block: float = 0,
        until: float | None = None,
        encoded: bytes | None = None,
    ) -> Answer:
        """Send each call to the node of its route; `block` and `until` are those of `_drive`.

        `encoded` are the same calls in bytes, for one server.
        """
        only = self._routes.only
        if only is None:
            answer: Answer = await self._drive(self._routes.deliver(calls, routes), block, until)
            return answer
        return await self._visit(NodeRequest(only, calls, encoded=encoded), block, until)

    async def _drive(
        self, steps: Delivery | Finding | Surveying, block: float = 0, until: float | None = None
    ) -> Any:
        """Make the round trips of the topology until a deadline; return the result.

        `block` is the extra time for a reply, in seconds.
        """
        try:
            requests = next(steps)
            while True:
                talks = [
                    self._visit(request, 0 if request.is_question else block, until)
                    for request in requests
                ]
                one = len(talks) == 1
                answers = [await talks[0]] if one else await asyncio.gather(*talks)
                requests = steps.send(answers)
        except StopIteration as end:
            return end.value

    async def _visit(self, request: NodeRequest, block: float, until: float | None) -> Answer:
        """Make one round trip over a connection that no other call uses meanwhile.

        The client library's pipeline packs in Python and checks the socket first. Here the packing
        is in C, and a broken connection is noticed when it is used.
        """
        opened = self._open.current
        kept = opened.idle
        async with contextlib.nullcontext() if block else opened.slots:
            if is_late(until):  # it may have waited long for a free connection
                return DeadlineExceeded()
            idle = opened.idle.setdefault(request.node, [])
            try:
                connection = idle.pop() if idle else self._maker(request.node)()
            except OSError as error:  # the library could not read a file that the URL names
                return error
            answer = await self._talk(connection, request, self._reply_timeout + block)
            if not request.is_question:
                self.answers = not isinstance(answer, Exception)
            if isinstance(answer, redis.ConnectionError | redis.TimeoutError):
                # The node may never come back, and its idle connections would stay open.
                for other in opened.idle.pop(request.node, ()):
                    await other.disconnect(nowait=True)
            elif opened.idle is not kept:  # the client was closed meanwhile
                await connection.disconnect(nowait=True)
            elif not isinstance(answer, Exception) and connection.is_connected:
                opened.idle.setdefault(request.node, []).append(connection)
            return answer

    async def _talk(self, connection: Any, request: NodeRequest, reply_timeout: float) -> Answer:
        replies: list[Any] = []
        is_new = False
        deadline = _ReplyDeadline(connection, reply_timeout)
        try:
            if not connection.is_connected:
                async with asyncio.timeout(reply_timeout):
                    await connection.connect()
                is_new = True
            deadline.start()
            await connection.send_packed_command(
                request.encoded or pack(request.calls), check_health=False
            )
            deadline.replied_at = time.monotonic()
            for _ in request.calls:
                try:
                    replies.append(await connection.read_response())
                except redis.ResponseError as error:
                    replies.append(unwrapped(error))
                deadline.replied_at = time.monotonic()
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            if deadline.has_passed or isinstance(error, TimeoutError):
                return redis.TimeoutError(
                    f"no reply within {reply_timeout:g} s, or this process was held up"
                )
            if isinstance(error.__cause__, lib.AuthenticationError | UsageError):
                return error.__cause__  # the library wraps it
            is_closed = is_new and isinstance(error, redis.ConnectionError)
            return (is_closed and await _why(self._maker(request.node)())) or error
        except RuntimeError as error:  # uvloop's, where the other side has closed the connection
            abort(connection)
            return redis.ConnectionError(str(error))
        except BaseException:
            # The reply to a cancelled call is still to come: the connection cannot be reused.
            await connection.disconnect(nowait=True)
            raise
        finally:
            deadline.end()
        if not request.is_question:
            self.answered = time.monotonic()
            if not self._state.reached:
                self._state = self._state._replace(reached=True)
        return replies


class _ReplyDeadline:
    """Breaks a connection on which no reply comes in time.

    `asyncio.timeout`, moved after each reply, runs several times as many functions. After a pause
    of the process, that delays the start of a job.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        """Set up: to send the calls, and then each reply, may take so many seconds."""
        self.replied_at = 0.0
        """When the calls were sent, or the latest reply came (`time.monotonic()`)."""
        self.has_passed = False
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Expect a reply from now on."""
        self.replied_at = time.monotonic()
        self._wait(self._seconds)

    def end(self) -> None:
        """Expect no more replies."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self.replied_at + self._seconds - time.monotonic()
        if left > 0:
            self._wait(left)
        else:
            self.has_passed = True
            abort(self._connection)


async def _why(connection: Any) -> Exception | None:
    """Return why a new connection was closed, if a second one shows it (`bide.client.blocking`)."""
    try:
        async with asyncio.timeout(REPLY_TIMEOUT):
            await connection.connect()
            await connection.send_command("PING")
            await connection.read_response()
    except lib.AuthenticationError as error:
        return error
    except LOST:
        return None
    finally:
        await connection.disconnect(nowait=True)
    return None


class _Open:
    """The connections and subscriptions of a client on one event loop."""

    def __init__(
        self, attempt_many: Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]
    ) -> None:
        self.idle: dict[str, list[Any]] = {}
        """Connections by their node's URL."""
        self.slots = asyncio.Semaphore(CONNECTIONS)
        self.shared: Coalescer[Command[Any], Any] = Coalescer(attempt_many, MOST_SHARED)
        self.subscriptions: dict[str, Subscription] = {}

    def abandon(self) -> None:
        """Drop all connections without telling the server."""
        for subscription in self.subscriptions.values():
            subscription.abandon()
        for connection in self.take_idle():
            abort(connection)

    def take_idle(self) -> list[Any]:
        """Remove and return all idle connections."""
        idle, self.idle = self.idle, {}
        return [connection for some in idle.values() for connection in some]


async def _connect_to_master(connection: Any) -> None:
    """Log in to a node; raise the library's error if the node is not a master."""
    await connection.on_connect()
    await connection.send_command("ROLE")
    try:
        role = await connection.read_response()
    except redis.ResponseError as error:
        role = error
    check_master(role)


def _dispose(loop: asyncio.AbstractEventLoop, opened: _Open) -> None:
    """Abandon the connections of an event loop, in its thread if it still runs."""
    if loop.is_running() and loop is not asyncio._get_running_loop():
        try:
            loop.call_soon_threadsafe(opened.abandon)
        except RuntimeError:  # it was just closed
            opened.abandon()
    else:
        opened.abandon()
