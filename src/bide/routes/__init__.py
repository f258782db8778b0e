"""Where calls go: to one server, to the nodes of a Cluster, or to the master of Sentinels.

Like `bide.dialogue`, without the I/O: generators that say which calls to send to which node, and
are answered with what came back. The executors make the connections, one pool for each URL.

    Trip(node, calls)   one round trip to one node; several may be made at a time. Answered with
                        the list of replies, in which an error reply is an exception, or with the
                        exception that broke the round trip

A redirection is followed at once. Everything else that a repeat may cure (a node that is down, a
slot that is on its way) comes back as the error that it is, what was known of the servers is
doubted, and `bide.dialogue` repeats the call, with the same id, in a little while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bide.calls import Call, Route
from bide.routes.cluster import Cluster
from bide.routes.sentinel import Sentinel
from bide.routes.trip import Delivery, Finding, Surveying, Trip
from bide.servers import read_servers

__all__ = ["Delivery", "Finding", "Routes", "Surveying", "Trip", "routes_for"]


class Routes(Protocol):
    """What is known of the servers that a URL means; threads and event loops may share it."""

    only: str | None
    """The URL of the one server that there is, to which every route leads: `deliver` has nothing to
    add to a round trip there. None where there may be several."""

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send each call to where its route leads.

        Returns:
            The replies in the order of the calls, an exception in place of each that failed; or
            the exception for which nothing could be sent at all.
        """
        ...

    def locate(self, key: str) -> Finding:
        """The URL of the node that has a key now, or why it is not known."""
        ...

    def masters(self) -> Surveying:
        """The URLs of all nodes that hold data of their own, or why they are not known."""
        ...

    def doubt(self) -> None:
        """A connection broke, or a node answered as it should not: ask anew who has what."""
        ...

    def must_be_master(self, node: str) -> bool:
        """Whether a connection to a node is good only while that says that it is a master."""
        ...


class One:
    """One server: everything goes there."""

    def __init__(self, url: str) -> None:
        self.only: str | None = url
        self._url = url

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send all in one round trip."""
        (answer,) = yield [Trip(self._url, [*calls])]
        return answer

    def locate(self, key: str) -> Finding:
        """The server, whatever the key."""
        yield from ()
        return self._url

    def masters(self) -> Surveying:
        """The server."""
        yield from ()
        return [self._url]

    def doubt(self) -> None:
        """There is nothing to doubt."""

    def must_be_master(self, node: str) -> bool:
        """Whoever names one server means that one."""
        return False


def routes_for(url: str) -> Routes:
    """The routes to the servers that a URL means."""
    servers = read_servers(url)
    if servers.kind == "cluster":
        return Cluster(servers)
    if servers.kind == "sentinel":
        return Sentinel(servers)
    return One(url)
