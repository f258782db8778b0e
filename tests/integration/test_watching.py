"""Who is alone with a short call watches for the reply before it sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from bide.connections import SHORT, SLEPT, Connections

QUICK = ("PING",)
SLOW = ("BLPOP", "nothing", 0.01)


@pytest.fixture
def connections(one_url: str) -> Iterator[Connections]:
    with (
        redis.Redis.from_url(one_url) as client,
        closing(Connections(client.connection_pool.make_connection)) as opened,
    ):
        opened.round_trip([QUICK])
        opened._to_sleep = 0  # however long the first took
        yield opened


def test_a_reply_that_takes_longer_is_slept_through_and_so_are_the_next(
    connections: Connections,
) -> None:
    assert connections.round_trip([SLOW]) == [None]
    assert connections._to_sleep == SLEPT
    assert connections.round_trip([QUICK]) == [b"PONG"]
    assert connections._to_sleep == SLEPT - 1


def test_after_so_many_it_watches_again(connections: Connections) -> None:
    connections._to_sleep = 1
    connections.round_trip([SLOW])
    assert connections._to_sleep == 0
    connections.round_trip([SLOW])
    assert connections._to_sleep == SLEPT


def test_a_long_call_is_not_watched(connections: Connections) -> None:
    long = ("BLPOP", "nothing" * SHORT, 0.01)
    assert connections.round_trip([long]) == [None]
    assert connections._to_sleep == 0


def test_nor_is_one_that_something_is_done_behind(connections: Connections) -> None:
    assert connections.round_trip([SLOW], lambda: None) == [None]
    assert connections._to_sleep == 0


def test_threads_that_call_at_once_leave_each_other_the_interpreter(
    connections: Connections, direct: redis.Redis
) -> None:
    waiting = threading.Thread(target=connections.round_trip, args=([("BLPOP", "it", 20)],))
    connections._to_sleep = SLEPT
    waiting.start()
    while not direct.info("clients")["blocked_clients"]:
        pass
    connections._to_sleep = 0
    assert connections.round_trip([SLOW]) == [None]
    assert connections._to_sleep == 0
    direct.rpush("it", 1)
    waiting.join()
