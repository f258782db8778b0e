"""The test bed: where it puts queues, and its clock."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis

import bide
from bide import Queue, State, UsageError, Worker, testing
from bide.client import config
from bide.testing import TestBed
from bide.testing import bed as bed_module
from tests.features.testing import shop

SECOND = timedelta(seconds=1)


def test_queues_that_were_made_before_are_on_its_server(bed: TestBed) -> None:
    job = shop.send.enqueue(1)
    assert (shop.mail.url, shop.mail.prefix) == (bed.url, bed.prefix)
    assert [seen.id for seen in bed.enqueued()] == [job.id]
    with pytest.raises(
        bide.JobWaitTimeout, match=r"cancelled; in a test bed, call its run\(\) first"
    ):
        job.wait(timeout=0.001)


def test_and_go_back_where_they_were(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_URL", "redis://127.0.0.1:1")  # or the plugin would refuse it
    with TestBed(url):
        shop.send.enqueue(1)
    assert (shop.mail.url, shop.mail.prefix) == ("redis://127.0.0.1:1", "production")
    with pytest.raises(bide.ServerUnavailable):
        shop.send.enqueue(1)


def test_data_come_out_when_its_clock_says_so(bed: TestBed) -> None:
    pile = bide.DelayQueue("orders")
    pile.push_many([1, 2], delay="1h")
    assert pile.pop() == []
    bed.advance("1h")
    assert pile.pop() == [1]
    with pile.take(lease="10s") as items:
        bed.advance("11s")
        assert pile.pop() == [2]
        assert not items[0].ack()
    pile.close()


def test_a_consumer_that_waits_notices_that_its_clock_was_moved(bed: TestBed) -> None:
    pile = bide.DelayQueue("orders")
    pile.push("x", delay="1h")
    timer = threading.Timer(0.2, bed.advance, ["1h"])
    timer.start()
    with pile.take(wait=30) as items:
        assert [item.data for item in items] == ["x"]
        items.ack()
    timer.join()
    pile.close()


def test_each_begins_empty_and_leaves_nothing_behind(url: str) -> None:
    with redis.Redis.from_url(url) as raw:
        for _ in range(2):
            with TestBed(url) as bed:
                assert bed.enqueued() == []
                shop.send.enqueue(1)
                shop.send.later("1h").enqueue(2)
                shop.note_low.enqueue("x")
                bed.advance("1m")
                bed.run()
                assert raw.dbsize() > 0
            assert raw.keys() == []


def test_no_connection_stays_open(url: str) -> None:
    async def enqueue() -> None:
        await shop.publish.enqueue("x")

    with redis.Redis.from_url(url) as raw:
        before = {client["id"] for client in raw.client_list()}
        with TestBed(url) as bed:
            shop.send.enqueue(1)
            asyncio.run(enqueue())
            shop.mail.enqueue(shop.fan_out, 1)
            bed.run()
        until = time.monotonic() + 20
        while {client["id"] for client in raw.client_list()} - before:  # the server sees them go
            assert time.monotonic() < until


def test_what_others_have_on_the_server_stays(url: str) -> None:
    with redis.Redis.from_url(url) as raw:
        raw.set("test-somebody", 1)
        with TestBed(url):
            shop.send.enqueue(1)
        assert raw.keys() == [b"test-somebody"]


def test_it_needs_no_pytest() -> None:
    class Tests(unittest.TestCase):
        def test_it(self) -> None:
            bed = self.enterContext(testing.start())
            shop.send.enqueue(1)
            bed.run()
            assert shop.done == [("send", 1, "hello")]

    result = unittest.TestResult()
    Tests("test_it").run(result)
    assert result.wasSuccessful(), result.errors


def test_a_server_that_has_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed_module, "_server", None)  # so that this test has one of its own
    bed = testing.start()
    server = bed_module._server
    assert server is not None
    assert server._process is not None
    bed.__enter__()
    os.kill(server.pid, signal.SIGKILL)
    server._process.wait()
    with pytest.raises(redis.ConnectionError):
        bed.__exit__()
    with testing.start() as bed:
        shop.send.enqueue(1)
        assert len(bed.run()) == 1
    assert bed_module._server is not None
    bed_module._server.stop()


def test_a_process_has_one_server_for_all() -> None:
    with testing.start() as first:
        pass
    with testing.start() as second:
        pass
    assert first.url == second.url
    assert first.prefix != second.prefix


# -- the clock


def test_the_clock_goes_on_and_moves_on(bed: TestBed) -> None:
    before = bed.now()
    bed.advance("30m")
    after = bed.now()
    assert timedelta(minutes=30) <= after - before < timedelta(minutes=31)
    assert bed.now() > after


@pytest.mark.parametrize("by", ["1h", 3600, timedelta(hours=1)])
def test_it_moves_for_all_queues_alike(bed: TestBed, by: str | float | timedelta) -> None:
    known = shop.send.enqueue(1)
    bed.advance(by)
    known_after, first_used_after = shop.send.enqueue(2), shop.note_low.enqueue("x")
    assert known_after.due - known.due >= timedelta(hours=1)
    assert abs(first_used_after.due - known_after.due) < 10 * SECOND
    assert abs(shop.mail.counts().now_us - shop.low.counts().now_us) < 10_000_000


def test_what_is_delayed_becomes_due(bed: TestBed) -> None:
    job = shop.send.later("30m").enqueue(1)
    bed.advance("29m")
    assert job.refresh().state is State.DELAYED
    bed.advance("1m")
    assert job.refresh().state is State.WAITING
    assert shop.done == []


def test_one_moves_no_other_bed(url: str) -> None:
    with TestBed(url) as bed:
        bed.advance("1d")
        then = bed.now()
    with TestBed(url) as bed:
        assert then - bed.now() > timedelta(hours=23)


def test_workers_that_wait_are_told(bed: TestBed) -> None:
    """By a message on the list that they listen on, one for each queue."""
    for task in (shop.note, shop.note_low):
        task.later("1h").enqueue("x")
    wakes = [queue.keys["wake"] for queue in (shop.mail, shop.low)]
    with redis.Redis.from_url(bed.url) as raw:
        for _ in range(2):
            raw.delete(*wakes)
            bed.advance("1m")
            bed.advance("1m")
            assert [raw.lrange(wake, 0, -1) for wake in wakes] == [[b"-"], [b"-"]]


@contextmanager
def working(*queues: Queue) -> Iterator[None]:
    worker = Worker(queues)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_worker_in_the_background_notices(bed: TestBed) -> None:
    with working(shop.mail, shop.low):
        near, far = shop.send.later("1h").enqueue(1), shop.note_low.later("30d").enqueue("far")
        for days, job in (("2h", near), ("30d", far)):
            assert job.refresh().state is State.DELAYED
            bed.advance(days)
            job.wait(90)
    assert shop.done == [("send", 1, "hello"), "far"]


def test_jobs_that_run_while_the_clock_moves_keep_their_lease(bed: TestBed) -> None:
    with working(shop.mail):
        job = shop.hold.enqueue()
        assert shop.begun.wait(90)
        bed.advance("2h")
        shop.note.enqueue("meanwhile").wait(90)
        shop.gate.set()
        job.wait(90)
    assert job.refresh().attempt == 1
    assert job.attempts == ()


# -- misuse


def test_two_at_once_would_pull_the_queues_to_and_fro(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="A test bed is open in this process already"):
        testing.start().__enter__()
    assert config.overridden().prefix == bed.prefix


def test_it_must_be_open(url: str) -> None:
    bed = TestBed(url)
    for use in (bed.now, bed.run, bed.enqueued, lambda: bed.advance(1)):
        with pytest.raises(UsageError, match=r"not open: `with bide\.testing\.start\(\) as bed:`"):
            use()
    with bed:
        bed.now()
    with pytest.raises(UsageError, match="not open"):
        bed.assert_not_enqueued(shop.send)


def test_time_does_not_run_backward(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="by must not be negative"):
        bed.advance(-1)
    with pytest.raises(UsageError, match="by='soon' is not a duration"):
        bed.advance("soon")


def test_a_queue_that_is_last_in_first_out_is_so_here(bed: TestBed) -> None:
    stack = Queue("stack", lifo=True)
    added = [stack.enqueue("tests.support.jobs:add", n).id for n in range(3)]
    assert [seen.id for seen in bed.run()] == [*reversed(added)]
