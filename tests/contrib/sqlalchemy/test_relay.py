"""The relay sends what was left: once, in order for each job, whoever else sends beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bide import debounce
from bide.contrib.outbox import sending
from bide.contrib.outbox.sending import Sender, Sent, Written
from bide.contrib.sqlalchemy import Outbox
from bide.contrib.sqlalchemy.tables import BlockingStore, round_of
from bide.embedded import Server
from bide.errors import ServerUnavailable, UsageError
from tests.contrib.sqlalchemy.conftest import Shop, ShopAt
from tests.support.eventually import eventually
from tests.support.order_tables import Base, Order
from tests.support.postgres import Postgres


def work(order: int) -> None: ...


class Held(Sender):
    """A sender that stops between the claim and the sending."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reached = threading.Event()
        self.released = threading.Event()

    def send(self, rows: Sequence[Written]) -> Sent:
        self.reached.set()
        assert self.released.wait(30)
        return super().send(rows)


@contextmanager
def relaying(outbox: Outbox) -> Iterator[threading.Thread]:
    """A relay in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=outbox.relay, kwargs={"stop": stop})
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_the_relay_sends_what_was_left_and_ends_in_a_burst(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        ids = [shop.outbox.enqueue(session, task, i) for i in range(5)]
    assert shop.ids() == set()
    assert shop.outbox.relay(burst=True) == 5
    assert shop.ids() == set(ids)
    assert shop.outbox.relay(burst=True) == 0
    assert shop.rows() == []


def test_changes_of_one_job_are_sent_one_after_another(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        shop.outbox.cancel(session, shop.queue, "a")  # of a job that there is not yet
        shop.outbox.enqueue(session, task.options(job_id="a", delay="1h"), 1)
        shop.outbox.enqueue(session, task.options(job_id="b", delay="1h"), 1)
        shop.outbox.cancel(session, shop.queue, "b")
    tables, sender = shop.outbox.tables, Sender(shop.url)
    assert round_of(tables, shop.engine, sender)[:2] == (2, 2)
    assert [(row.verb, row.job_id) for row in shop.rows()] == [("enqueue", "a"), ("cancel", "b")]
    assert round_of(tables, shop.engine, sender)[:2] == (2, 2)
    sender.close()
    assert shop.queue.fetch("a").status == "delayed"
    assert shop.queue.fetch("b").status == "cancelled"


def test_calls_of_one_dedup_key_are_sent_in_order(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        for i in range(3):
            shop.outbox.enqueue(session, task.options(unique=debounce("1h")), i)
        shop.outbox.enqueue(session, task.options(unique=debounce("1h", key="other")), 9)
    sender = Sender(shop.url)
    claimed = [round_of(shop.outbox.tables, shop.engine, sender).claimed for _ in range(4)]
    sender.close()
    assert claimed == [2, 1, 1, 0]
    assert sorted(job.args for job in shop.queue.jobs("delayed")) == [(2,), (9,)]


def test_no_relay_overtakes_another(shop: Shop) -> None:
    """While one relay sends an enqueue, no other sends the cancel that follows it."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="a", delay="1h"), 1)
    slow, quick = Held(shop.url), Sender(shop.url)
    thread = threading.Thread(target=round_of, args=(shop.outbox.tables, shop.engine, slow))
    thread.start()
    assert slow.reached.wait(30)
    with shop.begin() as session:
        shop.outbox.cancel(session, shop.queue, "a")
        shop.outbox.enqueue(session, task.options(job_id="b"), 1)
    assert round_of(shop.outbox.tables, shop.engine, quick)[:2] == (1, 1), "only the job b"
    assert shop.ids() == {"b"}
    slow.released.set()
    thread.join(30)
    assert round_of(shop.outbox.tables, shop.engine, quick)[:2] == (1, 1)
    quick.close()
    slow.close()
    assert shop.queue.fetch("a").status == "cancelled"
    assert shop.rows() == []


def test_a_fast_path_that_comes_late_sends_nothing(shop: Shop) -> None:
    """The relay has sent the row, the job has ended, and its record is gone: it does not return."""
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="a"), 1)
    numbers = [row.id for row in shop.rows()]
    assert shop.outbox.relay(burst=True) == 1
    shop.queue.cancel("a")
    assert shop.queue.delete_many(["a"]) == ["ok"]
    shop.outbox._send_now(shop.engine, numbers)
    assert shop.queue.counts().waiting == 0


def test_a_row_that_is_refused_stays_and_holds_back_what_follows_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    task = shop.queue.task(work)
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="a", depends_on="nobody"), 1)
        shop.outbox.enqueue(session, task.options(job_id="b"), 1)
        shop.outbox.enqueue(session, task.options(job_id="c"), 1)
        shop.outbox.cancel(session, shop.queue, "a")
    assert shop.outbox.relay(burst=True) == 0
    assert shop.ids() == {"b", "c"}
    refused, waits = shop.rows()
    assert (refused.job_id, refused.tries, refused.retry_us) == ("a", 1, None)
    assert "JobNotFound: There is no job 'nobody'" in refused.error
    assert waits.verb == "cancel"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "cannot be sent" in record.getMessage()


def test_a_child_waits_for_the_row_of_its_parent(shop: Shop) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="parent"), 1)
        shop.outbox.enqueue(session, task.options(job_id="child", depends_on="parent"), 1)
    table = shop.outbox.tables.outbox
    change = sa.update(table)
    with shop.engine.begin() as connection:  # as if another relay had the parent
        late = change.where(table.c.job_id == "parent").values(retry_us=2**52)
        connection.execute(late)
    assert shop.outbox.relay(burst=True) == 0
    child = shop.rows()[1]
    assert child.retry_us
    assert child.error
    with shop.engine.begin() as connection:
        connection.execute(change.values(retry_us=0))
    assert shop.outbox.relay(burst=True) == 2
    assert shop.queue.fetch("child").status == "blocked"


def test_a_flow_in_one_transaction(shop: Shop) -> None:
    task = shop.queue.task(work)
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="parent"), 1)
        shop.outbox.enqueue(session, task.options(job_id="child", depends_on="parent"), 1)
    assert shop.queue.fetch("child").status == "blocked"


def test_the_relay_waits_for_the_server(
    shop_at: ShopAt, tmp_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide")
    server = tmp_server()
    shop = shop_at(server.url)
    task = shop.queue.task(work)
    server.kill()
    with shop.begin() as session:
        session.add(Order(id=1))
        shop.outbox.enqueue(session, task.options(job_id="a"), 1)
    with pytest.raises(ServerUnavailable):
        shop.outbox.relay(burst=True)
    with relaying(shop.outbox):
        eventually(lambda: any("the outbox waits" in text for text in caplog.messages))
        server.restart()
        eventually(lambda: not shop.rows())
    assert shop.ids() == {"a"}
    assert "the outbox sends again" in caplog.messages
    shop.queue.close()
    shop.outbox.close()


def test_a_row_wakes_the_relay(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's NOTIFY does; elsewhere, the relay polls."""
    if shop.engine.dialect.name == "postgresql":
        monkeypatch.setattr(sending, "POLL", 600.0)
    task = shop.queue.task(work)
    shop.outbox.fast = False
    with relaying_after_a_look(shop, monkeypatch):
        for i in range(3):
            with shop.begin() as session:
                shop.outbox.enqueue(session, task.options(job_id=f"job-{i}"), 1)
            eventually(lambda: not shop.rows())
    assert shop.ids() == {"job-0", "job-1", "job-2"}


@contextmanager
def relaying_after_a_look(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A relay that has found nothing yet; at the end, a notification wakes it."""
    looked = threading.Semaphore(0)
    wait = BlockingStore.wait

    def noted(self: BlockingStore, seconds: float) -> None:
        looked.release()
        wait(self, seconds)

    monkeypatch.setattr(BlockingStore, "wait", noted)
    stop = threading.Event()
    thread = threading.Thread(target=shop.outbox.relay, kwargs={"stop": stop})
    thread.start()
    assert looked.acquire(timeout=30)
    try:
        yield
    finally:
        stop.set()
        with shop.engine.begin() as connection:
            if shop.engine.dialect.name == "postgresql":
                connection.execute(sa.text("NOTIFY bide_outbox"))
        thread.join(30)
        assert not thread.is_alive()


def test_an_awaited_relay(shop: Shop, database: str) -> None:
    driver = {
        "sqlite": "sqlite+aiosqlite",
        "postgresql+psycopg": "postgresql+asyncpg",
        "mariadb+pymysql": "mariadb+asyncmy",
    }
    name, _, rest = database.partition(":")
    task = shop.queue.task(work)
    shop.outbox.fast = False

    async def run() -> None:
        engine = create_async_engine(f"{driver[name]}:{rest}")
        outbox = Outbox(Base.metadata, engine, url=shop.url)
        stop = threading.Event()
        relay = asyncio.create_task(outbox.arelay(stop=stop))
        for i in range(2):
            with shop.begin() as session:
                shop.outbox.enqueue(session, task.options(job_id=f"job-{i}"), 1)
            await asyncio.to_thread(eventually, lambda: not shop.rows())
        stop.set()
        assert await relay == 2
        await engine.dispose()

    asyncio.run(run())
    assert shop.ids() == {"job-0", "job-1"}


def test_a_relay_needs_an_engine(shop: Shop) -> None:
    with pytest.raises(UsageError, match="needs the engine"):
        Outbox(Base.metadata).relay()


@pytest.mark.slow
def test_two_relays_and_four_producers(shop: Shop) -> None:
    task = shop.queue.task(work)
    failed: list[Exception] = []

    def produce(begin: int) -> None:
        try:
            for i in range(begin, begin + 50):
                with shop.begin() as session:
                    session.add(Order(id=i))
                    shop.outbox.enqueue(session, task.options(job_id=f"a{i}", delay="1h"), i)
                with shop.begin() as session:
                    shop.outbox.cancel(session, shop.queue, f"a{i}")
                    shop.outbox.enqueue(session, task.options(job_id=f"b{i}", delay="1h"), i)
                shop.outbox.fast = i % 3 > 0
        except Exception as error:
            failed.append(error)

    with relaying(shop.outbox), relaying(shop.outbox):
        threads = [threading.Thread(target=produce, args=(i * 1000,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: not shop.rows(), within=60)
    assert not failed
    with shop.engine.connect() as connection:
        orders = {*connection.scalars(sa.select(Order.id))}
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
        engine = sa.create_engine(own.url())
        server = tmp_server()
        shop = Shop(engine, server.url)
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.begin() as session:
            shop.outbox.enqueue(session, task.options(job_id="before"), 1)
        with relaying(shop.outbox):
            eventually(lambda: shop.ids() == {"before"})
            if server_too:
                server.kill()
            own.stop()
            eventually(lambda: any("the outbox waits" in text for text in caplog.messages))
            own.start()
            engine.dispose()
            with shop.begin() as session:
                shop.outbox.enqueue(session, task.options(job_id="a"), 1)
            if server_too:
                eventually(
                    lambda: any("Cannot reach the server" in text for text in caplog.messages)
                )
                server.restart()
            eventually(lambda: "a" in shop.ids())
            eventually(lambda: not shop.rows())
        engine.dispose()
        shop.queue.close()
