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
            url: of a form that `bide.client.url` names; else `$BIDE_URL`, else the local default.
            retry_for: seconds for which a broken round trip is repeated.
            reply_timeout: seconds to wait for one reply.
            clock: which clock the scripts are built for (the tests have one that can be moved).

        Raises:
            UsageError: the URL is not of a form that bide takes.
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self._patience = check_retry_for(retry_for)
        self._clock = clock
        self._reached = False
        self.answers = True
        """Whether the last round trip came to its end, if there was one."""
        self._reply_timeout = reply_timeout
        self._routes = topology_for(self.url)
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
        if not commands:
            return []
        steps = self._begin(commands)
        return self._go_on(steps, next(steps))

    def begin(
        self, commands: Sequence[Command[Any]], behind: InFlight | None = None
    ) -> InFlight | None:
        """Send commands, whose replies are read when that is told to end.

        What is sent `behind` others has to end behind them, too. None where nothing was sent:
        where there may be several servers, to find the way may take long; and where the connection
        of what it was to be behind has broken, that is sent again first.
        """
        if self._routes.only is None or not (behind is None or behind.is_well):
            return None
        return InFlight(self, self._routes.only, commands, behind)

    def send_last(self, command: Command[Any]) -> None:
        """Run a command that costs nothing if it is lost: within about a second, or not at all."""
        brief = Client(self.url, retry_for=0, reply_timeout=GOODBYE, clock=self._clock)
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
        return Waiter(lambda: node_of(self, channel), self._routes.doubt, channel, text)

    def hints(self, key: str) -> WakeListener:
        """Hear the wake hints on a list, over a connection of its own; close it at the end."""
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
        situation = ClientState(self.where, self._clock, self._patience, self._reached)
        return execute(commands, situation)

    def _go_on(self, steps: Dialogue, step: Send | Sleep) -> list[Any]:
        """Take this step of a dialogue and all that follow; what it comes to."""
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
        """Make the round trips that the routes ask for, up to a time; what they come to."""
        try:
            trips = next(steps)
            while True:
                trips = steps.send(self._make(trips, until))
        except StopIteration as end:
            return end.value

    def _make(self, trips: list[NodeRequest], until: float | None) -> list[Answer]:
        """Make round trips, all at the same time: a node that hangs delays no other's calls."""
        if len(trips) > 1:
            with suppress(RuntimeError), ThreadPoolExecutor(len(trips)) as pool:
                return [*pool.map(self._talk, trips, repeat(until))]
        # Also where the interpreter ends, and begins no thread any more: once more does no harm.
        return [self._talk(trip, until) for trip in trips]

    def _talk(self, trip: NodeRequest, until: float | None) -> Answer:
        if is_late(until):
            return DeadlineExceeded()
        try:
            replies = self._to(trip.node).round_trip(trip.calls)
        except (redis.RedisError, OSError) as error:
            return self._broken(trip, error)
        return self._answered(trip, replies)

    def _post(self, trip: NodeRequest, behind: InFlightCalls | None) -> InFlightCalls | Exception:
        try:
            return self._to(trip.node).send(trip.calls, behind)
        except (redis.RedisError, OSError) as error:
            return self._broken(trip, error)

    def _collect(self, trip: NodeRequest, posted: InFlightCalls | Exception) -> Answer:
        if isinstance(posted, Exception):
            return posted
        try:
            replies = self._to(trip.node).collect(posted)
        except (redis.RedisError, OSError) as error:
            return self._broken(trip, error)
        return self._answered(trip, replies)

    def _to(self, node: str) -> Connections:
        connections = self._connections.get(node)
        if connections is None:
            pool = self._at(node).connection_pool
            # The pool itself would count them, and make no more after some hundred.
            made = Connections(lambda: pool.connection_class(**pool.connection_kwargs))
            connections = self._connections.setdefault(node, made)
        return connections

    def _broken(self, trip: NodeRequest, error: Exception) -> Exception:
        if not trip.is_question:
            self.answers = False
        connections = self._connections.get(trip.node)
        if connections and trip.node != self.url and not isinstance(error, redis.TimeoutError):
            # It may be gone for good, and what is open to it would never be looked at again.
            connections.close()
        return error

    def _answered(self, trip: NodeRequest, replies: list[Any]) -> Answer:
        if not trip.is_question:
            self._reached = self.answers = True
        return [unwrapped(r) if isinstance(r, redis.ResponseError) else r for r in replies]


class InFlight:
    """Commands that have been sent, whose replies are still to be read."""

    def __init__(
        self, client: Client, node: str, commands: Sequence[Command[Any]], behind: InFlight | None
    ) -> None:
        self._client = client
        self._steps = client._begin(commands)
        self.is_smooth = False
        """Whether it has ended, and nothing had to be sent again or besides."""
        first = next(self._steps)
        assert isinstance(first, Send)
        self._trip = NodeRequest(node, first.calls)
        before = behind._posted if behind is not None and behind._client is client else None
        assert not isinstance(before, Exception)
        self._posted: InFlightCalls | Exception | None = None
        self._posted = client._post(self._trip, before)

    @property
    def is_well(self) -> bool:
        """Whether, as far as is known, its replies will come."""
        return not isinstance(self._posted, Exception)

    def end(self) -> list[Any]:
        """Read the replies, and send again what has to be; returns as `Client.attempt_many`.

        Raises:
            BideError: as there.
        """
        posted, self._posted = self._posted, None
        assert posted is not None, "it ends once"
        try:
            step = self._steps.send(self._client._collect(self._trip, posted))
        except StopIteration as end:
            self.is_smooth = True
            return end.value  # type: ignore[no-any-return]
        return self._client._go_on(self._steps, step)

    def drop(self) -> None:
        """Do without the replies, unless they were read: what came of it, nobody knows."""
        posted, self._posted = self._posted, None
        if isinstance(posted, InFlightCalls):
            posted.drop()


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
