"""What a cluster and a trio of sentinels have in common: servers that hold the same data."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bide.embedded import Server
from tests.support.eventually import PATIENCE, eventually

Address = tuple[str, int]

ERRORS = (redis.RedisError, OSError)
"""What a node answers with while it is down, starts, or changes its mind."""


@dataclass(eq=False)
class Node:
    """One server of several, and a plain client of its own."""

    server: Server = field(repr=False)
    name: str = ""
    """What a cluster calls it."""
    tls_port: int = 0
    """Where it speaks TLS too, and the others find it; 0 if it does not."""
    client: Any = field(init=False, repr=False)
    is_alive: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.client = redis.Redis.from_url(
            self.server.url,
            decode_responses=True,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        for question in ("INFO", "NODES", "SLOTS"):  # as it comes, whatever the library's version
            self.client.set_response_callback(f"CLUSTER {question}", lambda reply, **_: reply)

    def __str__(self) -> str:
        return "{}:{}".format(*self.address)

    @property
    def address(self) -> Address:
        host, _, port = self.server.url.split("/")[2].rpartition(":")
        return host, int(port)

    @property
    def told(self) -> Address:
        """What the others call it."""
        host, port = self.address
        return host, self.tls_port or port

    @property
    def role(self) -> str:
        """`master` or `slave`, as it says itself; empty where it says nothing."""
        try:
            return str(self.client.role()[0])
        except ERRORS:
            return ""

    def passed_on(self) -> None:
        """Wait until what a master has now is on its replicas."""
        at = self.client.info("replication")["master_repl_offset"]

        def has_come() -> bool:
            told = self.client.info("replication")
            offsets = [told[f"slave{i}"]["offset"] for i in range(told["connected_slaves"])]
            return bool(offsets) and min(offsets) >= at

        eventually(has_come)

    def kill(self) -> None:
        """As a crash would: what it had not written or passed on is lost."""
        self.server.kill()
        self.is_alive = False
        self.client.connection_pool.disconnect()

    def restart(self) -> None:
        """At the same address; it still has its data only if it was started with `persist`."""
        self.server.restart()
        self.is_alive = True

    def freeze(self) -> None:
        """Stop it where it stands: connections stay open, and nothing is answered."""
        os.kill(self.server.pid, signal.SIGSTOP)
        self.is_alive = False

    def thaw(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)
        self.is_alive = True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listed(addresses: list[Address]) -> str:
    """The addresses as a URL has them."""
    return ",".join(f"{host}:{port}" for host, port in addresses)
