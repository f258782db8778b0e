"""Who waits (for a job's end, for an item, for events) goes on where the queue has gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from bide import AsyncDelayQueue, AsyncQueue, DelayQueue, Queue, Worker
from bide.client import aio, blocking
from bide.protocol.keys import keys_of
from tests.servers.conftest import Servers
from tests.support.cluster import Cluster
from tests.support.eventually import eventually
from tests.support.nodes import ERRORS, Node
from tests.support.sentinel import Sentinels

JOB = "tests.support.jobs:add"
PILE, QUEUE = keys_of("pile"), keys_of("mail")
WAIT = "10m"
"""Longer than servers need to change on a busy machine: nobody is to give up before."""


class Waiters:
    """Runs what waits in threads, and keeps what it came to."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, wait: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.found[name] = wait()
            except BaseException as error:
                self.found[name] = error

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def start_async(self, name: str, wait: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> Any:
            return await wait()

        self.start(name, lambda: asyncio.run(run()))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.fixture
def waiters() -> Iterator[Waiters]:
    waiters = Waiters()
    yield waiters
    waiters.join()


def owner(servers: Servers, key: str) -> Node:
    return servers.master if isinstance(servers, Sentinels) else servers.owner(key)


def doing(servers: Servers, key: str, command: str) -> int:
    """How many clients of the node that has the key wait in this command now."""
    try:
        clients = owner(servers, key).client.client_list()
        return sum(client["cmd"] == command for client in clients)
    except ERRORS:
        return 0


def hearing(servers: Servers, channel: str) -> int:
    """How many listen to this channel, on whichever node."""
    heard = 0
    for node in servers.nodes:
        with contextlib.suppress(*ERRORS):
            heard += node.client.pubsub_numsub(channel)[0][1]
    return heard


def turn(servers: Servers) -> None:
    if isinstance(servers, Sentinels):
        servers.fail_over()
        return
    for key in (QUEUE["meta"], PILE["meta"]):
        servers.fail_over(servers.owner(key))


def die(servers: Servers) -> None:
    if isinstance(servers, Sentinels):
        servers.kill(servers.master)
        servers.fail_over()
        return
    for key in (QUEUE["meta"], PILE["meta"]):
        master = servers.owner(key)
        servers.kill(master)
        servers.fail_over(master)
        servers.restart(master)


def move(servers: Servers) -> None:
    assert isinstance(servers, Cluster)
    for key in (QUEUE["meta"], PILE["meta"]):
        here = servers.owner(key)
        servers.migrate_slot(key, to=next(node for node in servers.masters if node is not here))


@contextlib.asynccontextmanager
async def closed(mine: AsyncQueue | AsyncDelayQueue) -> AsyncIterator[None]:
    """Close it in the end."""
    try:
        yield
    finally:
        await mine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "change"),
    [("cluster", turn), ("cluster", die), ("cluster", move), ("sentinel", turn), ("sentinel", die)],
    indirect=["servers"],
)
def test_it_goes_on_where_the_queue_has_gone(
    servers: Servers, waiters: Waiters, change: Callable[[Servers], None]
) -> None:
    queue, pile = Queue("mail", url=servers.url), DelayQueue("pile", url=servers.url)
    job = queue.enqueue(JOB, 1, 2)

    def take() -> Any:
        with pile.take(wait=WAIT) as items:
            return [item.data for item in items if item.ack() or True]

    async def take_async() -> Any:
        mine = AsyncDelayQueue("pile", url=servers.url)
        async with closed(mine), mine.take(wait=WAIT) as items:
            return [item.data for item in items if await item.ack() or True]

    async def wait_async() -> Any:
        mine = AsyncQueue("mail", url=servers.url)
        async with closed(mine):
            return await (await mine.fetch(job.id)).wait(WAIT)

    def events() -> Any:
        with queue.events(timeout=WAIT) as found:
            return next(event.kind for event in found if event.job_id == job.id)

    async def events_async() -> Any:
        mine = AsyncQueue("mail", url=servers.url)
        async with closed(mine), mine.events(timeout=WAIT) as found:
            async for event in found:
                if event.job_id == job.id:
                    return event.kind

    waiters.start("take", take)
    waiters.start_async("take_async", take_async)
    waiters.start("wait", lambda: queue.fetch(job.id).wait(WAIT))
    waiters.start_async("wait_async", wait_async)
    waiters.start("events", events)
    waiters.start_async("events_async", events_async)

    def all_listen() -> bool:
        return (
            doing(servers, PILE["wake"], "blpop") == 2
            and doing(servers, QUEUE["events"], "xread") == 2
            and hearing(servers, QUEUE["waiters"]) == 2
        )

    eventually(all_listen)
    change(servers)
    eventually(all_listen)
    assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 1
    pile.push_many(["a", "b"])
    waiters.join()
    found = waiters.found
    assert sorted([found.pop("take"), found.pop("take_async")]) == [["a"], ["b"]]
    assert (found.pop("wait"), found.pop("wait_async")) == (3, 3)
    assert (found.pop("events"), found.pop("events_async")) == ("active", "active")
    queue.close()
    pile.close()
    servers.settled()


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_who_does_nothing_but_listen_finds_the_new_master(
    servers: Servers, waiters: Waiters, kind: str
) -> None:
    channel, over = QUEUE["waiters"], threading.Event()

    def listen() -> None:
        client = blocking.Client(servers.url)
        with client.waiting_for(channel, "x") as waiter:
            while not over.is_set():
                waiter.wait(time.monotonic() + 0.5)
        client.close()

    async def listen_async() -> None:
        client = aio.AsyncClient(servers.url)
        async with client.waiting_for(channel, "x") as waiter:
            while not over.is_set():
                await waiter.wait(time.monotonic() + 0.5)
        await client.close()

    waiters.start("it", listen) if kind == "sync" else waiters.start_async("it", listen_async)
    try:
        eventually(lambda: hearing(servers, channel) == 1)
        die(servers)
        eventually(lambda: hearing(servers, channel) == 1)
    finally:
        over.set()
        waiters.join()
    assert waiters.found == {"it": None}


@pytest.mark.slow
def test_wakeups_leave_a_server_that_hangs(
    trio: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open: that the call has no answer, though long over, is all there is."""
    monkeypatch.setattr("bide.client.pubsub.WAKE_WAIT", 1)
    monkeypatch.setattr("bide.client.pubsub.REPLY_TIMEOUT", 1)
    client = blocking.Client(trio.url)
    listener = client.wake_listener(PILE["wake"])
    master = trio.master
    assert listener.wait(time.monotonic()) is None
    master.freeze()
    try:
        assert listener.wait(time.monotonic() + 5) is None, "words may be lost"
        master_now = trio.fail_over().client

        def hear() -> str | None:  # what comes on a connection that is just given up is lost
            master_now.rpush(PILE["wake"], "somebody")
            return listener.wait(time.monotonic() + 5)

        assert eventually(hear) == "somebody"
    finally:
        listener.close()
        client.close()
        master.thaw()
    trio.settled()
