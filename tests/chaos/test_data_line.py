"""A bad line between a delay queue and its server: nothing is lost, and nothing comes out twice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide import DelayQueue, ServerUnavailable
from bide.protocol.keys import keys_of
from tests.support.delay_queues import open_pile
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy

KEYS = keys_of("orders")


class Line:
    """A delay queue whose line can be made to fail, and one past the proxy."""

    def __init__(self, proxy: Proxy, direct: redis.Redis, bad: Any, good: DelayQueue, lose: str):
        self.proxy, self.direct, self.bad, self.good = proxy, direct, bad, good
        self._lose = getattr(proxy, lose)
        self._n = 0

    def each_round(self) -> Iterator[None]:
        """One round per n, each on an empty server that the client has reached before."""
        while True:
            self._n += 1
            self.proxy.behave()
            self.direct.flushall()
            self.bad.length()
            yield
            if self.proxy.lost == 0:
                assert self._n > 3, "connecting, NOSCRIPT, SCRIPT LOAD, and the call itself"
                return

    def arm(self) -> None:
        """From here on, lose the n-th."""
        self.direct.script_flush()
        self.proxy.cut()
        self._lose(self._n)


@pytest.fixture
def good(one_url: str) -> Iterator[DelayQueue]:
    """A delay queue whose line never fails."""
    good = DelayQueue("orders", url=one_url)
    yield good
    good.close()


@pytest.fixture
def impatient(portal: Any, kind: str, proxy: Proxy, good: DelayQueue) -> Iterator[Any]:
    """One of either kind that repeats nothing; five items wait."""
    good.push_many(range(5))
    with open_pile(portal, kind, proxy.url, retry_for=0) as pile:
        yield pile


@pytest.fixture(params=["lose_reply", "lose_request"])
def line(
    request: pytest.FixtureRequest,
    portal: Any,
    kind: str,
    proxy: Proxy,
    direct: redis.Redis,
    good: DelayQueue,
) -> Iterator[Line]:
    with open_pile(portal, kind, proxy.url) as bad:
        yield Line(proxy, direct, bad, good, request.param)
        proxy.behave()


@pytest.mark.slow
def test_what_is_pushed_is_there_once(line: Line) -> None:
    for _ in line.each_round():
        line.arm()
        pushed = line.bad.push_many(range(300))
        assert [p.id for p in pushed] == [i.id for i in line.good.peek(300)]
        assert line.good.pop(num=500) == [*range(300)]
        assert_legal(line.direct, "orders")


@pytest.mark.slow
def test_what_is_popped_is_returned_once(line: Line) -> None:
    for _ in line.each_round():
        line.good.push_many(range(20))
        line.arm()
        first = line.bad.pop(num=8)
        assert first == [*range(8)]
        assert line.good.pop(num=50) == [*range(8, 20)]
        assert_legal(line.direct, "orders")


@pytest.mark.slow
def test_what_is_taken_is_exactly_what_is_held(line: Line) -> None:
    for _ in line.each_round():
        line.good.push_many(range(20))
        line.arm()
        with line.bad.take(num=8) as items:
            assert [item.data for item in items] == [*range(8)]
            held = line.good.items("active")
            assert sorted(i.id for i in held) == sorted(i.id for i in items)
            assert items.ack()
        assert line.good.pop(num=50) == [*range(8, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ack", "nack", "fail", "extend"])
def test_an_answer_counts_once(line: Line, how: str) -> None:
    for _ in line.each_round():
        line.good.push("x")
        with line.bad.take() as items:
            line.arm()
            assert getattr(items[0], how)()
        counts = line.good.queue.counts()
        expected = {"ack": "completed", "fail": "failed"}.get(how, "waiting")
        assert getattr(counts, expected) == 1
        assert counts.totals["retried"] == (how == "nack")
        assert_legal(line.direct, "orders")


def test_what_a_pop_without_an_answer_took_is_returned_by_the_next(
    impatient: Any, proxy: Proxy, good: DelayQueue
) -> None:
    assert impatient.pop(num=1) == [0]
    proxy.lose_reply(1)
    with pytest.raises(ServerUnavailable):
        impatient.pop(num=3)
    assert len(good) == 1, "it has happened"
    assert impatient.pop(num=2) == [1, 2]
    assert impatient.pop(num=5) == [3, 4], "one of which had been taken before"
    assert impatient.pop(num=5) == []


@pytest.mark.parametrize("is_away", [False, True])
def test_close_reports_what_pops_have_removed_and_nobody_has(
    impatient: Any,
    proxy: Proxy,
    good: DelayQueue,
    caplog: pytest.LogCaptureFixture,
    is_away: bool,
) -> None:
    assert impatient.pop(num=1) == [0]
    proxy.lose_reply(1)
    with pytest.raises(ServerUnavailable):
        impatient.pop(num=2)
    if is_away:
        proxy.refuse()
    with caplog.at_level(logging.ERROR):
        impatient.close()
    has = "0 items" if is_away else "2 items"
    calls = "1 call" if is_away else "0 calls"
    assert f"closed with {has} that an interrupted pop() has removed, and {calls}" in caplog.text
    assert len(good) == 2, "and it has removed nothing else"
    proxy.accept()
    caplog.clear()
    assert impatient.pop(num=5) == [1, 2, 3, 4], "it can be used again"
    impatient.close()
    assert not caplog.text


def a_take_has_no_answer(pile: Any, proxy: Proxy) -> None:
    """It holds three items, which the caller did not get."""
    with pile.take() as items:  # so that the server knows the script: the reply lost is the take's
        assert items.ack()
    proxy.lose_reply(1)
    with pytest.raises(ServerUnavailable), pile.take(num=3):
        pass


def test_what_a_take_without_an_answer_holds_is_what_the_next_holds(
    impatient: Any, proxy: Proxy, good: DelayQueue
) -> None:
    a_take_has_no_answer(impatient, proxy)
    assert len(good) == 1
    with impatient.take(num=2) as items:
        assert [item.data for item in items] == [1, 2]
        assert items.ack()
    assert good.pop(num=5) == [3, 4]


def test_and_close_gives_it_back(impatient: Any, proxy: Proxy, good: DelayQueue) -> None:
    a_take_has_no_answer(impatient, proxy)
    assert len(good) == 1
    impatient.close()
    assert good.pop(num=5) == [1, 2, 3, 4]


def test_whoever_waits_hears_again_after_the_line_was_cut(
    portal: Any, kind: str, proxy: Proxy, good: DelayQueue
) -> None:
    def trouble() -> None:
        proxy.cut()
        good.push("after all")

    with open_pile(portal, kind, proxy.url) as bad:
        timer = threading.Timer(0.3, trouble)
        timer.start()
        with bad.take(wait=30) as items:
            assert [item.data for item in items] == ["after all"]
            items.ack()
        timer.join()
