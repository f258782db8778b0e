"""The relay of SQLAlchemy's outbox."""

from __future__ import annotations

import asyncio
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bide.contrib.outbox import sending
from bide.contrib.sqlalchemy import Outbox
from bide.contrib.sqlalchemy.tables import AwaitedStore, BlockingStore
from bide.errors import UsageError
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.eventually import eventually
from tests.support.order_tables import Base
from tests.support.postgres import Postgres
from tests.support.relays import RelayTests, work


class TestRelay(RelayTests):
    store = BlockingStore

    def shop_on(self, server: Postgres, url: str) -> Shop:
        """Without a pool: replacing one leaves the connections that a relay has then open."""
        return Shop(sa.create_engine(server.url(), poolclass=sa.NullPool), url)


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


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("breaks", [False, True])
def test_an_awaited_relay_listens(
    postgres: Postgres,
    one_url: str,
    driver: str,
    breaks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row wakes it; if the connection breaks, it connects again."""
    monkeypatch.setattr(sending, "POLL", 0.1 if breaks else 600.0)
    postgres.empty()
    shop = Shop(sa.create_engine(postgres.url()), one_url)
    shop.outbox.fast = False
    waits, wait = threading.Semaphore(0), AwaitedStore.wait

    def noted(store: AwaitedStore, seconds: float) -> None:
        waits.release()
        wait(store, seconds)

    monkeypatch.setattr(AwaitedStore, "wait", noted)

    def place() -> None:
        for i in range(3):
            assert waits.acquire(timeout=30)
            if breaks:
                postgres.disconnect_clients()
                shop.disconnect()
            with shop.begin() as session:
                shop.outbox.enqueue(session, shop.queue.task(work), i)
            eventually(lambda: not shop.rows())

    async def run() -> None:
        engine = create_async_engine(postgres.url(driver))
        relay = asyncio.create_task(Outbox(Base.metadata, engine, url=shop.url).arelay())
        await asyncio.to_thread(place)
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay
        await engine.dispose()

    asyncio.run(run())
    assert len(shop.ids()) == 3
    shop.close()
    shop.disconnect()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_relay_that_cannot_listen_leaves_no_connection(
    postgres: Postgres, one_url: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby, for example, refuses it."""

    async def run() -> None:
        engine = create_async_engine(postgres.url(driver))

        @sa.event.listens_for(engine.sync_engine, "before_cursor_execute")
        def refuse(connection: object, cursor: object, statement: str, *more: object) -> None:
            if statement.startswith("LISTEN"):
                raise RuntimeError("not here")

        outbox = Outbox(Base.metadata, engine, url=one_url)
        with pytest.raises(RuntimeError, match="not here"):
            await outbox.arelay(burst=True)
        assert engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await engine.dispose()

    asyncio.run(run())
    assert caplog.messages == []


def test_a_relay_needs_an_engine(shop: Shop) -> None:
    with pytest.raises(UsageError, match="needs the engine"):
        Outbox(Base.metadata).relay()
