"""The harness: one seed, one schedule; a line that is bad in the way that it was told to be."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.retry import Retry

from bide import Queue
from bide.client.url import options
from bide.embedded import Server
from tests.chaos import catalogue
from tests.chaos.catalogue import FAULTS, ROWS
from tests.chaos.load import usual
from tests.chaos.plan import FIRST, LAST, dice, schedule
from tests.support.eventually import PATIENCE, eventually
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FAULTS)
def test_a_seed_has_one_schedule(name: str) -> None:
    fault = FAULTS[name]
    plan = schedule(7, name, 1000, 10, fault.draw)
    assert plan == schedule(7, name, 1000, 10, fault.draw)
    assert plan != schedule(8, name, 1000, 10, fault.draw)
    moments = [injection.after for injection in plan]
    assert moments == sorted(moments)
    assert 1000 * FIRST <= moments[0] <= moments[-1] <= 1000 * LAST
    assert [injection.number for injection in plan] == list(range(1, 11))


def test_a_seed_has_one_load() -> None:
    queue = Queue("any", url="redis://127.0.0.1:1/0")

    def load(seed: int) -> list[tuple[str, float]]:
        return [(j.prepared.id, j.delay) for j in usual(queue, dice(seed, "a", "jobs"), 50)]

    assert load(7) == load(7) != load(8)


@pytest.mark.slow
def test_the_schedule_is_printed_and_is_the_same_again() -> None:
    def told(*more: str) -> str:
        command = [sys.executable, "-m", "tests.chaos", "worker-killed", "--seed", "7", "--plan"]
        done = subprocess.run(
            [*command, *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return done.stdout

    once = told()
    assert once.startswith("seed 7\nworker-killed\n  after ")
    assert once == told()


def test_each_fault_stands_in_a_row_and_each_row_names_what_there_is() -> None:
    assert {name for row in ROWS for name in row.faults} == FAULTS.keys()
    for row in ROWS:
        assert row.faults or row.tests
        assert all((ROOT / test).is_file() for test in row.tests), row.what


def test_each_fault_says_what_it_is() -> None:
    for fault in FAULTS.values():
        assert fault.title
        assert fault.allows
    assert len(FAULTS) == len({fault.title for fault in FAULTS.values()})
    assert catalogue.__doc__


# -- the line


HEARD = 0.3
"""Seconds for which a test listens for an answer that must not come."""


def raw(url: str) -> redis.Redis:
    """A client that repeats nothing."""
    return redis.Redis.from_url(**options(url, Retry, PATIENCE))


def connected(client: redis.Redis) -> Any:
    """A connection over which an answer has come."""
    connection: Any = client.connection_pool.get_connection()
    connection.send_command("PING")
    connection.read_response()
    return connection


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_what_goes_one_way_disappears_without_a_sign(
    proxy: Proxy, direct: redis.Redis, way: str
) -> None:
    with raw(proxy.url) as client, raw(proxy.url) as other:
        connection = connected(client)
        proxy.swallow("requests" if way == "requests" else "replies")
        connection.send_command("SET", "a", 1)
        eventually(lambda: proxy.swallowed)
        assert not connection.can_read(HEARD)
        assert direct.exists("a") == (way == "replies")
        connection.disconnect()
        proxy.hear()
        assert other.set("b", 1)


def test_a_connection_that_was_deaf_stays_so(proxy: Proxy) -> None:
    with raw(proxy.url) as client:
        connection = connected(client)
        proxy.swallow("replies")
        connection.send_command("PING")
        eventually(lambda: proxy.swallowed)
        proxy.hear()
        connection.send_command("PING")
        assert not connection.can_read(HEARD)
        connection.disconnect()


def test_a_slow_line_is_slow_and_a_dripping_one_whole(proxy: Proxy) -> None:
    with raw(proxy.url) as client:
        client.ping()
        proxy.slow_down(delay=0.05)
        started = time.monotonic()
        client.ping()
        assert time.monotonic() - started >= 0.1
        proxy.slow_down(drip=7, pause=0.0005)
        client.set("a", "x" * 500)
        assert client.get("a") == b"x" * 500
        proxy.slow_down()
        assert client.get("a") == b"x" * 500


def test_a_reset_is_told_as_one(proxy: Proxy) -> None:
    with raw(proxy.url) as client:
        connection = connected(client)
        proxy.reset()
        with pytest.raises(redis.ConnectionError, match=r"reset|closed"):
            connection.read_response()
        connection.disconnect()
        assert client.ping()


def test_it_leads_elsewhere(proxy: Proxy) -> None:
    with Server.start() as elsewhere, redis.Redis.from_url(elsewhere.url) as there:
        with raw(proxy.url) as client:
            client.set("a", 1)
            proxy.point_at(elsewhere.url)
        with raw(proxy.url) as client:
            client.set("b", 1)
        assert not there.exists("a")
        assert there.exists("b")
