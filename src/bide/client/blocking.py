"""The blocking executor: runs commands over a pool of connections; safe to share by threads."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from typing import Any, TypeVar

import redis
from redis.retry import Retry

from bide.client.errors import unwrapped
from bide.client.execute import (
    RETRY_FOR,
    Answer,
    ClientState,
    DeadlineExceeded,
    Dialogue,
    Entries,
    Send,
    Sleep,
    check_retry_for,
    execute,
    is_late,
    read_entries,
    reading,
)
from bide.client.pool import Connections, InFlightCalls
from bide.client.pubsub import Waiter, WakeListener
from bide.client.topology import Delivery, Finding, NodeRequest, Surveying, topology_for
from bide.client.url import (
    GOODBYE,
    REPLY_TIMEOUT,
    check_master,
    hide_password,
    options,
    resolve_url,
)
from bide.errors import BideError
from bide.protocol.command import Command
from bide.protocol.scripts import SERVER_CLOCK

T = TypeVar("T")


class Client:
    """Runs commands on one server, on a Cluster, or on the master of Sentinels."""

    def __init__(
        self,
        url: str | None = None,
        *,
        retry_for: float = RETRY_FOR,
        reply_timeout: float = REPLY_TIMEOUT,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Set up; nothing is sent before the first command.

        Args:
            url: the server, in a form of `bide.client.url`. Without it, bide takes `$BIDE_URL`,
                then the local default.
            retry_for: seconds for which a broken round trip is retried, 0 to 10.
            reply_timeout: seconds to wait for one reply.
            clock: the clock that the scripts are built for (tests have one that can be moved).

        Raises:
            UsageError: the URL is not of a form that bide takes.
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self._retry_for = check_retry_for(retry_for)
        self._clock = clock
        self._reached = False
        self.answers = True
        """Whether the last round trip succeeded, if there was one."""
        self._reply_timeout = reply_timeout
        self._routes = topology_for(self.url)
        self._nodes: dict[str, redis.Redis] = {}
        self._connections: dict[str, Connections] = {}
        # If the client is not closed: without this, the garbage collector may find a socket before
        # its connection, and warn about an unclosed socket.
        weakref.finalize(self, _close, self._connections, self._nodes).atexit = False

    @property
    def _redis(self) -> redis.Redis:
        """The library's client, where the URL means one server."""
        return self._at(self.url)

    def run(self, command: Command[T]) -> T:
        """Run one command.

        Raises:
            BideError: the command failed.
        """
        (result,) = self.run_many([command])
        return result  # type: ignore[no-any-return]

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip.

        Raises:
            BideError: a command failed; this is the first error. The other commands have run.
        """
        results = self.attempt_many(commands)
        for result in results:
            if isinstance(result, BideError):
                raise result
        return results

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; a `BideError` stands in place of each that failed."""
        if not commands:
            return []
        steps = self._begin(commands)
        return self._go_on(steps, next(steps))

    def begin(
        self, commands: Sequence[Command[Any]], behind: InFlight | None = None
    ) -> InFlight | None:
        """Send commands; the `end` of what this returns reads their replies.

        Commands that were sent `behind` others must also end after them.

        Returns:
            None if nothing was sent. With several servers, finding the right node may take long.
            And if the connection of `behind` has broken, those commands must be retried first.
        """
        if self._routes.only is None or not (behind is None or behind.is_well):
            return None
        return InFlight(self, self._routes.only, commands, behind)

    def send_last(self, command: Command[Any]) -> None:
        """Run a command that may be lost: within about 1 s, or not at all."""
        brief = Client(self.url, retry_for=0, reply_timeout=GOODBYE, clock=self._clock)
        with suppress(BideError):
            brief.run(command)
        brief.close()

    def read(self, stream: str, after: str, seconds: float) -> Entries | None:
        """Read the entries of a stream after an id; wait up to `seconds` for the first.

        Returns:
            The id and line of each entry, or an empty list. None if the connection broke: nothing
            is lost, because the same call reads the same entries again.

        Raises:
            BideError: the server refused.
        """
        call = reading(stream, after, min(seconds, self._reply_timeout / 2))
        return read_entries(self._drive(self._routes.deliver([call], [stream])), self.where)

    def waiting_for(self, channel: str, text: str) -> Waiter:
        """Return a context that waits until a script publishes `text` on a channel."""
        return Waiter(lambda: node_of(self, channel), self._routes.doubt, channel, text)

    def hints(self, key: str) -> WakeListener:
        """Listen for wake-up messages on a list, over a connection of its own; close it later."""
        return WakeListener(lambda: node_of(self, key), self._routes.doubt, key)

    def close(self) -> None:
        """Close all connections; the next command opens new ones."""
        _close(self._connections, self._nodes)

    def _at(self, node: str) -> redis.Redis:
        found = self._nodes.get(node)
        if found is None:
            settings = options(node, Retry, self._reply_timeout)
            if self._routes.must_be_master(node):
                settings["redis_connect_func"] = _connect_to_master
            made = redis.Redis.from_url(node, **settings)
            found = self._nodes.setdefault(node, made)
        return found

    def _begin(self, commands: Sequence[Command[Any]]) -> Dialogue:
        state = ClientState(self.where, self._clock, self._retry_for, self._reached)
        return execute(commands, state)

    def _go_on(self, steps: Dialogue, step: Send | Sleep) -> list[Any]:
        """Run this step of `execute` and all that follow; return the result."""
        only = self._routes.only
        try:
            while True:
                if not isinstance(step, Send):
                    time.sleep(step.seconds)
                    step = next(steps)
                elif only is None:
                    delivery = self._routes.deliver(step.calls, step.routes)
                    step = steps.send(self._drive(delivery, step.until))
                else:
                    step = steps.send(self._talk(NodeRequest(only, step.calls), step.until))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _drive(self, steps: Delivery | Finding | Surveying, until: float | None = None) -> Any:
        """Make the round trips of the topology until a deadline; return the result."""
        try:
            requests = next(steps)
            while True:
                requests = steps.send(self._make(requests, until))
        except StopIteration as end:
            return end.value

    def _make(self, requests: list[NodeRequest], until: float | None) -> list[Answer]:
        """Make round trips concurrently, so a node that hangs delays no calls to others."""
        if len(requests) > 1:
            with suppress(RuntimeError), ThreadPoolExecutor(len(requests)) as pool:
                return [*pool.map(self._talk, requests, repeat(until))]
        # This also runs if the interpreter is exiting and starts no more threads. Some requests may
        # be repeated then, which is harmless.
        return [self._talk(request, until) for request in requests]

    def _talk(self, request: NodeRequest, until: float | None) -> Answer:
        if is_late(until):
            return DeadlineExceeded()
        try:
            replies = self._to(request.node).round_trip(request.calls)
        except (redis.RedisError, OSError) as error:
            return self._broken(request, error)
        return self._answered(request, replies)

    def _post(self, trip: NodeRequest, behind: InFlightCalls | None) -> InFlightCalls | Exception:
        try:
            return self._to(trip.node).send(trip.calls, behind)
        except (redis.RedisError, OSError) as error:
            return self._broken(trip, error)

    def _collect(self, request: NodeRequest, in_flight: InFlightCalls | Exception) -> Answer:
        if isinstance(in_flight, Exception):
            return in_flight
        try:
            replies = self._to(request.node).collect(in_flight)
        except (redis.RedisError, OSError) as error:
            return self._broken(request, error)
        return self._answered(request, replies)

    def _to(self, node: str) -> Connections:
        connections = self._connections.get(node)
        if connections is None:
            pool = self._at(node).connection_pool
            # The pool itself would count them, and make no more after some hundred.
            made = Connections(lambda: pool.connection_class(**pool.connection_kwargs))
            connections = self._connections.setdefault(node, made)
        return connections

    def _broken(self, request: NodeRequest, error: Exception) -> Exception:
        if not request.is_question:
            self.answers = False
        connections = self._connections.get(request.node)
        if connections and request.node != self.url and not isinstance(error, redis.TimeoutError):
            # It may be gone for good, and what is open to it would never be looked at again.
            connections.close()
        return error

    def _answered(self, request: NodeRequest, replies: list[Any]) -> Answer:
        if not request.is_question:
            self._reached = self.answers = True
        return [unwrapped(r) if isinstance(r, redis.ResponseError) else r for r in replies]


class InFlight:
    """Commands that were sent, and whose replies were not read yet."""

    def __init__(
        self, client: Client, node: str, commands: Sequence[Command[Any]], behind: InFlight | None
    ) -> None:
        self._client = client
        self._steps = client._begin(commands)
        self.is_smooth = False
        """Whether it has ended without a retry or another call."""
        first = next(self._steps)
        assert isinstance(first, Send)
        self._request = NodeRequest(node, first.calls)
        before = behind._in_flight if behind is not None and behind._client is client else None
        assert not isinstance(before, Exception)
        self._in_flight: InFlightCalls | Exception | None = None
        self._in_flight = client._post(self._request, before)

    @property
    def is_well(self) -> bool:
        """Whether sending raised no error."""
        return not isinstance(self._in_flight, Exception)

    def end(self) -> list[Any]:
        """Read the replies, and retry if necessary; returns as `Client.attempt_many`.

        Raises:
            BideError: as for `Client.attempt_many`.
        """
        in_flight, self._in_flight = self._in_flight, None
        assert in_flight is not None, "it ends once"
        try:
            step = self._steps.send(self._client._collect(self._request, in_flight))
        except StopIteration as end:
            self.is_smooth = True
            return end.value  # type: ignore[no-any-return]
        return self._client._go_on(self._steps, step)

    def drop(self) -> None:
        """Drop the replies, unless they were read; whether the commands ran stays unknown."""
        in_flight, self._in_flight = self._in_flight, None
        if isinstance(in_flight, InFlightCalls):
            in_flight.drop()


def _close(connections: dict[str, Connections], nodes: dict[str, redis.Redis]) -> None:
    for pool in [*connections.values()]:
        pool.close()
    for node in [*nodes.values()]:
        node.close()


def _connect_to_master(connection: Any) -> None:
    """Log in to a node; raise the library's error if the node is not a master."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()
    except redis.ResponseError as error:
        role = error
    check_master(role)


def node_of(client: Client, key: str) -> redis.Redis:
    """Return the library's client of the node that has a key, for calls outside of bide's commands.

    Raises:
        RedisError, OSError or BideError: the node is not known now.
    """
    found: str | Exception = client._drive(client._routes.locate(key))
    if isinstance(found, Exception):
        raise found
    return client._at(found)


def masters(client: Client) -> list[redis.Redis]:
    """Return the library's clients of all nodes that hold data; raises as `node_of`."""
    found: list[str] | Exception = client._drive(client._routes.masters())
    if isinstance(found, Exception):
        raise found
    return [client._at(node) for node in found]


def cut(client: Client) -> None:
    """Break the round trips of other threads now."""
    for connections in [*client._connections.values()]:
        connections.cut()
