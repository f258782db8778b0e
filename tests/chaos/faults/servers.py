"""The server: killed, cut short, replaced by one that knows less, full, without its scripts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.chaos.books import Books
from tests.chaos.fault import AUTO, PROCESS, Fault
from tests.chaos.jobs import QUEUE
from tests.chaos.load import now_us
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene
from tests.support.eventually import eventually
from tests.support.invariants import hold


class ServerKilled(Fault):
    name = "server-killed"
    title = "The server is killed, and starts again with all acknowledged writes"
    allows = "time only: `appendfsync always`"
    persist = True
    server = ("--appendfsync", "always")
    lease = 10.0
    leases_end = False

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"seconds": round(dice.uniform(0.0, 0.6), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.setup.look_at_scripts()
        happened = scene.hit(excuses=False)
        scene.setup.server.kill()
        scene.last(injection.drawn["seconds"])
        scene.setup.server.restart()
        scene.over(happened)


class LogCut(Fault):
    """As after a power cut: of the latest writes, those that follow any one byte are gone."""

    name = "log-cut"
    title = "The server is killed, and its log is cut at any byte of its last half second"
    allows = "writes of that half second, until the producer repeats them"
    persist = True
    server = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
    injections = 3
    back_off = 5.0

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"share": round(dice.random(), 3), "seconds": 0.5}

    def inject(self, scene: Scene, injection: Injection) -> None:
        log = log_of(scene.setup.server.directory)
        safe, since_us = log.stat().st_size, now_us()
        happened = scene.hit()
        scene.last(injection.drawn["seconds"])
        scene.setup.look_at_scripts()
        scene.quiet.set()
        scene.setup.server.kill()
        end = log.stat().st_size
        at = safe + round((end - safe) * injection.drawn["share"])
        with log.open("r+b") as file:
            file.truncate(at)
        scene.count("bytes cut", end - at)
        scene.setup.server.restart()
        rewrite_log(scene.direct)
        told_to_repeat(scene, since_us)
        scene.over(happened)
        scene.quiet.clear()


def rewrite_log(client: redis.Redis) -> None:
    """Have a server write its log anew, as operators must after one that was cut.

    A server leaves the beginning of a transaction in its log whose rest was cut off, and goes on
    behind it; at its next start it runs that half together with what follows. (Valkey has mended
    this in pull request 4342, in August 2026; releases before, and Redis, do so.)
    """
    client.bgrewriteaof()

    def is_written() -> bool:
        told = client.info("persistence")
        return not (told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"])

    eventually(is_written)
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def told_to_repeat(scene: Scene, since_us: int) -> None:
    """Have the producer repeat what it handed in lately; what came before must be there."""
    there = hold(scene.direct, QUEUE).ids
    for id, asked in scene.load.asked.copy().items():
        if asked.acked_us < since_us and id not in there:
            scene.count("lost though safe")
    scene.count("lost until repeated", scene.load.again(since_us))


def log_of(directory: Path) -> Path:
    """The file that the server appends to; before version 7 there is but one."""
    parts = sorted(directory.glob("appendonlydir/*.incr.aof"))
    return parts[-1] if parts else directory / "appendonly.aof"


class FailedOver(Fault):
    """By an address that leads to another server from then on, as a cloud's does."""

    name = "failover"
    title = "A failover to a replica that has not received the writes of the last half second"
    allows = "writes of that half second, until the producer repeats them"
    proxied = True
    tcp = True
    server = ("--repl-diskless-sync-delay", "0")
    injections = 2
    back_off = 5.0

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"seconds": round(dice.uniform(0.2, 0.6), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        assert scene.setup.proxy is not None
        primary, replica = (
            scene.setup.server,
            scene.setup.another_server(f"replica-{injection.number}"),
        )
        host, port = primary.url.split("/")[2].split(":")
        with redis.Redis.from_url(replica.url) as client:
            client.replicaof(host, port)

            def told(which: redis.Redis) -> dict[str, Any]:
                return which.info("replication")

            eventually(lambda: told(client)["master_link_status"] == "up")
            since_us = now_us()
            offset = told(scene.direct)["master_repl_offset"]
            eventually(lambda: told(client)["slave_repl_offset"] >= offset)
            client.replicaof("NO", "ONE")
        happened = scene.hit()
        scene.last(injection.drawn["seconds"])
        scene.setup.look_at_scripts()
        scene.quiet.set()
        primary.kill()
        scene.setup.proxy.point_at(replica.url)
        scene.setup.server = replica
        told_to_repeat(scene, since_us)
        scene.over(happened)
        scene.quiet.clear()


class Full(Fault):
    """Producers are refused, and told so; what is there drains."""

    name = "server-full"
    title = "The server reaches its `maxmemory` (noeviction)"
    allows = "nothing: the server refuses new jobs until there is room"
    lease = 10.0
    leases_end = False
    injections = 2
    jobs = 250

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"seconds": round(dice.uniform(0.6, 1.2), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        used = int(scene.direct.info("memory")["used_memory"])
        scene.direct.config_set("maxmemory", used - 400_000)
        happened = scene.hit(excuses=False)
        refused = scene.load.refusals.get("ServerFull", 0)
        eventually(
            lambda: scene.load.refusals.get("ServerFull", 0) > refused or not scene.load.is_alive()
        )
        scene.last(injection.drawn["seconds"])

        eventually(scene.setup.is_drained)  # though there is no room; nothing new comes in
        scene.direct.config_set("maxmemory", 0)
        scene.over(happened)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        if scene.load.refusals.keys() - {"ServerFull"}:
            yield f"the producer was told {scene.load.refusals}"


class ScriptsForgotten(Fault):
    name = "scripts-forgotten"
    title = "The server loses its scripts (SCRIPT FLUSH)"
    allows = "nothing"
    lease = 10.0
    leases_end = False
    roles = (AUTO, PROCESS)
    injections = 12

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.hit(excuses=False)
        scene.direct.script_flush()
