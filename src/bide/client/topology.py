"""Routes calls to one server, to the nodes of a Cluster, or to the master of Sentinels.

Like `bide.client.execute`, this has no I/O: generators say which calls to send to which node, and
receive the replies. The clients make the connections, one pool for each URL.

    NodeRequest(node, calls)   one round trip to one node; several may run concurrently. The answer
                               is the list of replies, in which an error reply is an exception, or
                               the exception that broke the round trip

A redirection is followed at once. Every other error that a retry may cure (a node that is down, a
slot that is being moved) is returned. The topology is then marked as doubtful, and
`bide.client.execute` retries the call a little later, with the same id.

The known topology is a guess until a node contradicts it. MOVED names the new owner of a slot; ASK
names the node to try once while a slot is being moved. After any other sign of change, the next
call asks for the whole map first (CLUSTER SLOTS, to any node that answers).

A Sentinel may be out of date, or cut off together with an old master. So each question goes to
another Sentinel first, and each connection asks its node whether it is a master (`must_be_master`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions as lib
from redis.crc import key_slot

from bide.client.execute import AfterCalls, Answer, Call, NoScript, Route, ToNode
from bide.client.url import Servers, read_servers
from bide.errors import UsageError
from bide.model.durations import JITTER


class NodeRequest(NamedTuple):
    """One round trip to one node."""

    node: str
    """Its URL, of one server."""
    calls: list[Call]
    is_question: bool = False
    """Whether it asks about the servers themselves; its reply does not mean that commands run."""
    encoded: bytes | None = None
    """The calls as they are sent, if they are encoded already."""


Delivery = Generator[list[NodeRequest], list[Answer], Answer]
Finding = Generator[list[NodeRequest], list[Answer], str | Exception]
Surveying = Generator[list[NodeRequest], list[Answer], list[str] | Exception]


SLOTS: Final = 16384
HOPS: Final = 5
"""Redirections that are followed at once; nodes that send more do not agree yet."""

_CHANGE: Final = (lib.ReadOnlyError, lib.ClusterDownError, lib.MasterDownError)
"""Error replies that mean that the known topology may be wrong."""


class _Bundle(NamedTuple):
    """A call, and the calls that must follow right behind it on the same node."""

    places: range
    """Positions among the delivered calls."""
    slot: int | None
    """None if the route names a node instead."""
    asking: bool = False


class Topology:
    """The known servers of a URL, here one; threads and event loops may share it."""

    def __init__(self, only: str | None = None) -> None:
        self.only: Final = only
        """The URL of the only server, to which every route leads, so that callers can skip
        `deliver`. None if there may be several servers."""

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send each call to the node of its route.

        Returns the replies in the order of the calls, with an exception for each that failed; or
        the exception because of which nothing was sent at all.
        """
        (answer,) = yield [NodeRequest(self.only or "", [*calls])]
        return answer

    def locate(self, key: str) -> Finding:
        """Find the URL of the node that has a key now, or why it is not known."""
        yield from ()
        return self.only or ""

    def masters(self) -> Surveying:
        """Find the URLs of all masters, or why they are not known."""
        found = yield from self.locate("")
        return found if isinstance(found, Exception) else [found]

    def doubt(self) -> None:
        """Note a broken connection or a wrong answer: the next call asks for the topology again."""

    def must_be_master(self, node: str) -> bool:
        """Whether a connection is only usable if its node says that it is a master."""
        return False  # the URL names a single one; a Cluster's redirects what it does not own


class Cluster(Topology):
    """The map of slots of a Cluster."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self._servers = servers
        self._owners: list[str | None] = []
        """The node of each slot; empty before the first map."""
        self._nodes: list[str] = []
        self._silent: set[str] = set()
        """Nodes whose last round trip broke; they are asked for the map last."""
        self._doubted = True

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send each call to the owner of its slot, and follow redirections."""
        problem = yield from self._learn()
        if problem is not None:
            return problem
        replies: list[Any] = [None] * len(calls)
        answered_in: list[Any] = [None] * len(calls)
        """The hop and node that answered each call."""
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
            for some in going.values():  # calls that several nodes redirected: restore their order
                some.sort(key=lambda bundle: bundle.places.start)
            answers = yield [
                NodeRequest(node, _packed(calls, some)) for node, some in going.items()
            ]
            on: dict[str, list[_Bundle]] = {}
            for (node, some), answer in zip(going.items(), answers, strict=True):
                self._note(node, answer)
                for bundle, came in _unpacked(some, answer):
                    for place in bundle.places:
                        answered_in[place] = (hop, node)
                    self._read(replies, bundle, node, came, on)
            going = on
        for some in going.values():
            for bundle in some:
                self._fill(replies, bundle, lib.TryAgainError("its nodes redirect in a circle"))
        _leave_uncounted(replies, routes, answered_in)
        return replies

    def locate(self, key: str) -> Finding:
        """Find the owner of the key's slot."""
        problem = yield from self._learn()
        if problem is not None:
            return problem
        owner = self._owners[key_slot(key.encode())]
        if owner is None:
            self._doubted = True
            return lib.ClusterDownError("its slot is served by no node")
        return owner

    def masters(self) -> Surveying:
        """Find the owners of all slots."""
        problem = yield from self._learn()
        return problem or [*dict.fromkeys(owner for owner in self._owners if owner)]

    def doubt(self) -> None:
        """Ask for the map before the next call."""
        self._doubted = True

    def _bundles(self, routes: Sequence[Route]) -> list[tuple[_Bundle, str | None]]:
        """Group the calls that go together, with their nodes."""
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
        """Store the replies to a bundle, or follow a redirection."""
        first = came if isinstance(came, Exception) else came[0]
        if isinstance(first, lib.AskError):  # the base class of MOVED
            to = self._servers.beside(node, first.host, first.port)
            is_moved = isinstance(first, lib.MovedError)
            if is_moved and bundle.slot is not None:
                self._owners[bundle.slot] = to
                self._doubted = True  # other slots may have moved too
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
        """Ask for the map if it is doubtful; return an error if there has never been one."""
        if self._owners and not self._doubted:
            return None
        self._doubted = False  # concurrent calls use the old map
        known = JITTER.sample(self._nodes, len(self._nodes))
        nodes = [*dict.fromkeys([*known, *self._servers.named])]
        heard = [node for node in nodes if node not in self._silent]
        silent = [node for node in nodes if node in self._silent]
        problem: Exception = lib.ConnectionError("no node was asked")
        for some in filter(None, (heard[:1], heard[1:], silent)):  # concurrently: many may hang
            questions = [
                NodeRequest(node, [("CLUSTER", "SLOTS")], is_question=True) for node in some
            ]
            answers = yield questions
            for node, answer in zip(some, answers, strict=True):
                self._note(node, answer)
            for node, answer in zip(some, answers, strict=True):
                reply: Any = answer if isinstance(answer, Exception) else answer[0]
                if isinstance(reply, Exception):
                    problem = reply
                    if "cluster support disabled" in str(reply):
                        problem = UsageError(
                            "The server that the URL names is not a node of a Cluster; write "
                            "redis://HOST:PORT/DB."
                        )
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


def _leave_uncounted(replies: list[Any], routes: Sequence[Route], answered_in: list[Any]) -> None:
    """Have calls repeated that were written in another request than the wait that counts them.

    The retry finds its id, writes a little, and is counted on the connection of that write.
    """
    for place, route in enumerate(routes):
        if isinstance(route, AfterCalls):
            for other in route.counts:
                if answered_in[other] != answered_in[place] and not isinstance(
                    replies[other], Exception
                ):
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
    """Return the replies to each bundle; for all the same exception if the round trip broke."""
    found: list[tuple[_Bundle, list[Any] | Exception]] = []
    at = 0
    for bundle in bundles:
        start = at + bundle.asking
        at = start + len(bundle.places)
        found.append((bundle, answer if isinstance(answer, Exception) else answer[start:at]))
    return found


_DOUBTS: Final = (
    lib.ReadOnlyError,
    lib.MasterDownError,
    lib.ConnectionError,
    lib.TimeoutError,  # the only sign of a master that hangs; not a `ConnectionError`
    OSError,
)
"""Errors of calls to a node that may have stopped being the master."""


class _MasterReply(NamedTuple):
    master: str | Exception
    """The URL of the master, or why it is not known."""
    by_one: bool
    """Whether any Sentinel answered."""


class Sentinel(Topology):
    """The master that Sentinels name."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self._servers = servers
        self._sentinels = [*servers.named]
        JITTER.shuffle(self._sentinels)
        self._master: str | None = None

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send all calls to the master."""
        master = self._master
        if master is None:
            told = yield from self._ask()
            if isinstance(told.master, Exception):
                return [told.master] * len(calls) if told.by_one else told.master
            master = told.master
        (answer,) = yield [NodeRequest(master, [*calls])]
        if isinstance(answer, Exception):
            # A Sentinel did answer, so the URL is right: a retry may succeed.
            answer = [answer] * len(calls)
        if any(isinstance(reply, _DOUBTS) for reply in answer):
            self.doubt()
        return answer

    def locate(self, key: str) -> Finding:
        """Find the master, for any key."""
        if self._master is None:
            return (yield from self._ask()).master
        return self._master

    def doubt(self) -> None:
        """Ask the Sentinels again before the next call."""
        self._master = None

    def must_be_master(self, node: str) -> bool:
        """Whether the node holds data, which a Sentinel does not."""
        return node not in self._servers.named

    def _ask(self) -> Generator[list[NodeRequest], list[Answer], _MasterReply]:
        name, by_one = self._servers.master, False
        problem: Exception = lib.ConnectionError("no Sentinel was asked")
        asked, self._sentinels = self._sentinels, self._sentinels[1:] + self._sentinels[:1]
        question: Call = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        for some in filter(None, (asked[:1], asked[1:])):  # concurrently: many may hang
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


def topology_for(url: str) -> Topology:
    """Return the topology of a URL."""
    servers = read_servers(url)
    if servers.kind == "cluster":
        return Cluster(servers)
    if servers.kind == "sentinel":
        return Sentinel(servers)
    return Topology(url)
