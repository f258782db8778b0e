"""Reads facts about a server with plain commands, for `doctor`, `fsck` and completion.

The clients of `bide.client` only run scripts. This module calls INFO, CONFIG GET, TIME and SCAN
over a connection with the same options. A server may refuse any of these commands: an ACL denies
it, the disk is full, or a script runs too long. The other commands are then called nevertheless.

`points` is the end of `bide doctor`: further needs of production. A server for development needs
none of them, so they are a separate list and do not change the exit code.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

import click
import redis
from redis import exceptions as lib
from redis.retry import Retry

from bide.cli.options import flag, json_option, option, queues_option, server_options
from bide.cli.screen import aside, echo, echo_json
from bide.client import blocking
from bide.client.acl import ROLES, Role, rules
from bide.client.errors import map_error
from bide.client.url import Kind, addresses, options, read_servers, resolve_prefix, resolve_url
from bide.contrib import rq_sets
from bide.contrib.rq_sets import DelaySet
from bide.errors import BideError, UsageError
from bide.logs import count
from bide.model.durations import describe
from bide.model.ids import check_name
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo
from bide.protocol.commands.schedules import read_page
from bide.protocol.keys import keys_of

ROUND_TRIPS: Final = 20
_SCAN: Final = 1_000
"""Approximate number of keys per SCAN."""
_QUEUE: Final = re.compile(rb"\{([^{}]+)\}")
_AT_ONCE: Final = 0.3
"""Maximum seconds for which a shell waits for names."""

T = TypeVar("T")

Named = Literal["queues", "schedules", "workers", "tasks"]
"""The kinds of names that a shell completes."""


class Readings(NamedTuple):
    """Facts about a server; None or empty if the server denied the command."""

    info: dict[str, Any]
    """The reply to INFO, as the client library parses it."""
    config: dict[str, str]
    """The reply to CONFIG GET for settings that INFO does not have."""
    skew: float | None
    """Seconds by which the server's clock is ahead of this machine's."""
    unsure: float
    """The error of `skew` in seconds: half of the shortest round trip."""
    round_trips: list[float]
    """The durations of round trips in seconds, sorted."""
    kind: Kind = "one"
    """The kind of servers in the URL."""
    node: str = ""
    """Host and port, if there are several servers."""
    cluster: Mapping[str, str] = MappingProxyType({})
    """The reply to CLUSTER INFO of a node of a Cluster."""
    sentinels: tuple[int, int] = (0, 0)
    """Number of the URL's Sentinels that answer, and number of all of them."""
    refused: Mapping[str, str] = MappingProxyType({})
    """Refused command -> reason."""
    lost: str = ""
    """Why there are no facts: the server cannot be reached, or refuses the login."""


def probe(url: str | None) -> list[Readings]:
    """Read facts about the server; for a Cluster, about each master."""
    client = blocking.Client(url, reply_timeout=5.0)
    servers = read_servers(client.url)
    sentinels = (0, 0)
    if servers.kind == "sentinel":
        sentinels = (sum(map(_is_there, servers.named)), len(servers.named))
    try:
        found = [_ask(node, client.where) for node in blocking.masters(client)]
    except (lib.RedisError, OSError, BideError) as error:
        found = [_lost(error, client.where)]
    finally:
        client.close()
    return [one._replace(kind=servers.kind, sentinels=sentinels) for one in found]


class Memory(NamedTuple):
    """The memory of a server, in bytes."""

    used: int
    most: int
    """`maxmemory`; 0 for no limit."""


def memory(client: blocking.Client) -> dict[str, Memory]:
    """Return the memory of each master, by host and port; nothing if INFO is denied.

    Raises:
        BideError: a server cannot be reached.
    """
    found: dict[str, Memory] = {}
    try:
        for node in blocking.masters(client):
            with suppress(lib.ResponseError):
                info = node.info("memory")
                found[_node(node)] = Memory(int(info["used_memory"]), int(info["maxmemory"]))
    except (lib.RedisError, OSError) as error:
        raise map_error(error, client.where) from None
    return found


def _node(client: redis.Redis) -> str:
    """Return host and port of a server, or the path of its socket."""
    known = client.connection_pool.connection_kwargs
    return f"{known['host']}:{known['port']}" if "port" in known else str(known.get("path", ""))


def _lost(error: Exception, where: str) -> Readings:
    """Return the facts of an unreachable server; raise UsageError if the URL does not fit."""
    sentence = map_error(error, where)
    if isinstance(sentence, UsageError):
        raise sentence from None
    return Readings({}, {}, None, 0.0, [], lost=str(sentence))


def _ask(client: redis.Redis, where: str) -> Readings:
    known = client.connection_pool.connection_kwargs
    node = f"{known['host']}:{known['port']}" if "host" in known and "port" in known else ""
    refused: dict[str, str] = {}

    def ask(command: str, call: Callable[[], T], otherwise: T) -> T:
        """Return the reply, or `otherwise` if the server refuses the command."""
        try:
            return call()
        except lib.ResponseError as error:
            refused[command] = _why(command, error)
            return otherwise

    try:
        skew, unsure, round_trips = _measure(client, ask)
        info: dict[str, Any] = ask("INFO", lambda: dict(client.info("everything")), {})
        in_cluster = bool(info.get("cluster_enabled"))
        return Readings(
            info=info,
            config=_config(client, ask),
            skew=skew,
            unsure=unsure,
            round_trips=round_trips,
            node=node,
            cluster=ask("CLUSTER INFO", partial(_cluster, client), {}) if in_cluster else {},
            refused=refused,
        )
    except (lib.RedisError, OSError) as error:
        return _lost(error, where)._replace(node=node)


def _why(command: str, error: lib.ResponseError) -> str:
    code = str(error).partition(" ")[0]
    is_denied = isinstance(error, lib.NoPermissionError) or not code.isupper()
    return f"{command} is denied" if is_denied else f"the server refuses {command} ({code})"


def _cluster(client: redis.Redis) -> dict[str, str]:
    return _texts(client.execute_command("CLUSTER INFO"))  # type: ignore[no-untyped-call]


def _is_there(sentinel: str) -> bool:
    try:
        with redis.Redis.from_url(**options(sentinel, Retry, 1.0)) as client:
            return bool(client.ping())
    except (lib.RedisError, OSError):
        return False


def completions(kind: Named, url: str | None, prefix: str | None) -> list[str]:
    """List names for a shell to complete; none if the server is slow or unreachable."""
    try:
        client = blocking.Client(url, retry_for=0, reply_timeout=_AT_ONCE)
        try:
            return sorted(set(_named(kind, client, resolve_prefix(prefix))))
        finally:
            client.close()
    except Exception:  # during completion, a shell cannot show an error
        return []


def _named(kind: Named, client: blocking.Client, prefix: str) -> Iterable[str]:
    everywhere = keys_of(None, prefix)
    if kind in ("workers", "tasks"):
        for worker in client.run(queue_commands.workers(everywhere)):
            yield from [worker.name] if kind == "workers" else worker.about.tasks
        return
    queues = client.run(queue_commands.queues(everywhere))
    if kind == "queues":
        yield from queues
        return
    for page in client.run_many([read_page(keys_of(name, prefix), "0") for name in queues]):
        yield from (schedule.name for schedule in page.schedules)


def queues_with_keys(client: blocking.Client, prefix: str) -> set[str]:
    """Return the queues that have keys on the server, or on any master of a Cluster."""
    begin = re.sub(r"[][*?\\^-]", r"\\\g<0>", f"{prefix}:")
    names: set[str] = set()
    try:
        for node in blocking.masters(client):
            for key in node.scan_iter(match=f"{begin}{{*}}*", count=_SCAN):
                found = _QUEUE.match(key.removeprefix(f"{prefix}:".encode()))
                with suppress(UnicodeDecodeError):  # not the name of a queue
                    names.update([found[1].decode()] if found else ())
    except (lib.RedisError, OSError) as error:
        raise map_error(error, client.where) from None
    return names


def delayed_on_rq(client: blocking.Client) -> list[DelaySet] | None:
    """Return the sets of RQ's delayed jobs; None if the server denies it."""
    if read_servers(client.url).kind == "cluster":  # RQ does not support it
        return []
    try:
        return rq_sets.look(blocking.node_of(client, rq_sets.QUEUES))
    except lib.ResponseError:
        return None
    except (lib.RedisError, OSError) as error:
        raise map_error(error, client.where) from None


_Ask = Callable[[str, Callable[[], Any], Any], Any]
"""Calls a command; returns the last argument if the server refuses the command."""


def _measure(client: redis.Redis, ask: _Ask) -> tuple[float | None, float, list[float]]:
    """Return the skew of the clock by the shortest round trip, and all durations."""
    found: list[tuple[float, float]] = []
    for _ in range(ROUND_TRIPS):
        before, began = time.time(), time.monotonic()
        moment = ask("TIME", client.time, None)
        took = time.monotonic() - began
        if moment is None:
            return None, 0.0, ask("PING", lambda: [_ping(client) for _ in range(ROUND_TRIPS)], [])
        seconds, us = moment
        found.append((took, seconds + us / 1e6 - (before + took / 2)))
    took, skew = min(found)
    return skew, took / 2, sorted(took for took, _ in found)


def _ping(client: redis.Redis) -> float:
    began = time.monotonic()
    client.ping()
    return time.monotonic() - began


def _config(client: redis.Redis, ask: _Ask) -> dict[str, str]:
    asked = ("timeout", "tcp-keepalive", "save", "appendfsync", "min-replicas-to-write")
    config: dict[str, str] = {}
    for name in asked:
        config |= _texts(ask("CONFIG GET", partial(client.config_get, name), {}))
    return config


def _texts(told: Mapping[Any, Any]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in told.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_BARE: Final = re.compile(r"[\w:{}~&+@|*./%-]+", re.ASCII)


@click.command()
@click.argument("roles", nargs=-1, type=click.Choice(ROLES), metavar="[ROLE]...")
@queues_option("Queue to allow; repeat for more.  [default: all queues of the prefix]")
@option("--user", "NAME", "User's name, for a single role.  [default: PREFIX-ROLE]")
@flag("--fsync", 'Add permissions for durability="fsync" (Redis 7.2, Valkey).')
@server_options
@json_option
def acl(
    roles: tuple[Role, ...],
    queues: tuple[str, ...],
    user: str | None,
    fsync: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print the least permissions on the server for each ROLE.

    ROLE is worker, producer, operator or viewer; without ROLE, all of them are printed. The command
    calls no server: pass the lines to redis-cli, for each node of a Cluster. The lines set no
    password, and keep an existing one.
    """
    prefix = check_name(resolve_prefix(prefix), "prefix")
    chosen = roles or ROLES
    if user is not None:
        check_name(user, "--user")
        if len(chosen) != 1:
            raise click.UsageError("--user names the user of one ROLE; give that one.")
    kind = read_servers(resolve_url(url)).kind
    users = {
        role: (user or f"{prefix}-{role}", rules(role, queues, prefix, kind, fsync=fsync))
        for role in chosen
    }
    if as_json:
        echo_json(
            {"users": [{"name": n, "role": role, "rules": r} for role, (n, r) in users.items()]}
        )
        return
    for name, given in users.values():
        echo(" ".join(map(quoted, ("ACL", "SETUSER", name, *given))))
    aside(
        "Give each a password: ACL SETUSER NAME '>PASSWORD'; ACL SAVE or CONFIG REWRITE keeps it."
    )


def quoted(word: str) -> str:
    """Quote a word of a command line for redis-cli."""
    if _BARE.fullmatch(word):
        return word
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f'"{escaped}"'


State = Literal["ok", "missing", "unknown"]
Need = tuple[State, str]
"""The state of a point, and the reason if it is not ok."""

_NAMED: Final = 3
"""Maximum number of queues or tasks in a line."""


class Point(NamedTuple):
    """One line of the list."""

    point: str
    state: State
    says: str
    page: str
    """The page of the documentation, relative to the folder `docs`."""


PAGES: Final[dict[str, str]] = {
    "persistence": "installation.md#the-servers-settings",
    "eviction": "howto/production.md#the-server",
    "memory limit": "howto/sizing.md",
    "replica": "howto/servers.md#failover-when-a-master-fails",
    "permissions": "howto/security.md#permissions-on-the-server",
    "tls": "howto/servers.md#tls",
    "workers": "howto/production.md#several-workers-as-one-unit",
    "health port": "howto/production.md#several-workers-as-one-unit",
    "time-outs": "howto/long-jobs.md#what-a-deploy-does-to-a-running-job",
}
"""Every point in its order, and its page."""


def points(
    readings: Sequence[Readings],
    url: str,
    workers: Sequence[WorkerInfo] | None,
    queues: Mapping[str, QueueStats],
) -> list[Point]:
    """Return all points; `workers` is None if the server does not list them."""
    found: dict[str, Need] = {
        "persistence": _worst(readings, "aof_enabled", _persistence),
        "eviction": _worst(readings, "maxmemory_policy", _eviction),
        "memory limit": _worst(readings, "maxmemory", _memory_limit),
        "replica": _worst(readings, "role", _replica),
        "permissions": _permissions(url),
        "tls": _tls(url),
    }
    alive = None if workers is None else [worker for worker in workers if worker.alive]
    if alive is None:
        said: Need = ("unknown", "the server does not list the workers")
        found |= dict.fromkeys(("workers", "health port", "time-outs"), said)
    else:
        found |= {
            "workers": _workers(alive, queues),
            "health port": _of_workers(alive, _health_port),
            "time-outs": _of_workers(alive, _time_outs),
        }
    return [Point(point, *found[point], page) for point, page in PAGES.items()]


def _worst(readings: Sequence[Readings], field: str, judge: Callable[[Readings], str]) -> Need:
    """Judge each server by a field of INFO; `judge` returns the problem, or an empty text."""
    said: list[Need] = []
    for one in readings:
        if field not in one.info:
            said.append(("unknown", f"the server does not report it ({field} of INFO)"))
        elif missing := judge(one):
            where = f"{one.node}: " if len(readings) > 1 else ""
            said.append(("missing", f"{where}{missing}"))
    return min(said, default=("ok", ""))  # "missing" sorts before "unknown"


def _persistence(readings: Readings) -> str:
    if readings.info["aof_enabled"]:
        return ""
    return "no append-only file (appendonly no): a crash of the server loses jobs"


def _eviction(readings: Readings) -> str:
    policy = readings.info["maxmemory_policy"]
    if policy == "noeviction":
        return ""
    return f"maxmemory-policy is {policy}, which drops jobs; noeviction refuses new ones"


def _memory_limit(readings: Readings) -> str:
    if int(readings.info["maxmemory"]):
        return ""
    return "maxmemory is not set: the system may kill a server that grows"


def _replica(readings: Readings) -> str:
    if readings.info["role"] != "master" or int(readings.info.get("connected_slaves", 0)):
        return ""
    return "no replica: the loss of the server's machine stops all queues"


def _permissions(url: str) -> Need:
    parts = urlsplit(url)
    user = dict(parse_qsl(parts.query)).get("username") or parts.username
    if user and user != "default":
        return "ok", ""
    return (
        "missing",
        "this URL connects as the default user, who may do everything; bide acl prints less",
    )


def _tls(url: str) -> Need:
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("rediss", "unix") or all(_is_local(host) for host, _ in addresses(parts)):
        return "ok", ""
    return "missing", "passwords and arguments cross the network in clear text (rediss:// has TLS)"


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _workers(alive: Sequence[WorkerInfo], queues: Mapping[str, QueueStats]) -> Need:
    if not alive:
        return "missing", "no worker is alive"
    used = [name for name, each in queues.items() if not each.is_data and _is_used(each)]
    names = dict.fromkeys([*(queue for one in alive for queue in one.about.queues), *used])
    hosts = {name: [one.about.host for one in alive if name in one.about.queues] for name in names}
    for says, few in (
        ("no worker serves {}", [name for name in names if not hosts[name]]),
        ("one worker serves {}", [name for name in names if len(hosts[name]) == 1]),
        ("one machine runs all workers of {}", [n for n in names if len({*hosts[n]}) == 1]),
    ):
        if few:
            return "missing", says.format(_some(few))
    return "ok", ""


def _is_used(queue: QueueStats) -> bool:
    return any((queue.blocked, queue.delayed, queue.waiting, queue.active, queue.schedules))


def _of_workers(alive: Sequence[WorkerInfo], judge: Callable[[Sequence[WorkerInfo]], str]) -> Need:
    """Judge the workers that report the needed field; older releases do not report it."""
    telling = [worker for worker in alive if worker.about.grace]
    if not telling:
        return "unknown", "the workers do not report it" if alive else "no worker is alive"
    says = judge(telling)
    return ("missing", says) if says else ("ok", "")


def _health_port(workers: Sequence[WorkerInfo]) -> str:
    lacking = sum(not worker.about.has_health_port for worker in workers)
    if not lacking:
        return ""
    return f"no --health-port on {lacking} of {count(len(workers), 'worker')}: probes cannot see it"


def _time_outs(workers: Sequence[WorkerInfo]) -> str:
    tasks = dict.fromkeys(task for worker in workers for task in worker.about.long_tasks)
    if not tasks:
        return ""
    grace = describe(min(worker.about.grace for worker in workers if worker.about.long_tasks))
    return (
        f"{_some([*tasks])} may run for longer than --grace ({grace}): a deployment interrupts "
        "such a run"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
