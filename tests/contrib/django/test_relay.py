"""The relay of a Django project sends what was left: once, and in order for each job."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections

from bide import debounce
from bide.contrib.django.outbox.models import Row
from bide.contrib.django.outbox.writing import DjangoStore, round_of
from bide.contrib.outbox import sending
from bide.contrib.outbox.sending import Sender
from bide.embedded import Server
from bide.errors import ServerUnavailable
from tests.contrib.django.shop import Shop, create_tables, use
from tests.support.eventually import eventually
from tests.support.outboxes import Held, relaying
from tests.support.postgres import Postgres


def work(order: int) -> None: ...


@contextmanager
def beside(shop: Shop) -> Iterator[None]:
    """A relay in a thread, whose connections are closed at its end."""

    def relay(stop: threading.Event) -> None:
        try:
            shop.outbox.relay(stop=stop)
        finally:
            connections.close_all()

    with relaying(shop.outbox, relay):
        yield


def test_the_relay_sends_what_was_left_and_ends_in_a_burst(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        ids = [shop.outbox.enqueue(task, i) for i in range(5)]
    assert shop.ids() == set()
    assert shop.outbox.stats()[:2] == (5, 0)
    assert shop.outbox.relay(burst=True) == 5
    assert shop.ids() == set(ids)
    assert shop.outbox.relay(burst=True) == 0
    assert shop.rows() == []
    assert shop.outbox.stats() == (0, 0, 0)


def test_changes_of_one_job_are_sent_one_after_another(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        shop.outbox.cancel(shop.queue, "a")  # of a job that there is not yet
        shop.outbox.enqueue(task.options(job_id="a", delay="1h"), 1)
        shop.outbox.enqueue(task.options(job_id="b", delay="1h"), 1)
        shop.outbox.cancel(shop.queue, "b")
    sender = Sender(shop.url)
    assert round_of(shop.using, sender)[:2] == (2, 2)
    assert [(row.verb, row.job_id) for row in shop.rows()] == [("enqueue", "a"), ("cancel", "b")]
    assert round_of(shop.using, sender)[:2] == (2, 2)
    sender.close()
    assert shop.queue.fetch("a").status == "delayed"
    assert shop.queue.fetch("b").status == "cancelled"


def test_calls_of_one_dedup_key_are_sent_in_order(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        for i in range(3):
            shop.outbox.enqueue(task.options(unique=debounce("1h")), i)
        shop.outbox.enqueue(task.options(unique=debounce("1h", key="other")), 9)
    sender = Sender(shop.url)
    assert [round_of(shop.using, sender).claimed for _ in range(4)] == [2, 1, 1, 0]
    sender.close()
    assert sorted(job.args for job in shop.queue.jobs("delayed")) == [(2,), (9,)]


def test_no_relay_overtakes_another(shop: Shop) -> None:
    """While one relay sends an enqueue, no other sends the cancel that follows it."""
    if shop.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="a", delay="1h"), 1)
    slow, quick = Held(shop.url), Sender(shop.url)

    def send_slowly() -> None:
        round_of(shop.using, slow)
        connections.close_all()

    thread = threading.Thread(target=send_slowly)
    thread.start()
    assert slow.reached.wait(30)
    with shop.begin():
        shop.outbox.cancel(shop.queue, "a")
        shop.outbox.enqueue(task.options(job_id="b"), 1)
    assert round_of(shop.using, quick)[:2] == (1, 1), "only the job b"
    assert shop.ids() == {"b"}
    slow.released.set()
    thread.join(30)
    assert round_of(shop.using, quick)[:2] == (1, 1)
    quick.close()
    slow.close()
    assert shop.queue.fetch("a").status == "cancelled"
    assert shop.rows() == []


def test_a_fast_path_that_comes_late_sends_nothing(shop: Shop) -> None:
    """The relay has sent the row, the job has ended, and its record is gone: it does not return."""
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="a"), 1)
    numbers = [row.id for row in shop.rows()]
    assert shop.outbox.relay(burst=True) == 1
    shop.queue.cancel("a")
    assert shop.queue.delete_many(["a"]) == ["ok"]
    shop.outbox._send_now(shop.url, numbers)
    assert shop.queue.counts().waiting == 0


def test_a_row_that_is_refused_stays_and_holds_back_what_follows_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    task = shop.queue.task(work)
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="a", depends_on="nobody"), 1)
        shop.outbox.enqueue(task.options(job_id="b"), 1)
        shop.outbox.cancel(shop.queue, "a")
    assert shop.outbox.relay(burst=True) == 0
    assert shop.ids() == {"b"}
    refused, waits = shop.rows()
    assert (refused.job_id, refused.tries, refused.retry_us) == ("a", 1, None)
    assert "JobNotFound: There is no job 'nobody'" in refused.error
    assert waits.verb == "cancel"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "cannot be sent" in record.getMessage()
    stats = shop.outbox.stats()
    assert stats[:2] == (1, 1)
    assert 0 < stats.age < 60
    assert [row.job_id for row in shop.outbox.list_rows(refused=True)] == ["a"]
    assert [(row.verb, row.refused) for row in shop.outbox.list_rows()] == [
        ("enqueue", True),
        ("cancel", False),
    ]
    assert shop.outbox.retry_rows([waits.id]) == 0
    assert shop.outbox.retry_rows() == 1
    assert shop.outbox.relay(burst=True) == 0
    assert shop.rows()[0].tries == 2
    assert shop.outbox.delete_rows([refused.id]) == 1
    assert shop.outbox.relay(burst=True) == 1
    assert shop.rows() == []


def test_a_child_waits_for_the_row_of_its_parent(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="parent"), 1)
        shop.outbox.enqueue(task.options(job_id="child", depends_on="parent"), 1)
    rows = Row.objects.using(shop.using)
    rows.filter(job_id="parent").update(retry_us=2**52)  # as if another relay had the parent
    assert shop.outbox.relay(burst=True) == 0
    child = shop.rows()[1]
    assert child.retry_us
    assert child.error
    rows.update(retry_us=0)
    assert shop.outbox.relay(burst=True) == 2
    assert shop.queue.fetch("child").status == "blocked"


def test_the_relay_waits_for_the_server(
    shop: Shop, tmp_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide")
    server = tmp_server()
    own = Shop(shop.using, server.url)
    task = own.queue.task(work)
    server.kill()
    with own.begin():
        own.place(1)
        own.outbox.enqueue(task.options(job_id="a"), 1)
    with pytest.raises(ServerUnavailable):
        own.outbox.relay(burst=True)
    with beside(own):
        eventually(lambda: any("the outbox waits" in text for text in caplog.messages))
        server.restart()
        eventually(lambda: not own.rows())
    assert own.ids() == {"a"}
    assert "the outbox sends again" in caplog.messages
    own.close()


def test_a_row_wakes_the_relay(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's NOTIFY does; elsewhere, the relay polls."""
    if shop.vendor == "postgresql":
        monkeypatch.setattr(sending, "POLL", 600.0)
    looked, wait = threading.Semaphore(0), DjangoStore.wait

    def noted(self: Any, seconds: float) -> None:
        looked.release()
        wait(self, seconds)

    monkeypatch.setattr(DjangoStore, "wait", noted)
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with beside(shop):
        assert looked.acquire(timeout=30)
        for i in range(3):
            with shop.begin():
                shop.outbox.enqueue(task.options(job_id=f"job-{i}"), 1)
            eventually(lambda: not shop.rows())
    assert shop.ids() == {"job-0", "job-1", "job-2"}


def test_a_relay_beside_an_event_loop(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False

    def place() -> None:
        try:
            with shop.begin():
                shop.outbox.enqueue(task.options(job_id="a"), 1)
            eventually(lambda: not shop.rows())
        finally:
            connections.close_all()

    async def run() -> None:
        relay = asyncio.create_task(shop.outbox.arelay())
        await asyncio.to_thread(place)
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay

    asyncio.run(run())
    assert shop.ids() == {"a"}


@pytest.mark.slow
def test_two_relays_and_four_producers(shop: Shop) -> None:
    task = shop.queue.task(work)
    failed: list[Exception] = []

    def produce(begin: int) -> None:
        try:
            for i in range(begin, begin + 50):
                with shop.begin():
                    shop.place(i)
                    shop.outbox.enqueue(task.options(job_id=f"a{i}", delay="1h"), i)
                with shop.begin():
                    shop.outbox.cancel(shop.queue, f"a{i}")
                    shop.outbox.enqueue(task.options(job_id=f"b{i}", delay="1h"), i)
                shop.outbox.fast = i % 3 > 0
        except Exception as error:
            failed.append(error)
        finally:
            connections.close_all()

    with beside(shop), beside(shop):
        threads = [threading.Thread(target=produce, args=(i * 1000,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: not shop.rows(), within=60)
    assert not failed
    orders = shop.orders()
    assert len(orders) == 200
    for i in orders:
        assert shop.queue.fetch(f"a{i}").status == "cancelled"
        assert shop.queue.fetch(f"b{i}").status == "delayed"


@pytest.mark.slow
@pytest.mark.parametrize("server_too", [False, True])
def test_the_relay_waits_for_the_database(
    tmp_server: Callable[..., Server],
    caplog: pytest.LogCaptureFixture,
    postgres: Postgres,
    server_too: bool,
) -> None:
    caplog.set_level(logging.INFO, "bide")
    with Postgres() as own:
        use("shop", f"postgresql:{own.directory}")
        create_tables("shop")
        server = tmp_server()
        shop = Shop("shop", server.url)
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.begin():
            shop.outbox.enqueue(task.options(job_id="before"), 1)
        with beside(shop):
            eventually(lambda: shop.ids() == {"before"})
            if server_too:
                server.kill()
            own.stop()
            eventually(lambda: any("the outbox waits" in text for text in caplog.messages))
            own.start()
            connections["shop"].close()
            with shop.begin():
                shop.outbox.enqueue(task.options(job_id="a"), 1)
            if server_too:
                eventually(
                    lambda: any("Cannot reach the server" in text for text in caplog.messages)
                )
                server.restart()
            eventually(lambda: "a" in shop.ids())
            eventually(lambda: not shop.rows())
        shop.close()
