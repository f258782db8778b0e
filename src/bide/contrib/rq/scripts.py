"""The scripts of this package: loaded, named by their content, and run over RQ's connection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import redis
import rq
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel
from rq.connections import parse_connection
from rq.registry import CanceledJobRegistry, ScheduledJobRegistry

from bide.client.url import CONNECT_TIMEOUT, REPLY_TIMEOUT, options, read_servers
from bide.contrib.rq_sets import DELAYED, GATE
from bide.errors import UsageError

NO_CLUSTER: Final = (
    "RQ's keys have no hash tag, so delayed jobs need one server or a Sentinel; "
    "this connection is to a cluster: give another."
)


@cache
def load(name: str) -> tuple[str, str]:
    """The script of this name, after the part that all share; and its SHA-1, as servers know it."""
    folder = resources.files("bide.contrib.rq").joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run(client: Any, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
    """Run a script; its reply. In a pipeline it is only queued, and there is no reply.

    Raises:
        UsageError: the server is part of a cluster.
        redis.RedisError: as the client library has it.
    """
    text, sha = load(name)
    if isinstance(client, Pipeline):
        # By its text: a server that has lost its scripts would refuse a part of a transaction.
        return client.eval(text, len(keys), *keys, *args)
    try:
        try:
            return client.evalsha(sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(text, len(keys), *keys, *args)
    except ResponseError as error:
        # The client library has classes for some of these replies, and has cut their first word.
        words = str(error) + type(error).__name__
        if any(word in words for word in ("CROSSSLOT", "CrossSlot", "MOVED", "Moved")):
            raise UsageError(NO_CLUSTER) from None
        raise


def check_connection(client: object) -> None:
    """Refuse a client of a cluster.

    Raises:
        UsageError: it is one.
    """
    if isinstance(client, redis.RedisCluster):
        raise UsageError(NO_CLUSTER)


WAKEUPS: Final = "rq:delay_hint:"
"""A channel for each queue: when the job is due that has just become its earliest."""


@dataclass(frozen=True)
class RqKeys:
    """What belongs to one queue.

    Attributes:
        name: The queue's name.
        delayed: The sorted set of its delayed jobs.
        other_set: The same where the queue names a key of its own; else empty.
        wakeups: The channel of its wake-up messages.
        list: RQ's list, which workers read.
        dependency_hook: RQ's list of the gate.
        scheduled: RQ's registry of jobs that wait for RQ's own scheduler.
        cancelled: RQ's registry of cancelled jobs.
        queues: RQ's set of all queues.
        jobs: What the key of a job begins with.
    """

    name: str
    delayed: str
    other_set: str
    wakeups: str
    list: str
    dependency_hook: str
    scheduled: str
    cancelled: str
    queues: str
    jobs: str

    @classmethod
    def of(cls, queue: rq.Queue) -> RqKeys:
        """The keys of a queue; a subclass may have RQ's prefixes changed.

        Raises:
            UsageError: its name is that of the gate, or its `delay_key` is not the name of a key.
        """
        if queue.name == GATE:
            raise UsageError(
                f"{GATE!r} is where delayed jobs with dependencies pass; call the queue otherwise."
            )
        usual = f"{DELAYED}{queue.name}"
        delayed = getattr(queue, "delay_key", usual)
        if not isinstance(delayed, str) or not delayed:
            raise UsageError(f"delay_key must be the name of a key, as text, not {delayed!r}.")
        return cls(
            name=queue.name,
            delayed=delayed,
            other_set="" if delayed == usual else delayed,
            wakeups=f"{WAKEUPS}{queue.name}",
            list=queue.key,
            dependency_hook=f"{queue.redis_queue_namespace_prefix}{GATE}",
            scheduled=ScheduledJobRegistry.key_template.format(queue.name),
            cancelled=CanceledJobRegistry.key_template.format(queue.name),
            queues=queue.redis_queues_keys,
            jobs=queue.job_class.key_for(""),
        )


GONE: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
"""What a server that went away is noticed by."""

_NOT_TCP: Final = "path"


def client_like(connection: redis.Redis, reply_timeout: float) -> redis.Redis:
    """Make a client with a pool of its own, to the same server with the same credentials.

    The library's own retries are off: the caller must learn at once that a server is gone.

    Args:
        connection: the client to copy. It must live as long as the new one, because connections
            through a Sentinel ask it for the master.
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
    """A client of the server that a URL means, which `bide.client.url.resolve_url` has passed.

    Raises:
        UsageError: it means a Cluster.
    """
    servers = read_servers(url)
    if servers.kind == "cluster":
        raise UsageError(NO_CLUSTER)
    if servers.kind == "one":
        return redis.Redis.from_url(**options(url, Retry, REPLY_TIMEOUT))
    sentinels: Any = Sentinel([])  # type: ignore[no-untyped-call]
    sentinels.sentinels = [
        redis.Redis.from_url(**options(one, Retry, REPLY_TIMEOUT)) for one in servers.named
    ]
    node = servers.url_of("master", 0)  # the Sentinels say where it is
    pool = redis.ConnectionPool.from_url(**options(node, Retry, REPLY_TIMEOUT))
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
