"""The servers of a scene, one or several, a bad line to them, and which scripts took long."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from bide.embedded import Server
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load as load_script
from bide.protocol.scripts import names as script_names
from tests.chaos.fault import Fault
from tests.chaos.jobs import QUEUE
from tests.support.cluster import Cluster
from tests.support.nodes import Node
from tests.support.proxy import Proxy

SLOW_US = 500
"""Scripts that take less are not looked at one by one."""
SLOWLOG = ("--slowlog-log-slower-than", str(SLOW_US), "--slowlog-max-len", "5000")

KEYS = keys_of(QUEUE)


class ServerSetup:
    """Servers that a fault may do to what it likes; they end with the stack."""

    def __init__(self, fault: Fault, home: Path, binary: str | None, stack: ExitStack) -> None:
        """Start them.

        Args:
            fault: says which.
            home: a directory.
            binary: the servers' program.
            stack: what they end with.
        """
        self._fault = fault
        self._home = home
        self._binary = binary
        self._stack = stack
        self._clients: dict[str, redis.Redis] = {}
        self._shas = {load_script(name, fault.clock).sha: name for name in script_names()}
        self.longest_us: dict[str, int] = {}
        """The longest run of each script so far, of those that took `SLOW_US` once."""
        self.proxy: Proxy | None = None
        self.several: Any = None
        """A `Cluster` or `Sentinels`, if the fault is of several servers."""
        if fault.several is not None:
            options = (*SLOWLOG, *fault.server)
            self.several = stack.enter_context(
                fault.several(binary=binary, persist=True, extra=options)
            )
            self.url = self.several.url
        else:
            self.server = self._start_server("server", fault.persist)
            self.url = self.server.url
        if fault.proxied:
            self.proxy = stack.enter_context(Proxy(self.url))
            self.url = self.proxy.url

    @property
    def longest(self) -> tuple[int, str]:
        """The longest run of a script so far, in microseconds, and the script."""
        return max(((us, name) for name, us in self.longest_us.items()), default=(0, ""))

    def _start_server(self, name: str, persist: bool, *extra: str) -> Server:
        options = (*SLOWLOG, *self._fault.server, *extra)
        server = Server.start(
            self._home / name,
            persist=persist,
            tcp=self._fault.tcp,
            binary=self._binary,
            extra=options,
        )
        return self._stack.enter_context(server)

    def another_server(self, name: str, *extra: str) -> Server:
        """A server beside the first; it ends with the scene."""
        return self._start_server(name, False, *extra)

    @property
    def direct(self) -> redis.Redis:
        """The server that has the queue now, past the proxy."""
        return self._client(self.owner.server if self.several is not None else self.server)

    @property
    def servers(self) -> list[Server]:
        """All that there are, or the one that has the queue now."""
        if self.several is None:
            return [self.server]
        return [node.server for node in self.several.nodes]

    @property
    def owner(self) -> Node:
        """Of several servers, the one that has the queue now."""
        node: Node
        if isinstance(self.several, Cluster):
            node = self.several.owner(KEYS["meta"])
        else:
            node = self.several.master
        return node

    def _client(self, server: Server) -> redis.Redis:
        if server.url not in self._clients:
            client = self._stack.enter_context(redis.Redis.from_url(server.url))
            self._clients[server.url] = client
        return self._clients[server.url]

    def is_drained(self) -> bool:
        """Whether nothing is due any more, now or later, nothing waits, and nothing runs."""
        pipe = self.direct.pipeline(transaction=False)
        for key in (*KEYS.names["due"], KEYS["active"], KEYS["blocked"]):
            pipe.zcard(key)
        return not any(pipe.execute())

    def look_at_scripts(self) -> None:
        """Note the longest script that the servers have run; to be called before one is killed."""
        if self.several is None:
            self._look_at(self.direct)
        else:
            for node in self.several.nodes:
                if node.is_alive:
                    self._look_at(self._client(node.server))

    def _look_at(self, client: redis.Redis) -> None:
        for entry in client.slowlog_get(5_000):
            words = entry["command"].split(b" ", 2)
            if words[0].upper() == b"EVALSHA":
                name = self._shas.get(words[1].decode(), "?")
                self.longest_us[name] = max(self.longest_us.get(name, 0), entry["duration"])
        client.slowlog_reset()
