"""Connections of code that blocks: how they are shared and lost, and how replies are waited for."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, closing
from typing import Any

import pytest
import redis

import bide.client.aio
import bide.client.blocking
from bide import AsyncDelayQueue
from bide.client import aio, blocking
from bide.client.blocking import SHORT, SLEPT, Connections
from bide.client.execute import Call
from bide.errors import ServerUnavailable
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of
from tests.support.eventually import PATIENCE, eventually

QUICK = ("PING",)
SLOW = ("BLPOP", "nothing", 0.01)


@pytest.fixture
def connections(one_url: str) -> Iterator[Connections]:
    with closing(blocking.Client(one_url)) as client:
        opened = client._to(client.url)
        round_trip(opened, [QUICK])
        opened._to_sleep = 0  # however long the first took
        yield opened


def round_trip(connections: Connections, calls: Sequence[Call]) -> Any:
    return next(connections.exchange(calls))


def test_any_number_of_them_may_be_lost(connections: Connections) -> None:
    for _ in range(150):  # the client library's pool gives no more than a hundred
        next(connections.exchange([QUICK], pauses=True))
    assert round_trip(connections, [QUICK]) == [b"PONG"]


def test_one_whose_calls_are_lost_is_closed(connections: Connections) -> None:
    """As where a signal's handler raises before anybody has hold of them."""
    next(connections.exchange([SLOW], pauses=True))
    assert not connections._busy
    assert round_trip(connections, [QUICK]) == [b"PONG"]


def test_a_child_does_not_read_what_its_parent_has_asked(connections: Connections) -> None:
    posted = connections.exchange([QUICK], pauses=True)
    connection = next(posted)
    connections._pid = 0  # as after a fork
    with pytest.raises(redis.ConnectionError):
        next(posted)
    assert round_trip(connections, [SLOW]) == [None]
    assert connection not in connections._idle


def test_nor_after_calls_of_its_own(connections: Connections) -> None:
    posted = connections.exchange([QUICK], pauses=True)
    connection = next(posted)
    connections._begin()  # as the first call of a forked child does
    assert round_trip(connections, [QUICK]) == [b"PONG"]
    with pytest.raises(redis.ConnectionError):
        next(posted)
    assert connection not in connections._idle


def test_after_one_has_broken_a_call_meets_no_other_that_has(one_url: str) -> None:
    """A restart of the server, or of a router, breaks all that are idle."""
    with (
        closing(blocking.Client(one_url, retry_for=0)) as client,
        redis.Redis.from_url(one_url) as direct,
    ):
        connections = client._to(client.url)
        posted = [connections.exchange([QUICK], pauses=True) for _ in range(3)]
        for one in posted:
            next(one)
        for one in posted:
            next(one)
        assert len(connections._idle) == 3
        kill_all(direct)
        command = job_commands.counts(keys_of("mail"))
        with pytest.raises(ServerUnavailable):
            client.run(command)
        assert client.run(command).waiting == 0


@pytest.mark.anyio
async def test_nor_does_an_awaited_call(one_url: str) -> None:
    client = aio.AsyncClient(one_url, retry_for=0)
    command = job_commands.counts(keys_of("mail"))
    await asyncio.gather(*(client.run(command) for _ in range(3)))
    with redis.Redis.from_url(one_url) as direct:
        kill_all(direct)
    with pytest.raises(ServerUnavailable):
        await client.run(command)
    assert (await client.run(command)).waiting == 0
    await client.close()


def kill_all(direct: redis.Redis) -> None:
    """End all connections but this one."""
    direct.client_kill_filter(_type="normal", skipme=True)


@pytest.mark.anyio
async def test_who_waits_for_a_wake_up_message_is_in_nobodys_way(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many consumers of a delay queue wait, each keeps a blocking call in flight."""
    monkeypatch.setattr(bide.client.aio, "CONNECTIONS", 2)
    monkeypatch.setattr(bide.client.aio, "WAKE_WAIT", 3600)
    queue = AsyncDelayQueue("data", url=one_url)

    async def consume() -> Any:
        each: Any = queue.each()
        async with aclosing(each) as items:
            item = await anext(items)
            await item.ack()
            return item.data

    consumers = [asyncio.create_task(consume()) for _ in range(4)]
    with redis.Redis.from_url(one_url) as direct:

        def all_wait() -> bool:
            clients: Any = direct.info("clients")
            return bool(clients["blocked_clients"] == 4)

        await asyncio.to_thread(eventually, all_wait)
    for number in range(4):
        await asyncio.wait_for(queue.push(number), PATIENCE)
    assert sorted(await asyncio.gather(*consumers)) == [0, 1, 2, 3]
    await queue.close()


def test_any_number_of_threads_may_wait_for_a_message(one_url: str) -> None:
    with closing(blocking.Client(one_url)) as client, ExitStack() as stack:
        for number in range(101):  # the client library gives a hundred
            waiter = stack.enter_context(client.waiting_for("channel", str(number)))
            assert waiter._pubsub is not None


# -- watching


def test_a_reply_that_takes_longer_is_slept_through_and_so_are_the_next(
    connections: Connections,
) -> None:
    assert round_trip(connections, [SLOW]) == [None]
    assert connections._to_sleep == SLEPT
    assert round_trip(connections, [QUICK]) == [b"PONG"]
    assert connections._to_sleep == SLEPT - 1


def test_after_so_many_it_watches_again(connections: Connections) -> None:
    connections._to_sleep = 1
    round_trip(connections, [SLOW])
    assert connections._to_sleep == 0
    round_trip(connections, [SLOW])
    assert connections._to_sleep == SLEPT


def test_a_long_call_is_not_watched(connections: Connections) -> None:
    long = ("BLPOP", "nothing" * SHORT, 0.01)
    assert round_trip(connections, [long]) == [None]
    assert connections._to_sleep == 0


def test_nor_is_one_that_is_collected_later(connections: Connections) -> None:
    posted = connections.exchange([SLOW], pauses=True)
    next(posted)
    assert next(posted) == [None]
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
    assert round_trip(connections, [SLOW, QUICK]) == [None, b"PONG"]


def test_threads_that_call_at_once_leave_each_other_the_interpreter(
    connections: Connections, direct: redis.Redis
) -> None:
    connections._to_sleep = SLEPT
    posted = connections.exchange([("BLPOP", "it", 20)], pauses=True)
    next(posted)  # as a thread does that waits for it
    connections._to_sleep = 0
    assert round_trip(connections, [SLOW]) == [None]
    assert connections._to_sleep == 0
    direct.rpush("it", 1)
    assert next(posted) == [[b"it", b"1"]]
