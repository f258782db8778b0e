"""What a consumer has in hand: `each`, `with item`, forks, and the end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide import AsyncDelayQueue, DelayQueue, ServerUnavailable, State
from bide.protocol.keys import keys_of
from bide.queue import items as item_rules
from tests.support.cpu_waits import Witness
from tests.support.delay_queues import open_pile
from tests.support.eventually import eventually
from tests.support.proxy import Proxy

KEYS = keys_of("orders")


@pytest.fixture
def pile(portal: Any, kind: str, one_url: str) -> Iterator[Any]:
    with open_pile(portal, kind, one_url) as pile:
        yield pile


# -- with item


def test_a_block_acks_its_item_at_the_end(pile: Any) -> None:
    pile.push("a")
    with pile.take() as items, items[0] as item:
        assert item.data == "a"
    assert pile.queue.counts().completed == 1
    assert pile.length() == 0


def test_what_was_answered_in_the_block_stays_so(pile: Any) -> None:
    pile.push("a")
    with pile.take() as items, items[0] as item:
        item.nack(delay=60)
    assert pile.length() == 1


def test_after_an_exception_the_item_is_given_back_with_it(pile: Any) -> None:
    pile.push_many(["a", "b"])
    with pile.take(num=2) as items:
        with pytest.raises(ZeroDivisionError), items[0]:
            raise ZeroDivisionError("oh no")
        items[1].ack()
    (seen,) = pile.peek()
    assert (seen.data, seen.attempt, seen.error.type) == ("a", 1, "ZeroDivisionError")


def test_an_interrupt_in_the_block_counts_as_nothing(one_url: str, direct: redis.Redis) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push("a")
    with pile.take() as items:
        items[0].__enter__()
        items[0].__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pile.take() as items:
        assert items[0].attempt == 1
        items[0].ack()
    pile.close()


# -- each


def go_past(portal: Any, pile: Any, **options: Any) -> list[Any]:
    """What `each` hands out to one who answers nothing."""
    if isinstance(pile, DelayQueue):
        return [item.data for item in pile.each(wait="200ms", **options)]

    async def run() -> list[Any]:
        inner: AsyncDelayQueue = pile._inner
        return [item.data async for item in inner.each(wait="200ms", **options)]

    came: list[Any] = portal.call(run)
    return came


def server_time(direct: redis.Redis) -> float:
    whole, us = direct.time()
    return whole + us / 1e6


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 2])
def test_what_each_passes_over_comes_later_and_later_with_a_warning(
    portal: Any,
    pile: Any,
    num: int,
    caplog: pytest.LogCaptureFixture,
    direct: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(item_rules, "FIRST_DELAY", 60_000_000)  # none is due again within the test
    pushed = pile.push_many(["a", "b"])
    for n in range(3):
        if n:
            assert pile.queue.promote_many([one.id for one in pushed]) == ["ok", "ok"]
        before = server_time(direct)
        assert sorted(go_past(portal, pile, num=num)) == ["a", "b"], "once each, and no hot loop"
        after = server_time(direct)
        assert "got no answer" in caplog.text
        for seen in pile.peek():
            assert seen.state is State.DELAYED
            assert "without an answer" in seen.error.message
            assert seen.attempt == n + 1
            assert before <= seen.due.timestamp() - 60 * 2**n <= after


def test_whoever_breaks_off_has_passed_nothing_over(one_url: str, direct: redis.Redis) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push_many(["a", "b"])
    for _ in pile.each(num=2):
        break
    assert [(i.data, i.attempt, i.state) for i in pile.peek()] == [
        ("a", 0, State.WAITING),
        ("b", 0, State.WAITING),
    ]
    pile.close()


# -- forks


def in_child(do: Any) -> bytes:
    """What `do` returns in a child process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr(do()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as told:
        came = told.read()
    os.waitpid(pid, 0)
    return came


def test_a_child_has_nothing_that_its_parent_popped(
    proxy: Proxy, one_url: str, direct: redis.Redis
) -> None:
    DelayQueue("orders", url=one_url).push_many(range(5))
    pile = DelayQueue("orders", url=proxy.url, retry_for=0)
    assert pile.pop(num=1) == [0]
    proxy.lose_reply(1)
    with pytest.raises(ServerUnavailable):
        pile.pop(num=4)
    assert pile.pop(num=1) == [1]
    assert in_child(lambda: pile.pop(num=4)) == b"[]"
    assert pile.pop(num=4) == [2, 3, 4]
    pile.close()


def test_a_child_holds_nothing_and_gives_nothing_back_of_its_parents(
    one_url: str, direct: redis.Redis
) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push("a")
    with pile.take() as items:

        def leave() -> int:
            pile._end(items, None)
            return pile._sessions.held

        assert pile._sessions.held == 1
        assert in_child(leave) == b"0"
        assert pile.queue.counts().active == 1
        assert items.ack()
    assert pile._sessions.held == 0
    pile.close()


# -- the end


@pytest.mark.parametrize("how", ["take", "each"])
def test_close_ends_those_who_wait_in_other_threads(
    one_url: str, direct: redis.Redis, how: str
) -> None:
    pile = DelayQueue("orders", url=one_url)
    came: list[Any] = []

    def consume() -> None:
        if how == "each":
            for item in pile.each(wait=None):
                came.append(item.data)
                item.ack()
        else:
            with pile.take(wait=None) as items:
                came.append(len(items))

    pile.push("first", delay=3600)
    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    eventually(lambda: pile._listeners and direct.info("clients")["blocked_clients"])
    pile.close()
    thread.join(60)
    assert not thread.is_alive()
    assert came == ([0] if how == "take" else [])
    assert direct.zcard(KEYS["keep"]) == direct.zcard(KEYS["park"]) == 0
    pile.push("second")
    assert pile.pop() == ["second"], "it can be used again"
    pile.close()


def test_each_ends_by_close_however_much_there_is(one_url: str, direct: redis.Redis) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push_many(range(10))
    seen = []
    for item in pile.each():
        seen.append(item.data)
        item.ack()
        if item.data == 2:
            pile.close()
    assert seen == [0, 1, 2]
    assert pile.length() == 7
    pile.close()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["refuse", "hold"])
def test_close_takes_a_second_at_most_when_the_server_is_away(
    portal: Any, kind: str, proxy: Proxy, one_url: str, trouble: str, witness: Witness
) -> None:
    with open_pile(portal, kind, proxy.url) as pile:
        pile.push_many([1, 2])
        pile.pop()
        with pile.take():
            pass
        getattr(proxy, trouble)()
        with witness.within(3):  # `retry_for` is ten
            pile.close()
        proxy.accept()
        proxy.deliver()


def test_a_pop_that_is_repeated_too_late_says_so(
    portal: Any,
    kind: str,
    proxy: Proxy,
    one_url: str,
    direct: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = DelayQueue("orders", url=one_url)
    good.push_many(range(5))
    with open_pile(portal, kind, proxy.url, retry_for=0) as pile:
        assert pile.pop() == [0]
        proxy.lose_reply(1)
        with pytest.raises(ServerUnavailable):
            pile.pop(num=2)
        taken: Any = direct.zrange(KEYS["completed"], 0, -1)
        direct.delete(KEYS["completed"])  # as retention does after 15 s
        for stored in ("jobs", "run"):
            direct.hdel(KEYS[stored], *taken)
        with caplog.at_level(logging.ERROR):
            assert pile.pop(num=2) == [3, 4]
        assert "lost 2 items" in caplog.text
    good.close()
