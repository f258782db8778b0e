"""The end of `bide doctor`: what production needs beside a server without problems.

A server for development lacks most of it, and nothing is wrong with that. So these points are a
list of their own, and do not count for the exit code.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from bide.cli.screen import count
from bide.cli.server import Readings
from bide.client.url import addresses
from bide.model.durations import describe
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo

State = Literal["ok", "missing", "unknown"]
Need = tuple[State, str]
"""The state of a point, and why it is not ok."""

_NAMED: Final = 3
"""Queues and tasks that a line names."""


class Point(NamedTuple):
    """One line of the list."""

    point: str
    state: State
    says: str
    page: str
    """The page of the documentation, from the folder `docs`."""


PAGES: Final[dict[str, str]] = {
    "persistence": "installation.md#the-servers-settings",
    "eviction": "howto/production.md#the-server",
    "memory limit": "howto/sizing.md",
    "replica": "howto/servers.md#failover-when-a-master-fails",
    "permissions": "howto/security.md#permissions-on-the-server",
    "tls": "howto/servers.md#tls",
    "workers": "howto/production.md#several-workers-as-one-unit",
    "health port": "howto/production.md#several-workers-as-one-unit",
    "time-outs": "howto/production.md#signals-and-graceful-shutdown",
}
"""Every point in its order, and its page."""


def points(
    readings: Sequence[Readings],
    url: str,
    workers: Sequence[WorkerInfo] | None,
    queues: Mapping[str, QueueStats],
) -> list[Point]:
    """Return all points; `workers` is None where the server does not list them."""
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
    """Judge each server by a field of INFO; `judge` returns what is missing, or nothing."""
    said: list[Need] = []
    for one in readings:
        if field not in one.info:
            said.append(("unknown", f"the server does not say it ({field} of INFO)"))
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
    """Judge the workers that report what this takes; workers of an older release do not."""
    telling = [worker for worker in alive if worker.about.grace]
    if not telling:
        return "unknown", "the workers do not say it" if alive else "no worker is alive"
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
        f"{_some([*tasks])} may run for longer than --grace ({grace}): a deployment interrupts it"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
