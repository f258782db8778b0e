"""Connections of code that blocks: how they are shared and lost, and how replies are waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

import bide.client.blocking
from bide.client import blocking
from bide.client.blocking import SHORT, SLEPT, Connections

QUICK = ("PING",)
SLOW = ("BLPOP", "nothing", 0.01)


@pytest.fixture
def connections(one_url: str) -> Iterator[Connections]:
    with closing(blocking.Client(one_url)) as client:
        opened = client._to(client.url)
        opened.round_trip([QUICK])
        opened._to_sleep = 0  # however long the first took
        yield opened


def test_any_number_of_them_may_be_lost(connections: Connections) -> None:
    for _ in range(150):  # the client library's pool gives no more than a hundred
        connections.send([QUICK]).drop()
    assert connections.round_trip([QUICK]) == [b"PONG"]


def test_one_whose_calls_are_lost_is_closed(connections: Connections) -> None:
    """As where a signal's handler raises before anybody has hold of them."""
    connections.send([SLOW])
    assert not connections._busy
    assert connections.round_trip([QUICK]) == [b"PONG"]


def test_a_child_does_not_read_what_its_parent_has_asked(connections: Connections) -> None:
    posted = connections.send([QUICK])
    connections._pid = 0  # as after a fork
    with pytest.raises(redis.ConnectionError):
        connections.collect(posted)
    assert connections.round_trip([SLOW]) == [None]
    assert posted.connection not in connections._idle


# -- watching


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


def test_nor_is_one_that_is_collected_later(connections: Connections) -> None:
    assert connections.collect(connections.send([SLOW])) == [None]
    assert connections._to_sleep == 0


def test_a_reply_that_is_there_is_not_waited_for(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(None))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"+PONG")
        connections._spin_wait(ours)
        assert (connections._to_sleep, yields) == (0, [])


def test_who_watches_yields_to_a_server_on_the_same_processor(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(os, "sched_yield", lambda: theirs.send(b"+PONG"))
        connections._spin_wait(ours)
        assert connections._to_sleep == 0


def test_without_a_call_that_looks_it_sleeps(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.client.blocking, "_poll", None)
    assert connections.round_trip([SLOW, QUICK]) == [None, b"PONG"]


def test_threads_that_call_at_once_leave_each_other_the_interpreter(
    connections: Connections, direct: redis.Redis
) -> None:
    connections._to_sleep = SLEPT
    posted = connections.send([("BLPOP", "it", 20)])  # as a thread does that waits for it
    connections._to_sleep = 0
    assert connections.round_trip([SLOW]) == [None]
    assert connections._to_sleep == 0
    direct.rpush("it", 1)
    assert connections.collect(posted) == [[b"it", b"1"]]
