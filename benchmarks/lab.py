"""What every benchmark works with: a server, its counters, and what the machine is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from bide import Queue
from bide.embedded import Server, find_server, wheel_server
from bide.protocol.keys import keys_of
from bide.version import VERSION

QUEUE = "bench"
"""The queue that everything is measured on."""

_FROM_CLIENTS = ("evalsha", "blpop", "script", "client", "hello", "ping", "info", "select", "lpush")
"""Commands that clients send; whatever else commandstats counts was called from inside scripts."""

_OUR_OWN = ("info", "flushall", "config", "hgetall", "zcard", "zrange")
"""Commands that only the benchmark sends."""


class Lab:
    """One server under measurement, and how thorough to be."""

    def __init__(self, server: Server, quick: bool, chosen: str | None) -> None:
        self.server = server
        self.quick = quick
        self.chosen = chosen
        self.only: tuple[str, ...] = ("",)
        """How the names of those workers begin that are measured."""
        self.client: Any = redis.Redis.from_url(server.url, decode_responses=True)
        self.keys = keys_of(QUEUE)
        self.stack = ExitStack()
        """What is closed with the lab."""

    def queue(self) -> Queue:
        """A producer's view of the queue."""
        return Queue(QUEUE, url=self.server.url)

    def empty(self) -> None:
        """Drop every key; what the server has counted stays."""
        self.client.flushall()

    def commands(self) -> dict[str, tuple[int, int]]:
        """Calls and microseconds of each command so far, without those that only we send."""
        stats = self.client.info("commandstats")
        named = ((name.removeprefix("cmdstat_"), one) for name, one in stats.items())
        return {
            name: (int(one["calls"]), int(one["usec"]))
            for name, one in named
            if name.split("|")[0] not in _OUR_OWN
        }

    def seconds(self, quick: float, thorough: float) -> float:
        """How long something may be measured."""
        return quick if self.quick else thorough

    def scripts(self) -> tuple[int, int]:
        """Calls and microseconds of EVALSHA so far; the time includes all that scripts call."""
        return self.commands().get("evalsha", (0, 0))

    def memory(self) -> int:
        """`used_memory`, without the buffers of connections."""
        self.client.connection_pool.disconnect()
        time.sleep(0.05)
        told = self.client.info("memory")
        return int(told["used_memory"]) - int(told["mem_clients_normal"])

    def last_finish_us(self) -> int:
        """When the server last noted that a job had completed."""
        newest = self.client.zrange(self.keys["completed"], -1, -1, withscores=True)
        return int(newest[0][1]) if newest else 0

    def claims(self) -> int:
        """How many claims all workers that are there have made: each numbers its own."""
        told = self.client.hgetall(self.keys["claims"])
        return sum(int(claim.split(" ", 2)[1]) for claim in told.values())

    def wait_completed(self, count: int, seconds: float) -> None:
        """Wait until `count` jobs have completed since the server was emptied.

        Raises:
            TimeoutError: they have not within `seconds`.
        """
        end = time.monotonic() + seconds
        while (done := int(self.client.hget(self.keys["meta"], "completed") or 0)) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{done} of {count} jobs were done within {seconds:g} s")
            time.sleep(0.05)

    def wait_workers(self, count: int, seconds: float = 20) -> None:
        """Wait until `count` workers have claimed once, so that they wait for work.

        Raises:
            TimeoutError: they have not within `seconds`.
        """
        end = time.monotonic() + seconds
        while int(self.client.hlen(self.keys["claims"])) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{count} workers did not start within {seconds:g} s")
            time.sleep(0.05)


def is_from_clients(command: str) -> bool:
    """Whether clients send this command, as opposed to scripts that call it."""
    return command.split("|")[0] in _FROM_CLIENTS


def binaries(chosen: str | None) -> dict[str, str]:
    """Servers by flavour: the one chosen by flavour or path, else those that are here."""
    if chosen not in (None, "redis", "valkey"):
        return {"chosen": str(chosen)}
    found = {
        "redis": shutil.which("redis-server"),
        "valkey": shutil.which("valkey-server") or wheel_server(),
    }
    return {name: path for name, path in found.items() if path and chosen in (None, name)}


@contextmanager
def open_lab(quick: bool, chosen: str | None) -> Iterator[Lab]:
    """Start the chosen server, or the one that bide itself would find.

    Raises:
        SystemExit: the flavour that was asked for is not here.
    """
    if chosen is None:
        binary = find_server()
    else:
        found = binaries(chosen)
        if not found:
            raise SystemExit(f"no {chosen} server was found; give its path to --server")
        binary = next(iter(found.values()))
    with Server.start(binary=binary) as server:
        lab = Lab(server, quick, chosen)
        with lab.stack:
            yield lab


def environment(server: Server) -> dict[str, Any]:
    """What the figures depend on: they compare only with figures of a like machine."""
    versions = {"bide": VERSION}
    for package in ("redis", "hiredis", "msgspec", "uvloop"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": f"{server.flavour} {server.version}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": versions["uvloop"] != "absent",
        "versions": versions,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "platform": f"{platform.system()} {platform.machine()}",
        "transport": server.url.partition(":")[0],
    }


ROOT = Path(__file__).resolve().parents[1]
"""The directory from which `benchmarks` is imported, here and in child processes."""
