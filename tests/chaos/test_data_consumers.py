"""Consumers that share a delay queue: processes, threads, tasks; killed, forked, cancelled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from bide import AsyncDelayQueue, DelayQueue
from bide.protocol.keys import keys_of
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.server_state import end_leases

ROOT = Path(__file__).parents[2]
KEYS = keys_of("orders")


@pytest.fixture
def pile(one_url: str) -> Iterator[DelayQueue]:
    pile = DelayQueue("orders", url=one_url)
    yield pile
    pile.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.001)


@contextmanager
def consumer(url: str, how: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.consume", url, how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.slow
def test_what_a_killed_consumer_held_comes_back_after_its_lease(
    pile: DelayQueue, one_url: str, direct: redis.Redis
) -> None:
    pile.push_many(range(3))
    with consumer(one_url, "hold") as process:
        assert process.stdout
        held = [int(process.stdout.readline()) for _ in range(3)]
        process.kill()
        process.wait()
    assert held == [0, 1, 2]
    assert pile.pop(num=3) == [], "not before"
    end_leases(direct, KEYS)
    seen: list[int] = []
    while len(seen) < 3:
        with pile.take(num=3, wait=PATIENCE) as items:
            assert items, "they come back"
            seen += [item.data for item in items]
            assert {item.reclaims for item in items} == {1}
            assert items.ack()
    assert sorted(seen) == [0, 1, 2]
    assert_legal(direct, "orders")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pop", "take"])
def test_many_processes_never_receive_the_same(
    pile: DelayQueue, one_url: str, direct: redis.Redis, how: str
) -> None:
    pile.push_many(range(1500))
    with ExitStack() as stack:
        consumers = [stack.enter_context(consumer(one_url, how)) for _ in range(4)]
        said = [process.communicate(timeout=PATIENCE)[0] for process in consumers]
    got = [int(line) for text in said for line in text.split()]
    assert sorted(got) == [*range(1500)]
    assert pile.length() == 0
    assert_legal(direct, "orders")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pop", "take"])
def test_threads_that_share_one_never_receive_the_same(pile: DelayQueue, how: str) -> None:
    pile.push_many(range(800))
    got: list[int] = []

    def consume() -> None:
        if how == "pop":
            while data := pile.pop(num=3):
                got.extend(data)
        else:
            for item in pile.each(num=3, wait="200ms"):
                got.append(item.data)
                assert item.ack()

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == [*range(800)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pop", "take"])
def test_tasks_that_share_one_never_receive_the_same(one_url: str, how: str) -> None:
    got: list[int] = []

    async def consume(pile: AsyncDelayQueue) -> None:
        if how == "pop":
            while data := await pile.pop(num=3):
                got.extend(data)
        else:
            async for item in pile.each(num=3, wait="200ms"):
                got.append(item.data)
                assert await item.ack()

    async def main() -> None:
        pile = AsyncDelayQueue("orders", url=one_url)
        await pile.push_many(range(800))
        await asyncio.gather(*(consume(pile) for _ in range(20)))
        await pile.close()

    asyncio.run(main())
    assert sorted(got) == [*range(800)]


def test_those_who_wait_share_what_comes(pile: DelayQueue, one_url: str) -> None:
    """Each push wakes one, though nobody is told twice."""
    got: list[int] = []
    piles = [DelayQueue("orders", url=one_url) for _ in range(6)]

    def consume(mine: DelayQueue) -> None:
        for item in mine.each(wait=30):
            got.append(item.data)
            item.ack()
            if item.data == "end":
                return

    threads = [threading.Thread(target=consume, args=(mine,)) for mine in piles]
    for thread in threads:
        thread.start()
    for n in range(30):
        pile.push(n)
        eventually(partial(got.__contains__, n))
    pile.push_many(["end"] * 6)
    for thread in threads:
        thread.join(PATIENCE)
    assert got[:30] == [*range(30)]
    for mine in piles:
        mine.close()


def test_a_forked_process_takes_nothing_of_its_parents(pile: DelayQueue) -> None:
    """It has the parent's names and numbers, and would be told what the parent has taken."""
    pile.push_many(range(6))
    assert pile.pop(num=2) == [0, 1]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        got = pile.pop(num=2)
        os.write(writer, repr(got).encode())
        os._exit(0)
    assert pile.pop(num=2) in ([2, 3], [4, 5])
    os.waitpid(child, 0)
    assert os.read(reader, 100) in (b"[2, 3]", b"[4, 5]")
    os.close(reader)
    os.close(writer)
    assert pile.pop(num=6) == []


def test_a_take_that_is_cancelled_while_it_waits_takes_nothing(
    one_url: str, direct: redis.Redis
) -> None:
    async def main() -> None:
        pile = AsyncDelayQueue("orders", url=one_url)

        async def take() -> None:
            async with pile.take(wait=60):
                raise AssertionError("there was nothing")

        waiting = asyncio.create_task(take())
        await until(lambda: direct.zcard(KEYS["keep"]) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: direct.zcard(KEYS["keep"]) == 0)  # nobody counts on it any more
        await pile.push("x")
        assert await pile.pop() == ["x"]
        await pile.close()

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["take", "pop"])
def test_what_a_cancelled_call_had_taken_is_not_lost(
    one_url: str, proxy: Proxy, direct: redis.Redis, verb: str
) -> None:
    async def main() -> None:
        pile = AsyncDelayQueue("orders", url=proxy.url)
        await pile.push_many(range(3))
        with_scripts = await pile.pop()
        assert with_scripts == [0]
        async with pile.take() as items:
            await items.nack()
        proxy.hold()  # the server works, and nobody hears of it
        if verb == "take":
            call = asyncio.create_task(pile.take(num=2).__aenter__())
        else:
            call = asyncio.create_task(pile.pop(num=2))  # type: ignore[arg-type]
        key = KEYS["active" if verb == "take" else "completed"]
        await until(lambda: direct.zcard(key) == (2 if verb == "take" else 3))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        proxy.deliver()
        if verb == "take":
            await until(lambda: direct.zcard(key) == 0)  # given back at once
        assert sorted(await pile.pop(num=5)) == [1, 2]
        await pile.close()

    asyncio.run(main())
    assert_legal(direct, "orders")
