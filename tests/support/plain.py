"""Plain clients of the library's, for what tests read and write beside bide."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import redis
from redis.cluster import ClusterNode
from redis.sentinel import Sentinel

from bide.client.url import read_servers


class Everywhere(redis.RedisCluster):
    """A Cluster's client whose settings and questions go to every master."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        if str(args[0]).startswith(("CONFIG SET", "ACL", "CLIENT KILL")):
            kwargs.setdefault("target_nodes", redis.RedisCluster.PRIMARIES)
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


def client_of(url: str) -> Any:
    """A client of the server, of the whole Cluster, or of the master that Sentinels name."""
    servers = read_servers(url)
    if servers.kind == "cluster":
        named = [ClusterNode(*_address(one)) for one in servers.named]  # type: ignore[no-untyped-call]
        # Not from a URL: `close` of a client that was made from one leaves its connections open.
        return Everywhere(startup_nodes=named, socket_timeout=5)
    if servers.kind == "sentinel":
        addresses = [_address(one) for one in servers.named]
        sentinel: Any = Sentinel(addresses, socket_timeout=5)  # type: ignore[no-untyped-call]
        return sentinel.master_for(servers.master)
    return redis.Redis.from_url(url)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)
