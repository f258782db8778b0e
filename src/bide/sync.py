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

from bide.calls import Answer, Late, is_late
from bide.command import Command
from bide.connection import (
    GOODBYE,
    HINT_WAIT,
    LONGEST_RECONNECT_PAUSE,
    RECONNECT_PAUSE,
    REPLY_TIMEOUT,
    check_master,
    hide_password,
    options,
    resolve_url,
)
from bide.connections import Connections, Meanwhile, shut
from bide.dialogue import (
    PATIENCE,
    Entries,
    Send,
    Situation,
    check_patience,
    dialogue,
    read_entries,
    reading,
)
from bide.errors import BideError
from bide.refusals import unwrapped
from bide.routes import Delivery, Finding, Surveying, Trip, routes_for
from bide.script import SERVER_CLOCK

T = TypeVar("T")


class Client:
    """Runs commands on one server, on a Cluster, or on the master of Sentinels."""

    def __init__(
        self,
        url: str | None = None,
        *,
        patience: float = PATIENCE,
        reply_timeout: float = REPLY_TIMEOUT,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Set up; nothing is sent before the first command.

        Args:
            url: of a form that `bide.servers` names; else `$BIDE_URL`, else the local default.
            patience: seconds for which a broken round trip is repeated.
            reply_timeout: seconds to wait for one reply.
            clock: which clock the scripts are built for (the tests have one that can be moved).

        Raises:
            UsageError: the URL is not of a form that bide takes.
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self._patience = check_patience(patience)
        self._clock = clock
        self._reached = False
        self.answers = True
        """Whether the last round trip came to its end, if there was one."""
        self._reply_timeout = reply_timeout
        self._routes = routes_for(self.url)
        self._nodes: dict[str, redis.Redis] = {}
        self._connections: dict[str, Connections] = {}
        # Whoever forgets to close it: else it is chance whether the collector comes to a socket
        # before its connection, and the socket complains that nobody closed it.
        weakref.finalize(self, _close, self._connections, self._nodes).atexit = False

    @property
    def _redis(self) -> redis.Redis:
        """The library's client, where the URL means one server."""
        return self._at(self.url)

    def run(self, command: Command[T]) -> T:
        """Run one command.

        Raises:
            BideError: whatever came of it instead of a result.
        """
        (result,) = self.run_many([command])
        return result  # type: ignore[no-any-return]

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip.

        Raises:
            BideError: what the first that failed came to; the others have run.
        """
        results = self.attempt_many(commands)
        for result in results:
            if isinstance(result, BideError):
                raise result
        return results

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Run commands in one round trip; a `BideError` stands in place of each that failed."""
        return self.attempt_meanwhile(commands, None)

    def attempt_meanwhile(
        self, commands: Sequence[Command[Any]], meanwhile: Meanwhile | None
    ) -> list[Any]:
        """The same, and do something when they have been sent, before their replies are awaited.

        It is done each time that they are sent, if to one node. What it raises breaks off.
        """
        if not commands:
            return []
        situation = Situation(self.where, self._clock, self._patience, self._reached)
        steps = dialogue(commands, situation)
        only = self._routes.only
        step = next(steps)
        try:
            while True:
                if isinstance(step, Send):
                    if only is None:
                        delivery = self._routes.deliver(step.calls, step.routes)
                        step = steps.send(self._drive(delivery, step.until, meanwhile))
                    else:
                        step = steps.send(self._talk(Trip(only, step.calls), step.until, meanwhile))
                else:
                    time.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def say_goodbye(self, command: Command[Any]) -> None:
        """Run a command that costs nothing if it is lost: within about a second, or not at all."""
        brief = Client(self.url, patience=0, reply_timeout=GOODBYE, clock=self._clock)
        with suppress(BideError):
            brief.run(command)
        brief.close()

    def read(self, stream: str, after: str, seconds: float) -> Entries | None:
        """The next entries of a stream behind an id; waits for one for at most `seconds`.

        Returns:
            Id and line of each, none if none came; None where the connection broke. The reply that
            was lost then is no loss: the same call brings it again.

        Raises:
            BideError: the server refused.
        """
        call = reading(stream, after, min(seconds, self._reply_timeout / 2))
        return read_entries(self._drive(self._routes.deliver([call], [stream])), self.where)

    def waiting_for(self, channel: str, text: str) -> Waiter:
        """Hear when a script says `text` over a channel, for as long as the context lasts."""
        return Waiter(self, channel, text)

    def hints(self, key: str) -> Hints:
        """Hear the wake hints on a list, over a connection of its own; close it at the end."""
        return Hints(self, key)

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

    def _drive(
        self,
        steps: Delivery | Finding | Surveying,
        until: float | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> Any:
        """Make the round trips that the routes ask for, up to a time; what they come to."""
        try:
            trips = next(steps)
            while True:
                trips = steps.send(self._make(trips, until, meanwhile))
        except StopIteration as end:
            return end.value

    def _make(
        self, trips: list[Trip], until: float | None, meanwhile: Meanwhile | None
    ) -> list[Answer]:
        """Make round trips, all at the same time: a node that hangs delays no other's calls."""
        if len(trips) > 1:
            with suppress(RuntimeError), ThreadPoolExecutor(len(trips)) as pool:
                return [*pool.map(self._talk, trips, repeat(until))]
        # Also where the interpreter ends, and begins no thread any more: once more does no harm.
        return [self._talk(trip, until, meanwhile) for trip in trips]

    def _talk(self, trip: Trip, until: float | None, meanwhile: Meanwhile | None = None) -> Answer:
        if is_late(until):
            return Late()
        connections = self._connections.get(trip.node)
        try:
            if connections is None:
                made = Connections(self._at(trip.node).connection_pool.make_connection)
                connections = self._connections.setdefault(trip.node, made)
            replies = connections.round_trip(trip.calls, meanwhile)
        except (redis.RedisError, OSError) as error:
            if not trip.is_question:
                self.answers = False
            if connections and trip.node != self.url and not isinstance(error, redis.TimeoutError):
                # It may be gone for good, and what is open to it would never be looked at again.
                connections.close()
            return error
        if not trip.is_question:
            self._reached = self.answers = True
        return [unwrapped(r) if isinstance(r, redis.ResponseError) else r for r in replies]


def _close(connections: dict[str, Connections], nodes: dict[str, redis.Redis]) -> None:
    for pool in [*connections.values()]:
        pool.close()
    for node in [*nodes.values()]:
        node.close()


def _connect_to_master(connection: Any) -> None:
    """Greet a node; raises the library's errors if it is no master."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()
    except redis.ResponseError as error:
        role = error
    check_master(role)


def node_of(client: Client, key: str) -> redis.Redis:
    """The library's client of the node that has a key, for what is no command of bide's.

    Raises:
        RedisError, OSError or BideError: it is not known now.
    """
    found: str | Exception = client._drive(client._routes.locate(key))
    if isinstance(found, Exception):
        raise found
    return client._at(found)


def masters(client: Client) -> list[redis.Redis]:
    """The library's clients of all nodes that hold data; raises as `node_of`."""
    found: list[str] | Exception = client._drive(client._routes.masters())
    if isinstance(found, Exception):
        raise found
    return [client._at(node) for node in found]


def cut(client: Client) -> None:
    """Have what other threads wait for break off now."""
    for connections in [*client._connections.values()]:
        connections.cut()


class Hints:
    """Wake hints, as they come.

    A blocking call's own time-out is no clock: it fires up to a tenth of a second late. So the call
    stays outstanding for long, and who waits for its reply has a timer besides.
    """

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self._connection: Any = None
        self._asks = False
        """Whether a call is outstanding."""
        self._answer_by = 0.0
        """When that has an answer at the latest, unless the server hangs (`time.monotonic()`)."""
        self._is_cut = False

    def hear(self, until: float) -> str | None:
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
                self._client._routes.doubt()
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
            pool = node_of(self._client, self._key).connection_pool
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

    def __init__(self, client: Client, channel: str, text: str) -> None:
        self._client = client
        self._channel = channel
        self._text = text
        self._pubsub: Any = None
        self._pause = RECONNECT_PAUSE

    def __enter__(self) -> Waiter:
        self._connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self._drop()

    def hear(self, until: float) -> None:
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
            self._pubsub = node_of(self._client, self._channel).pubsub()  # type: ignore[no-untyped-call]
            self._pubsub.subscribe(self._channel)
            if self._pubsub.get_message(timeout=REPLY_TIMEOUT) is None:
                raise redis.TimeoutError("no answer to SUBSCRIBE")
            self._pause = RECONNECT_PAUSE
        except (redis.RedisError, OSError):
            self._client._routes.doubt()
            self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)
            self._drop()

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(redis.RedisError, OSError):
                pubsub.close()
