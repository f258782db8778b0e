"""A blocking client's connections to one node, each used for one round trip at a time.

The client library's pipeline packs in Python, asks the socket first whether it is sound, and tells
an observer of each command; here the packing is C, and a connection that broke shows itself when it
is used, at which the call is repeated (`bide.client.execute`).

A server on the same machine often answers sooner than a process can be put to sleep and woken. So a
short call watches for its reply for up to `WATCH` seconds before it sleeps, unless another thread
waits for one from the same node; `docs/decisions/0016-watching.md` has the figures. What takes
longer is slept through, and so are the next `SLEPT` calls after one that did.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import redis

from bide.client.execute import Call, pack

WATCH: Final = 100e-6
"""Seconds to watch for a reply; somewhat more than two processes take to be woken in turn."""
SLEPT: Final = 100
"""Calls that are slept through after one whose reply took longer: a server that is further away
costs its callers a hundredth of `WATCH`."""
SHORT: Final = 4096
"""Bytes of a call that a server may have answered in that time."""

_poll: Final[Callable[[], Any] | None] = getattr(select, "poll", None)
"""None if it was removed, as libraries of green threads do."""


class InFlightCalls:
    """Calls that were sent; they own a connection until their replies are read.

    If this object is lost, it is dropped, so its connection is neither reused nor left open. That
    happens if a signal handler raises before the caller has a reference.
    """

    __slots__ = ("calls", "connection", "idle", "is_new", "owner", "size")

    def __init__(
        self, owner: Connections, connection: Any, calls: Sequence[Call], idle: list[Any]
    ) -> None:
        self.owner: Connections | None = owner
        """None once its replies were read, or it was dropped."""
        self.connection = connection
        self.calls = calls
        self.idle = idle
        """The idle connections, to which the connection returns."""
        self.size = 0
        """Bytes."""
        self.is_new = False
        """Whether it is the connection's first use."""

    def __del__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Drop the replies and the connection."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner._busy.pop(self.connection, None)
            self.connection.disconnect()


class Connections:
    """Connections to one node; safe to share by threads, and left to the parent by a fork."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Set up; `make` makes one that is not connected yet."""
        self._make = make
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Any] = []
        self._busy: dict[Any, int] = {}
        """The number of groups of calls in flight on each connection."""
        self._to_sleep = 0
        """The number of next calls that do not spin."""

    def round_trip(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, and read their replies; error replies are returned as exceptions.

        Raises:
            RedisError or OSError: the connection broke, or could not be opened.
        """
        in_flight = self.send(calls)
        if in_flight.size <= SHORT and len(self._busy) == 1:
            self._spin_wait(in_flight.connection._sock)
        return self.collect(in_flight)

    def send(self, calls: Sequence[Call], behind: InFlightCalls | None = None) -> InFlightCalls:
        """Send calls; the caller must collect or drop their replies. Raises as `round_trip`.

        With `behind`, the calls use the connection of those earlier calls, so the server runs them
        later. If that connection has broken, nothing is sent.
        """
        if os.getpid() != self._pid:
            self._begin()
        idle, busy = self._idle, self._busy
        if behind is not None:
            connection, idle = behind.connection, behind.idle
            if connection not in busy:  # as in `collect`
                raise redis.ConnectionError("the connection broke")
        else:
            connection = idle.pop() if idle else self._make()
        in_flight = InFlightCalls(self, connection, calls, idle)
        try:
            busy[connection] = busy.get(connection, 0) + 1
            if connection._sock is None:
                connection.connect()
                in_flight.is_new = True
            packed = pack(calls)
            in_flight.size = len(packed)
            connection.send_packed_command([packed], check_health=False)
        except BaseException as error:
            self._broke(in_flight, error)
            raise
        return in_flight

    def collect(self, in_flight: InFlightCalls) -> list[Any]:
        """Read the replies to sent calls, in the order of sending; raises as `round_trip`."""
        connection = in_flight.connection
        if os.getpid() != self._pid:
            self._begin()
        if connection not in self._busy:  # it broke, or belongs to the parent process
            raise redis.ConnectionError("the connection broke")
        try:
            replies = [_read(connection) for _ in in_flight.calls]
        except BaseException as error:
            self._broke(in_flight, error)
            raise
        in_flight.owner = None
        left = self._busy.pop(connection) - 1
        if left:
            self._busy[connection] = left
        elif in_flight.idle is self._idle:
            in_flight.idle.append(connection)
        else:  # `close` was called meanwhile
            connection.disconnect()
        return replies

    def _broke(self, in_flight: InFlightCalls, error: BaseException) -> None:
        # Whatever the error is, replies may still arrive: the connection cannot be reused.
        in_flight.drop()
        if in_flight.is_new and isinstance(error, redis.ConnectionError):
            self._ask_why()

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


def shut(connection: Any) -> None:
    """Interrupt another thread that reads from a connection.

    That thread closes the connection. If this closed it during the read, the next opened socket
    could get the same file descriptor, and the reader would take its bytes.
    """
    opened = getattr(connection, "_sock", None)
    if opened is not None:
        with suppress(OSError):  # of the plain socket: TLS would send a message first
            socket.socket.shutdown(opened, socket.SHUT_RDWR)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
