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
"""None where something has taken it away, as libraries of green threads do."""


class InFlightCalls:
    """Calls that were sent, over a connection that is theirs until their replies are read.

    One that is lost, as where a signal's handler raises before its caller has hold of it, is
    dropped: so the connection is neither used by others nor left open.
    """

    __slots__ = ("among", "calls", "connection", "is_new", "owner", "size")

    def __init__(
        self, owner: Connections, connection: Any, calls: Sequence[Call], among: list[Any]
    ) -> None:
        self.owner: Connections | None = owner
        """None once its replies are read, or it was dropped."""
        self.connection = connection
        self.calls = calls
        self.among = among
        """The idle ones, to which the connection goes back."""
        self.size = 0
        """Bytes."""
        self.is_new = False
        """Whether it is the connection's first use."""

    def __del__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Do without the replies."""
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
        """How many posted calls each of them has that are to be collected."""
        self._to_sleep = 0
        """How many of the next calls are slept through."""

    def round_trip(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls, and read their replies; an error that one is answered with is among them.

        Raises:
            RedisError or OSError: the connection broke, or there is none to be had.
        """
        posted = self.send(calls)
        if posted.size <= SHORT and len(self._busy) == 1:
            self._spin_wait(posted.connection._sock)
        return self.collect(posted)

    def send(self, calls: Sequence[Call], behind: InFlightCalls | None = None) -> InFlightCalls:
        """Send calls; their replies are to be collected, or dropped. Raises as `round_trip`.

        What is sent behind what is still to be collected goes over the same connection: the server
        comes to it later, and where that has broken, nothing is sent.
        """
        if os.getpid() != self._pid:
            self._begin()
        idle, busy = self._idle, self._busy
        if behind is not None:
            connection, idle = behind.connection, behind.among
            if connection not in busy:  # as in `collect`
                raise redis.ConnectionError("the connection broke")
        else:
            connection = idle.pop() if idle else self._make()
        posted = InFlightCalls(self, connection, calls, idle)
        try:
            busy[connection] = busy.get(connection, 0) + 1
            if connection._sock is None:
                connection.connect()
                posted.is_new = True
            packed = pack(calls)
            posted.size = len(packed)
            connection.send_packed_command([packed], check_health=False)
        except BaseException as error:
            self._broke(posted, error)
            raise
        return posted

    def collect(self, posted: InFlightCalls) -> list[Any]:
        """Read the replies to what was posted, in the order of posting; as `round_trip`."""
        connection = posted.connection
        if os.getpid() != self._pid:
            self._begin()
        if connection not in self._busy:  # it broke, or is that of a parent
            raise redis.ConnectionError("the connection broke")
        try:
            replies = [_read(connection) for _ in posted.calls]
        except BaseException as error:
            self._broke(posted, error)
            raise
        posted.owner = None
        left = self._busy.pop(connection) - 1
        if left:
            self._busy[connection] = left
        elif posted.among is self._idle:
            posted.among.append(connection)
        else:  # all were closed meanwhile
            connection.disconnect()
        return replies

    def _broke(self, posted: InFlightCalls, error: BaseException) -> None:
        # Wherever it came from: nobody else may read what is still to come.
        posted.drop()
        if posted.is_new and isinstance(error, redis.ConnectionError):
            self._ask_why()

    def _spin_wait(self, opened: socket.socket) -> None:
        """Wait for a reply without sleeping, for a short time.

        Each look lets go of the interpreter, and each yield of the processor, so that other threads
        and a server on the same processor go on.
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
        """Find out why a new connection was closed; raises what is said to who may not come in.

        Some servers say nothing to a stranger who begins with a call of more than ten words.
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
        """Close those that are idle now, and the others when their round trip has ended."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def cut(self) -> None:
        """Have the round trips of other threads break off now."""
        for connection in [*self._busy]:
            shut(connection)


def shut(connection: Any) -> None:
    """Have whoever waits for what a connection brings, in another thread, come back at once.

    It stays theirs to close: the number of a socket that is closed while it is read is given to
    the next that is opened, whose bytes the reader would then take.
    """
    opened = getattr(connection, "_sock", None)
    if opened is not None:
        with suppress(OSError):  # of the socket itself, for TLS would have a word to say
            socket.socket.shutdown(opened, socket.SHUT_RDWR)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
