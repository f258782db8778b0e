"""Where a Sentinel says who the master is."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from bide.contrib.rq import DelayQueue
from bide.embedded import Server
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, hearing
from tests.support.eventually import eventually


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


@pytest.mark.slow
def test_a_timer_follows_the_master(tmp_server: Callable[..., Server], tmp_path: Path) -> None:
    master = tmp_server(tcp=True, extra=("--repl-diskless-sync-delay", "0"))
    replica = tmp_server(tcp=True, extra=("--replicaof", f"127.0.0.1 {port_of(master)}"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor shop 127.0.0.1 {port_of(master)} 1\n"
        "sentinel down-after-milliseconds shop 300\nsentinel failover-timeout shop 2000\n"
    )
    watcher = subprocess.Popen(
        [master.binary, str(config), "--sentinel"], stdout=subprocess.DEVNULL
    )
    sentinel: Any = Sentinel([("127.0.0.1", port)], socket_timeout=2)  # type: ignore[no-untyped-call]
    (asked,) = sentinel.sentinels
    connection: Any = sentinel.master_for("shop", redis_class=redis.Redis)
    try:
        eventually(lambda: knows_the_replica(sentinel))
        queue = DelayQueue("mail", connection)
        with at_work(queue):
            first = queue.enqueue(jobs.add, 1, delay=0.02)
            eventually(lambda: queue.job_ids == [first.id])
            waiting = queue.enqueue(jobs.add, 1, delay=4)
            eventually(lambda: connection.wait(1, 500) == 1)
            master.kill()
            eventually(lambda: master_of(sentinel) == port_of(replica))
            eventually(lambda: hearing(queue) == 1)
            eventually(lambda: queue.job_ids == [first.id, waiting.id])
    finally:
        connection.close()
        asked.close()
        watcher.kill()
        watcher.wait()


def knows_the_replica(sentinel: Any) -> bool:
    try:
        return bool(sentinel.discover_slaves("shop"))
    except redis.RedisError:
        return False


def master_of(sentinel: Any) -> int:
    try:
        return int(sentinel.discover_master("shop")[1])
    except redis.RedisError:
        return 0
