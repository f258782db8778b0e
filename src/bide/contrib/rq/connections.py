"""Connections of a Timer's own, made like the one it was given."""

from __future__ import annotations

from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel
from rq.connections import parse_connection

from bide.connection import CONNECT_TIMEOUT, REPLY_TIMEOUT, options
from bide.contrib.rq.scripts import NO_CLUSTER
from bide.errors import UsageError
from bide.servers import read_servers

GONE: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
"""What a server that went away is noticed by."""

_NOT_TCP: Final = "path"


def client_like(connection: redis.Redis, reply_timeout: float) -> redis.Redis:
    """A client with a pool of its own, to the same server with the same credentials.

    The library's own repeats are off: whoever waits for a server must hear that it has gone.

    Args:
        connection: to be made like; it must live as long, as a Sentinel's connections ask it who
            the master is.
        reply_timeout: seconds without a reply after which a connection counts as dead.
    """
    client, kind, options = parse_connection(connection)
    options |= {
        "socket_timeout": reply_timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
    }
    if _NOT_TCP not in options:
        options["socket_keepalive"] = True
        if options.get("socket_connect_timeout") is None:
            options["socket_connect_timeout"] = CONNECT_TIMEOUT
    return client(connection_pool=redis.ConnectionPool(connection_class=kind, **options))


def client_of(url: str) -> redis.Redis:
    """A client of the server that a URL means, which `bide.connection.resolve_url` has passed.

    Raises:
        UsageError: it means a Cluster.
    """
    servers = read_servers(url)
    if servers.kind == "cluster":
        raise UsageError(NO_CLUSTER)
    if servers.kind == "one":
        return redis.Redis.from_url(url, **options(url, Retry, REPLY_TIMEOUT))
    sentinels: Any = Sentinel([])  # type: ignore[no-untyped-call]
    sentinels.sentinels = [
        redis.Redis.from_url(one, **options(one, Retry, REPLY_TIMEOUT)) for one in servers.named
    ]
    node = servers.url_of("master", 0)  # the Sentinels say where it is
    pool = redis.ConnectionPool.from_url(node, **options(node, Retry, REPLY_TIMEOUT))
    settings = {k: v for k, v in pool.connection_kwargs.items() if k not in ("host", "port")}
    is_tls = issubclass(pool.connection_class, redis.SSLConnection)
    client: redis.Redis = sentinels.master_for(servers.master, ssl=is_tls, **settings)
    return client


def describe(connection: redis.Redis) -> str:
    """Where a connection leads, without its password."""
    options: dict[str, Any] = connection.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    return "the Sentinel's master"
