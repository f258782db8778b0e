"""The blocking executor: runs commands over a pool of connections; safe to share by threads.

The client library's pipeline packs in Python, checks the socket first, and notifies an observer of
each command. Here the packing is in C. A broken connection is noticed when it is used, and then the
call is retried (`bide.client.execute`).

A server on the same machine often answers faster than a process can go to sleep and wake up. So a
short call polls for its reply for up to `WATCH` seconds before it sleeps, unless another thread
waits for a reply from the same node; `docs/decisions/0016-watching.md` has the figures. If a reply
takes longer, the call sleeps, and so do the next `SLEPT` calls.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from typing import Any, Final, TypeVar

import redis
from redis.retry import Retry

from bide.client.errors import unwrapped
from bide.client.execute import (
    RETRY_FOR,
    Answer,
    Call,
    ClientCore,
    DeadlineExceeded,
    Entries,
    Send,
    Sleep,
    Steps,
    execute,
    first_error,
    is_late,
    pack,
    read_entries,
    reading,
)
from bide.client.pubsub import Waiter, WakeListener, shut
from bide.client.topology import Delivery, Finding, NodeRequest, Surveying, topology_for
from bide.client.url import (
    GOODBYE,
    REPLY_TIMEOUT,
    check_master,
    options,
)
from bide.errors import BideError
from bide.protocol.commands import Command
from bide.protocol.scripts import SERVER_CLOCK

T = TypeVar("T")

WATCH: Final = 100e-6
"""Seconds to poll for a reply; somewhat longer than the wake-ups of two processes in turn."""
SLEPT: Final = 100
"""Number of calls that do not poll after a slow reply, so that a distant server costs its callers
on average a hundredth of `WATCH`."""
SHORT: Final = 4096
"""Maximum bytes of a call that polls for its reply."""

_poll: Final[Callable[[], Any] | None] = getattr(select, "poll", None)
"""None if a library of green threads has removed it."""


class Connections:
    """Connections to one node; safe to share by threads. A forked child does not use them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Set up; `make` returns an unconnected connection."""
        self._make = make
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Any] = []
        self._busy: dict[Any, int] = {}
        """The number of groups of calls in flight on each connection."""
        self._to_sleep = 0
        """The number of next calls that do not spin."""

    def exchange(
        self, calls: Sequence[Call], behind: Any = None, *, pauses: bool = False
    ) -> Generator[Any, None, None]:
        """Send calls, and yield their replies, in which an error reply is an exception.

        Raises the library's `RedisError` or an `OSError` if the connection breaks.

        If it `pauses`, it yields the connection before it reads. If it is closed or lost then, so
        is the connection, whose replies may still arrive.

        Calls that are sent `behind` others use their connection, so the server runs them later. If
        that connection has broken, nothing is sent.
        """
        if os.getpid() != self._pid:
            self._begin()
        idle, busy = self._idle, self._busy
        if behind is not None and behind not in busy:
            raise redis.ConnectionError("the connection broke")
        connection: Any = behind
        if behind is None:
            connection = idle.pop() if idle else self._make()
        is_new = False
        try:
            busy[connection] = busy.get(connection, 0) + 1
            if connection._sock is None:
                connection.connect()
                is_new = True
            packed = pack(calls)
            connection.send_packed_command([packed], check_health=False)
            if pauses:
                yield connection
                if os.getpid() != self._pid or busy is not self._busy or connection not in busy:
                    raise redis.ConnectionError("the connection broke, or is the parent's")
            elif len(packed) <= SHORT and len(busy) == 1:
                opened: Any = connection._sock
                self._spin_wait(opened)
            replies: list[Any] = []
            for _ in calls:
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(unwrapped(error))
            left = busy.pop(connection) - 1
            if left:
                busy[connection] = left
            elif idle is self._idle:
                idle.append(connection)
            else:  # `close` was called meanwhile
                connection.disconnect()
        except BaseException as error:
            busy.pop(connection, None)
            connection.disconnect()
            if is_new and isinstance(error, redis.ConnectionError):
                self._ask_why()
            raise
        yield replies

    def _spin_wait(self, opened: socket.socket) -> None:
        """Wait for a reply without sleeping, for up to `WATCH` seconds.

        Each poll releases the GIL, and each `sched_yield` the processor, so that other threads and
        a server on the same processor continue.
        """
        if _poll is None:
            return
        if self._to_sleep:
            self._to_sleep -= 1
            return
        poller = _poll()
        poller.register(opened, select.POLLIN)
        until = time.monotonic() + WATCH
        while not poller.poll(0):
            os.sched_yield()
            if time.monotonic() > until:
                self._to_sleep = SLEPT
                return

    def _ask_why(self) -> None:
        """Find out why a new connection was closed; raise if the login was refused.

        Some servers close the connection without an error, if the first call before a login has
        more than ten words.
        """
        connection = self._make()
        try:
            connection.connect()
            connection.send_command("PING")
            connection.read_response()
        except redis.AuthenticationError:
            raise
        except (redis.RedisError, OSError):
            pass
        finally:
            connection.disconnect()

    def close(self) -> None:
        """Close idle connections now, and the others when their round trip has ended."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def cut(self) -> None:
        """Break the round trips of other threads now."""
        for connection in [*self._busy]:
            shut(connection)


class Client(ClientCore):
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
        """Run one command, or raise its error."""
        (result,) = self.attempt_many([command])
        if isinstance(result, BideError):
            raise result
        return result  # type: ignore[no-any-return]

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; raise the first error, after all have run."""
        return first_error(self.attempt_many(commands))

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; a `BideError` stands in place of each that failed."""
        if not commands:
            return []
        steps = execute(commands, self._state)
        return self._go_on(steps, next(steps))

    def _go_on(self, steps: Steps, step: Send | Sleep) -> list[Any]:
        """Run this step of `execute` and all later ones; return the result."""
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

        Return the id and line of each; None if the connection broke. Then nothing is lost, because
        the same call reads the same entries again.
        """
        call = reading(stream, after, min(seconds, self._reply_timeout / 2))
        return read_entries(self._drive(self._routes.deliver([call], [stream])), self.where)

    def waiting_for(self, channel: str, text: str) -> Waiter:
        """Return a context that waits until a script publishes `text` on a channel."""
        return Waiter(lambda: node_of(self, channel), self._routes.doubt, channel, text)

    def wake_listener(self, key: str) -> WakeListener:
        """Listen for wake-up messages on a list, over a connection of its own; close it later."""
        return WakeListener(lambda: node_of(self, key), self._routes.doubt, key)

    def close(self) -> None:
        """Close all connections; the next command opens new ones."""
        _close(self._connections, self._nodes)

    def _at(self, node: str) -> redis.Redis:
        found = self._nodes.get(node)
        if found is None:
            settings = options(node, Retry, self._reply_timeout)
            settings["max_connections"] = 2**31  # each thread that waits for a job has one
            if self._routes.must_be_master(node):
                settings["redis_connect_func"] = _connect_to_master
            made = redis.Redis.from_url(**settings)
            found = self._nodes.setdefault(node, made)
        return found

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
        if until is not None and is_late(until):
            return DeadlineExceeded()
        try:
            connections = self._connections.get(request.node) or self._to(request.node)
            replies: list[Any] = next(connections.exchange(request.calls))
        except (redis.RedisError, OSError) as error:
            return self._broken(request, error)
        if not (self.answers and self._state.reached):
            self._note_answer(request)
        return replies

    def _to(self, node: str) -> Connections:
        connections = self._connections.get(node)
        if connections is None:
            pool = self._at(node).connection_pool
            # The pool would count them, and refuse to create more after some hundred.
            made = Connections(lambda: pool.connection_class(**pool.connection_kwargs))
            connections = self._connections.setdefault(node, made)
        return connections

    def _broken(self, request: NodeRequest, error: Exception) -> Exception:
        if not request.is_question:
            self.answers = False
        connections = self._connections.get(request.node)
        if connections:
            # The node may never come back, and its idle connections would stay open.
            connections.close()
        return error

    def _note_answer(self, request: NodeRequest) -> None:
        if not request.is_question:
            self.answers = True
            self._state = self._state._replace(reached=True)


class InFlight:
    """Commands that were sent, and whose replies were not read yet."""

    def __init__(
        self, client: Client, node: str, commands: Sequence[Command[Any]], behind: InFlight | None
    ) -> None:
        self._client = client
        self._steps = execute(commands, client._state)
        first = next(self._steps)
        assert isinstance(first, Send)
        self._request = NodeRequest(node, first.calls)
        self.is_smooth = False
        """Whether it has ended without a retry or another call."""
        self._connection: Any = None
        self._error: Exception | None = None
        before = behind._connection if behind is not None and behind._client is client else None
        try:
            self._trip = client._to(node).exchange(first.calls, before, pauses=True)
            self._connection = next(self._trip)
        except (redis.RedisError, OSError) as error:
            self._error = client._broken(self._request, error)

    @property
    def is_well(self) -> bool:
        """Whether sending raised no error."""
        return self._error is None

    def end(self) -> list[Any]:
        """Read the replies, and retry if necessary; returns as `Client.attempt_many`."""
        answer: Answer
        try:
            answer = self._error or next(self._trip)
        except (redis.RedisError, OSError) as error:
            answer = self._client._broken(self._request, error)
        if not isinstance(answer, Exception):
            self._client._note_answer(self._request)
        try:
            step = self._steps.send(answer)
        except StopIteration as end:
            self.is_smooth = True
            return end.value  # type: ignore[no-any-return]
        return self._client._go_on(self._steps, step)

    def drop(self) -> None:
        """Drop the replies, unless they were read; whether the commands ran stays unknown."""
        self._trip.close()


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

    Raises the library's errors, or `BideError`, if the node is not known now.
    """
    found: str | Exception = client._drive(client._routes.locate(key))
    if isinstance(found, Exception):
        raise found
    return client._at(found)


def masters(client: Client) -> list[redis.Redis]:
    """Return the library's clients of all nodes that hold data."""
    found: list[str] | Exception = client._drive(client._routes.masters())
    if isinstance(found, Exception):
        raise found
    return [client._at(node) for node in found]


def cut(client: Client) -> None:
    """Break the round trips of other threads now."""
    for connections in [*client._connections.values()]:
        connections.cut()
