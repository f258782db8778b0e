"""A server and its replica, for what a failover may lose."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import redis

from bide.embedded import Server
from tests.support.eventually import eventually


class Pair:
    """A server, and a replica of it."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary = primary
        self.replica = replica
        self.direct = redis.Redis.from_url(primary.url)
        self.behind = redis.Redis.from_url(replica.url)
        self.direct.config_set("repl-diskless-sync-delay", 0)
        self.connect()

    def connect(self) -> None:
        """Have the replica follow, and wait until it does."""
        at = urlsplit(self.primary.url)
        self.behind.replicaof(at.hostname, at.port)
        eventually(self._is_online)

    def freeze(self) -> None:
        """The replica stays connected, and receives nothing."""
        os.kill(self.replica.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        os.kill(self.replica.pid, signal.SIGCONT)

    def fail_over(self) -> None:
        """The server is killed, and the replica takes its place."""
        self.primary.kill()
        self.behind.replicaof("NO", "ONE")

    def _is_online(self) -> bool:
        info = self.direct.info("replication")
        return bool(info["connected_slaves"]) and info["slave0"]["state"] == "online"


@contextlib.contextmanager
def pair(
    binary: str | None = None, other: str | None = None, extra: tuple[str, ...] = ()
) -> Iterator[Pair]:
    """Start two servers; `other` is the replica's program, where it is not the same."""
    with (
        Server.start(tcp=True, binary=binary, extra=extra) as primary,
        Server.start(tcp=True, binary=other or binary) as replica,
    ):
        two = Pair(primary, replica)
        try:
            yield two
        finally:
            two.thaw()
            two.direct.close()
            two.behind.close()
