"""Where calls go: to one server, to the nodes of a Cluster, or to the master of Sentinels.

Like `bide.client.execute`, without the I/O: generators that say which calls to send to which node,
and are answered with what came back. The executors make the connections, one pool for each URL.

    Trip(node, calls)   one round trip to one node; several may be made at a time. Answered with
                        the list of replies, in which an error reply is an exception, or with the
                        exception that broke the round trip

A redirection is followed at once. Everything else that a repeat may cure (a node that is down, a
slot that is on its way) comes back as the error that it is, what was known of the servers is
doubted, and `bide.client.execute` repeats the call, with the same id, in a little while.

What is known is a guess, right until a node says otherwise: MOVED names the owner of a slot that
has moved for good, ASK the node to try this once while it is on its way. Any other sign of change
has the next call ask for the whole map first (CLUSTER SLOTS, to whichever node answers).

A Sentinel may be behind the times, or cut off together with an old master. So each question goes
to another one first, and each connection asks the node whether it is a master (`must_be_master`).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from redis import exceptions as lib
from redis.crc import key_slot

from bide.client.execute import AfterCalls, Answer, Call, NoScript, Route, ToNode
from bide.client.url import Servers, read_servers
from bide.errors import UsageError


class NodeRequest(NamedTuple):
    """One round trip to one node."""

    node: str
    """Its URL, of one server."""
    calls: list[Call]
    is_question: bool = False
    """About the servers themselves, so that an answer does not mean that jobs are served."""


Delivery = Generator[list[NodeRequest], list[Answer], Answer]
Finding = Generator[list[NodeRequest], list[Answer], str | Exception]
Surveying = Generator[list[NodeRequest], list[Answer], list[str] | Exception]


SLOTS: Final = 16384
HOPS: Final = 5
"""Redirections that are followed at once; nodes that ask for more do not agree yet."""

_CHANGE: Final = (lib.ReadOnlyError, lib.ClusterDownError, lib.MasterDownError)
"""Error replies which say that what is known of the nodes may be wrong."""


class _Bundle(NamedTuple):
    """A call, and those that go wherever it goes, right behind it."""

    places: range
    """Among the calls that are delivered."""
    slot: int | None
    """None where a node was named instead."""
    asking: bool = False


class Cluster:
    """The map of slots, as far as it is known."""

    only: str | None = None

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._owners: list[str | None] = []
        """The node of each slot; empty before a node has told them."""
        self._nodes: list[str] = []
        self._silent: set[str] = set()
        """Nodes whose last round trip broke: of these, the map is asked for last."""
        self._doubted = True

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send each to the owner of its slot, and on to where it is redirected."""
        problem = yield from self._learn()
        if problem is not None:
            return problem
        replies: list[Any] = [None] * len(calls)
        trips: list[Any] = [None] * len(calls)
        """In which each was answered."""
        going: dict[str, list[_Bundle]] = {}
        for bundle, node in self._bundles(routes):
            if node is None:
                self._doubted = True
                self._fill(replies, bundle, lib.ClusterDownError("a slot is served by no node"))
            else:
                going.setdefault(node, []).append(bundle)
        for hop in range(HOPS):
            if not going:
                break
            for some in going.values():  # redirected by several nodes: in their order again
                some.sort(key=_first)
            answers = yield [
                NodeRequest(node, _packed(calls, some)) for node, some in going.items()
            ]
            on: dict[str, list[_Bundle]] = {}
            for (node, some), answer in zip(going.items(), answers, strict=True):
                self._note(node, answer)
                for bundle, came in _unpacked(some, answer):
                    for place in bundle.places:
                        trips[place] = (hop, node)
                    self._read(replies, bundle, node, came, on)
            going = on
        for some in going.values():
            for bundle in some:
                self._fill(replies, bundle, lib.TryAgainError("its nodes redirect in a circle"))
        _leave_uncounted(replies, routes, trips)
        return replies

    def locate(self, key: str) -> Finding:
        """The owner of the key's slot."""
        problem = yield from self._learn()
        if problem is not None:
            return problem
        owner = self._owners[key_slot(key.encode())]
        if owner is None:
            self._doubted = True
            return lib.ClusterDownError("its slot is served by no node")
        return owner

    def masters(self) -> Surveying:
        """The owners of slots."""
        problem = yield from self._learn()
        return problem or [*dict.fromkeys(owner for owner in self._owners if owner)]

    def doubt(self) -> None:
        """Ask for the map before the next call."""
        self._doubted = True

    def must_be_master(self, node: str) -> bool:
        """A node that does not own a slot says so itself."""
        return False

    def _bundles(self, routes: Sequence[Route]) -> list[tuple[_Bundle, str | None]]:
        """Which calls go together, and to which node."""
        starts = [place for place, route in enumerate(routes) if not isinstance(route, AfterCalls)]
        found: list[tuple[_Bundle, str | None]] = []
        for start, end in zip(starts, [*starts[1:], len(routes)], strict=True):
            route, places = routes[start], range(start, end)
            if isinstance(route, ToNode):
                found.append((_Bundle(places, None), route.node or self._nodes[0]))
            else:
                slot = key_slot(str(route).encode())
                found.append((_Bundle(places, slot), self._owners[slot]))
        return found

    def _note(self, node: str, answer: Answer) -> None:
        if isinstance(answer, Exception):
            self._doubted = True
            self._silent.add(node)
        else:
            self._silent.discard(node)

    def _read(
        self,
        replies: list[Any],
        bundle: _Bundle,
        node: str,
        came: list[Any] | Exception,
        on: dict[str, list[_Bundle]],
    ) -> None:
        """Take what came of a bundle for its replies, or send it on."""
        first = came if isinstance(came, Exception) else came[0]
        if isinstance(first, lib.AskError):  # the root of MOVED
            to = self._servers.beside(node, first.host, first.port)
            is_moved = isinstance(first, lib.MovedError)
            if is_moved and bundle.slot is not None:
                self._owners[bundle.slot] = to
                self._doubted = True  # where one has gone, others may follow
            on.setdefault(to, []).append(bundle._replace(asking=not is_moved))
            return
        if isinstance(first, _CHANGE):
            self._doubted = True
        if isinstance(came, Exception):
            self._fill(replies, bundle, came)
            return
        for place, reply in zip(bundle.places, came, strict=True):
            missing = isinstance(reply, lib.NoScriptError)
            replies[place] = NoScript(str(reply), node) if missing else reply

    def _fill(self, replies: list[Any], bundle: _Bundle, error: Exception) -> None:
        for place in bundle.places:
            replies[place] = error

    def _learn(self) -> Generator[list[NodeRequest], list[Answer], Exception | None]:
        """Ask for the map if it is doubted; why it is not known, if it never was."""
        if self._owners and not self._doubted:
            return None
        self._doubted = False  # whoever comes meanwhile goes by what was known
        known = random.sample(self._nodes, len(self._nodes))
        nodes = [*dict.fromkeys([*known, *self._servers.named])]
        heard = [node for node in nodes if node not in self._silent]
        silent = [node for node in nodes if node in self._silent]
        problem: Exception = lib.ConnectionError("no node was asked")
        for some in filter(None, (heard[:1], heard[1:], silent)):  # together: many may hang
            questions = [
                NodeRequest(node, [("CLUSTER", "SLOTS")], is_question=True) for node in some
            ]
            answers = yield questions
            for node, answer in zip(some, answers, strict=True):
                self._note(node, answer)
            for node, answer in zip(some, answers, strict=True):
                reply: Any = answer if isinstance(answer, Exception) else answer[0]
                if isinstance(reply, Exception):
                    problem = _explained(reply)
                elif reply:
                    self._take(node, reply)
                    return None
                else:
                    problem = lib.ClusterDownError("no slot is served by any node")
        self._doubted = True
        return None if self._owners else problem

    def _take(self, node: str, told: list[Any]) -> None:
        owners: list[str | None] = [None] * SLOTS
        nodes: dict[str, None] = {}
        for first, last, *some in told:
            urls = [
                self._servers.beside(node, host.decode() if host else None, port)
                for host, port, *_ in some
            ]
            owners[first : last + 1] = [urls[0]] * (last + 1 - first)
            nodes |= dict.fromkeys(urls)
        self._owners, self._nodes = owners, [*nodes]
        self._silent &= nodes.keys()


def _first(bundle: _Bundle) -> int:
    return bundle.places.start


def _leave_uncounted(replies: list[Any], routes: Sequence[Route], trips: list[Any]) -> None:
    """Have repeated what was written in another trip, and so perhaps to another node, than counted.

    The repeat finds its id, writes that, and is counted on the connection on which it did.
    """
    for place, route in enumerate(routes):
        if isinstance(route, AfterCalls):
            for other in route.counts:
                if trips[other] != trips[place] and not isinstance(replies[other], Exception):
                    replies[other] = lib.TryAgainError("its slot moved before it was confirmed")


def _packed(calls: Sequence[Call], bundles: list[_Bundle]) -> list[Call]:
    packed: list[Call] = []
    for bundle in bundles:
        if bundle.asking:
            packed.append(("ASKING",))
        packed += [calls[place] for place in bundle.places]
    return packed


def _unpacked(
    bundles: list[_Bundle], answer: Answer
) -> list[tuple[_Bundle, list[Any] | Exception]]:
    """What came of each bundle; the exception for each of them where the round trip broke."""
    found: list[tuple[_Bundle, list[Any] | Exception]] = []
    at = 0
    for bundle in bundles:
        start = at + bundle.asking
        at = start + len(bundle.places)
        found.append((bundle, answer if isinstance(answer, Exception) else answer[start:at]))
    return found


def _explained(error: Exception) -> Exception:
    if "cluster support disabled" in str(error):
        return UsageError(
            "The server that the URL names is no node of a Cluster; write redis://HOST:PORT/DB."
        )
    return error


_DOUBTS: Final = (
    lib.ReadOnlyError,
    lib.MasterDownError,
    lib.ConnectionError,
    lib.TimeoutError,  # all that is heard of a master that hangs; no `ConnectionError`
    OSError,
)
"""What comes of calls to one that may be the master no more."""


class _MasterReply(NamedTuple):
    master: str | Exception
    """Its URL, or why it is not known."""
    by_one: bool
    """Whether any Sentinel answered."""


class Sentinel:
    """Who is the master, as far as is known."""

    only: str | None = None

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._sentinels = [*servers.named]
        random.shuffle(self._sentinels)
        self._master: str | None = None

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send all to the master."""
        master = self._master
        if master is None:
            told = yield from self._ask()
            if isinstance(told.master, Exception):
                return [told.master] * len(calls) if told.by_one else told.master
            master = told.master
        (answer,) = yield [NodeRequest(master, [*calls])]
        if isinstance(answer, Exception):
            # A Sentinel did answer, so this is no wrong URL: it is for a repeat to cure.
            answer = [answer] * len(calls)
        if any(isinstance(reply, _DOUBTS) for reply in answer):
            self.doubt()
        return answer

    def locate(self, key: str) -> Finding:
        """The master, whatever the key."""
        if self._master is None:
            return (yield from self._ask()).master
        return self._master

    def masters(self) -> Surveying:
        """The one."""
        found = yield from self.locate("")
        return found if isinstance(found, Exception) else [found]

    def doubt(self) -> None:
        """Ask again who is the master."""
        self._master = None

    def must_be_master(self, node: str) -> bool:
        """Whether it is one that holds data."""
        return node not in self._servers.named

    def _ask(self) -> Generator[list[NodeRequest], list[Answer], _MasterReply]:
        name, by_one = self._servers.master, False
        problem: Exception = lib.ConnectionError("no Sentinel was asked")
        asked, self._sentinels = self._sentinels, self._sentinels[1:] + self._sentinels[:1]
        question: Call = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        for some in filter(None, (asked[:1], asked[1:])):  # together: many may hang
            answers = yield [NodeRequest(node, [question], is_question=True) for node in some]
            for node, answer in zip(some, answers, strict=True):
                reply: Any = answer if isinstance(answer, Exception) else answer[0]
                if isinstance(reply, Exception):
                    problem = reply
                    continue
                by_one = True
                if reply is not None:
                    host, port = reply
                    self._master = master = self._servers.beside(node, host.decode(), int(port))
                    return _MasterReply(master, by_one)
                problem = UsageError(
                    f"The Sentinels know no master {name!r}; write "
                    "redis+sentinel://HOST:PORT/NAME/DB with the name that their configuration "
                    "gives it."
                )
        return _MasterReply(problem, by_one)


__all__ = ["Delivery", "Finding", "NodeRequest", "Surveying", "Topology", "topology_for"]


class Topology(Protocol):
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


class SingleNode:
    """One server: everything goes there."""

    def __init__(self, url: str) -> None:
        self.only: str | None = url
        self._url = url

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send all in one round trip."""
        (answer,) = yield [NodeRequest(self._url, [*calls])]
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


def topology_for(url: str) -> Topology:
    """The routes to the servers that a URL means."""
    servers = read_servers(url)
    if servers.kind == "cluster":
        return Cluster(servers)
    if servers.kind == "sentinel":
        return Sentinel(servers)
    return SingleNode(url)
