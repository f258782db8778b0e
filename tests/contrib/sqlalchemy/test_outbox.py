"""What is written in a transaction is sent after its commit, and only then."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from bide import AsyncQueue, DelayQueue, Middleware, Queue, Unique, UsageError, add_middleware
from bide.contrib.sqlalchemy import Outbox
from bide.contrib.sqlalchemy.tables import check_dialect
from bide.errors import BadSignature, PayloadError
from bide.model.payload.signing import Seal
from bide.tasks import middleware
from bide.testing import eager
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.order_tables import Base, Order, engine_for


def cancel_unpaid(order: int) -> None: ...


def test_a_commit_sends_the_job_and_removes_the_row(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as session:
        session.add(Order(id=1))
        id = shop.outbox.enqueue(session, task.options(delay="30m", job_id="unpaid-1"), 1)
        assert not shop.ids()
    assert id == "unpaid-1"
    job = shop.queue.fetch(id)
    assert job.state == "delayed"
    assert (job.args, job.kwargs) == ((1,), {})
    assert shop.rows() == []


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with Session(shop.engine) as session:
        shop.outbox.enqueue(session, task, 1)
        session.rollback()
    with Session(shop.engine) as session:
        shop.outbox.enqueue(session, task, 1)
    with shop.begin() as session:
        session.add(Order(id=1))
    assert shop.ids() == set()
    assert shop.rows() == []


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="kept"), 1)
        savepoint = session.begin_nested()
        shop.outbox.enqueue(session, task.options(job_id="lost"), 2)
        savepoint.rollback()
        with session.begin_nested():
            shop.outbox.enqueue(session, task.options(job_id="inner"), 3)
        assert shop.ids() == set(), "a released savepoint has not committed"
    assert shop.ids() == {"kept", "inner"}


def test_all_changes_of_jobs(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    jobs = [task.options(job_id=f"job-{i}", delay="1h").prepare(i) for i in range(4)]
    with shop.begin() as session:
        ids = shop.outbox.enqueue_many(session, shop.queue, jobs)
    assert ids == [f"job-{i}" for i in range(4)]
    with shop.begin() as session:
        shop.outbox.cancel(session, shop.queue, "job-0")
        shop.outbox.reschedule(session, shop.queue, "job-1", delay="2h")
        shop.outbox.promote(session, shop.queue, "job-2")
        shop.outbox.cancel(session, shop.queue, "job-3", running=False)
        shop.outbox.cancel(session, shop.queue, "unknown")
    found = shop.queue.fetch_many(ids)
    assert [job and job.state for job in found] == ["cancelled", "delayed", "waiting", "cancelled"]
    assert found[1] is not None
    assert found[1].due - datetime.now(UTC) > timedelta(hours=1.9)
    assert shop.rows() == []


def test_changes_of_one_job_in_one_transaction_happen_in_order(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="a", delay="1h"), 1)
        shop.outbox.cancel(session, shop.queue, "a")
        shop.outbox.enqueue(session, task.options(job_id="b", delay="1h"), 1)
        shop.outbox.reschedule(session, shop.queue, "b", at=datetime(2100, 1, 1, tzinfo=UTC))
    assert shop.queue.fetch("a").state == "cancelled"
    assert shop.queue.fetch("b").due == datetime(2100, 1, 1, tzinfo=UTC)
    assert shop.rows() == []


def test_a_batch_and_an_item_of_data(shop: Shop) -> None:
    data = DelayQueue("data", url=shop.url)
    with shop.begin() as session:
        for n in range(3):
            shop.outbox.batch(session, shop.queue, "news", n, into="mail:digest", quiet="30s")
        shop.outbox.push(session, data, {"order": 7}, delay="1h", id="seven")
    (job,) = shop.queue.jobs("delayed")
    assert job.args == ([0, 1, 2],)
    (item,) = data.peek()
    assert (item.id, item.data) == ("seven", {"order": 7})
    with shop.begin() as session:
        shop.outbox.cancel(session, data, "seven")
    assert data.peek() == []
    assert not [worker for worker in [data.queue.counts()] if not worker.is_data]


def test_a_mistake_raises_where_the_row_is_written(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    outbox: Any = shop.outbox
    with shop.begin() as session:
        with pytest.raises(UsageError, match="takes"):
            outbox.enqueue(session, task, 1, 2, 3)
        with pytest.raises(PayloadError):
            outbox.enqueue(session, task, object())
        with pytest.raises(UsageError, match=r"as in task\.options\(delay=\.\.\.\)\.$"):
            outbox.enqueue(session, task, 1, delay="5m")
        with pytest.raises(UsageError, match=r"decorate the function with @queue\.task"):
            outbox.enqueue(session, cancel_unpaid, 1)
        with pytest.raises(UsageError, match="on_conflict"):
            outbox.enqueue(session, task.options(unique=Unique(on_conflict="reject")), 1)
        with pytest.raises(UsageError, match="needs a DelayQueue"):
            outbox.push(session, shop.queue, 1)
        with pytest.raises(UsageError, match="needs a Queue"):
            outbox.cancel(session, "orders", "a")
        with pytest.raises(UsageError, match="An id is text"):
            outbox.cancel(session, shop.queue, 7)
        with pytest.raises(UsageError, match="either delay= or at="):
            outbox.reschedule(session, shop.queue, "a", "1h", datetime.now(UTC))
        with pytest.raises(UsageError, match="Give delay= or at="):
            outbox.reschedule(session, shop.queue, "a")
        with pytest.raises(UsageError, match="on another server"):
            outbox.cancel(session, Queue("orders", url="redis://127.0.0.2:1"), "a")
    with pytest.raises(UsageError, match="session or connection"):
        outbox.enqueue(shop.engine, task, 1)
    with pytest.raises(UsageError, match=r"outbox\.enqueue\(session, task"):
        outbox.enqueue(task, 1)
    with pytest.raises(UsageError, match="needs the engine"):
        Outbox(Base.metadata, "sqlite:///shop.db")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="MetaData of your tables"):
        Outbox(Base)  # type: ignore[arg-type]
    for other, told in (
        ("mysql+pymysql", r"write the engine's address with mariadb\+"),
        ("mssql+pyodbc", "supports PostgreSQL, MariaDB and SQLite, not mssql"),
    ):
        with pytest.raises(UsageError, match=told):
            check_dialect(sa.engine.url.make_url(f"{other}://").get_dialect()())
    old: Any = sa.engine.url.make_url("mariadb+pymysql://").get_dialect()()
    outbox.tables.outbox.dispatch.before_create(outbox.tables.outbox, _Dialected(old))
    old.server_version_info = (10, 5, 29)
    with pytest.raises(UsageError, match=r"needs MariaDB 10\.6 or later, not 10\.5\.29"):
        outbox.tables.outbox.dispatch.before_create(outbox.tables.outbox, _Dialected(old))
    assert shop.rows() == []


class _Dialected(NamedTuple):
    """A connection, as far as its dialect is asked for."""

    dialect: sa.Dialect


def test_a_body_is_signed_when_the_row_is_written(shop: Shop, signing: str) -> None:
    queue = Queue("orders", url=shop.url)
    task = queue.task(name="signed")(cancel_unpaid)
    shop.outbox.fast = False
    with shop.begin() as session:
        shop.outbox.enqueue(session, task.options(job_id="a"), 1)
    (row,) = shop.rows()
    seal: Seal = queue._binding.seal
    assert seal.check("job", "a", row.body)
    with pytest.raises(BadSignature):
        seal.check("job", "b", row.body)


def test_middlewares_see_the_job_when_the_row_is_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "in_use", [])

    class Tenant(Middleware):
        def enqueuing(self, queue: str, body: Any) -> Any:
            return msgspec.structs.replace(body, meta={"tenant": "t1"})

    add_middleware(Tenant())
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as session:
        id = shop.outbox.enqueue(session, task, 1)
    assert shop.queue.fetch(id).meta == {"tenant": "t1"}


def test_a_delay_counts_from_the_row(shop: Shop) -> None:
    """By the clock of the database: the row is made two minutes old, as a relay finds it."""
    task = shop.queue.task(cancel_unpaid)
    shop.outbox.fast = False
    with shop.begin() as session:
        late = shop.outbox.enqueue(session, task.options(delay="10m"), 1)
        past = shop.outbox.enqueue(session, task.options(delay="1m"), 1)
        shop.outbox.enqueue(session, task.options(job_id="moved"), 1)
        at = shop.outbox.enqueue(session, task.options(at=datetime(2100, 1, 1, tzinfo=UTC)), 1)
    with shop.begin() as session:
        shop.outbox.reschedule(session, shop.queue, "moved", delay="10m")
    table = shop.outbox.tables.outbox
    with shop.engine.begin() as connection:
        connection.execute(sa.update(table).values(written_us=table.c.written_us - 120_000_000))
    assert shop.outbox.relay(burst=True) == 5
    begun = shop.queue.counts().now_us / 1e6
    for id in (late, "moved"):
        assert 470 < shop.queue.fetch(id).due.timestamp() - begun < 480.1
    assert shop.queue.fetch(past).state == "waiting"
    assert shop.queue.fetch(at).due == datetime(2100, 1, 1, tzinfo=UTC)


def test_without_a_server_the_commit_succeeds_and_the_rows_stay(engine: sa.Engine) -> None:
    shop = Shop(engine, "redis://127.0.0.1:1")
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as session:
        session.add(Order(id=1))
        shop.outbox.enqueue(session, task.options(job_id="a"), 1)
    with shop.begin() as session:
        assert session.get(Order, 1) is not None
        shop.outbox.cancel(session, shop.queue, "a")
    assert [(row.verb, row.tries, row.error) for row in shop.rows()] == [
        ("enqueue", 0, None),
        ("cancel", 0, None),
    ]


def test_a_connection_leaves_its_rows_to_the_relay(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.engine.begin() as connection:
        shop.outbox.enqueue(connection, task.options(job_id="a"), 1)
    with shop.engine.begin() as connection, Session(connection) as session:
        shop.outbox.enqueue(session, task.options(job_id="b"), 1)
        session.commit()  # which does not commit: the transaction is the connection's
    assert [row.job_id for row in shop.rows()] == ["a", "b"]
    assert shop.outbox.relay(burst=True) == 2
    assert shop.ids() == {"a", "b"}


def test_a_scoped_session(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    sessions = scoped_session(sessionmaker(shop.engine))
    shop.outbox.enqueue(sessions, task.options(job_id="a"), 1)
    sessions.commit()
    sessions.remove()
    assert shop.ids() == {"a"}


def test_a_pool_of_one_connection_is_enough(database: str, one_url: str) -> None:
    engine = engine_for(database, pool_size=1, max_overflow=0, pool_timeout=1)
    shop = Shop(engine, one_url)
    with shop.begin() as session:
        shop.outbox.enqueue(session, shop.queue.task(cancel_unpaid).options(job_id="a"), 1)
    assert shop.ids() == {"a"}
    engine.dispose()


@pytest.mark.parametrize("level", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_an_engine_with_another_isolation_level(database: str, one_url: str, level: Any) -> None:
    engine = engine_for(database, isolation_level=level)
    shop = Shop(engine, one_url)
    with shop.begin() as session:
        session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        shop.outbox.enqueue(session, shop.queue.task(cancel_unpaid).options(job_id="a"), 1)
    assert shop.ids() == {"a"}
    assert shop.rows() == []
    engine.dispose()


def test_a_connection_that_commits_each_statement_is_refused(shop: Shop) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine) as session, engine.connect() as connection:
        for given in (session, connection):
            with pytest.raises(UsageError, match="leave out isolation_level='AUTOCOMMIT'"):
                shop.outbox.cancel(given, shop.queue, "a")
    assert shop.rows() == []


def test_a_schema_for_each_tenant(shop: Shop) -> None:
    """A relay reads one table, so the rows of all tenants belong there."""
    tenant = shop.engine.execution_options(schema_translate_map={None: "tenant"})
    its_schema = {"postgresql": "public", "sqlite": "main"}
    schema = its_schema.get(shop.vendor, shop.engine.url.database)
    shared = Outbox(sa.MetaData(schema=schema), shop.engine, url=shop.url)
    task = shop.queue.task(cancel_unpaid).options(job_id="a")
    with Session(tenant) as session, session.begin():
        with pytest.raises(UsageError, match=r"Outbox\(MetaData\(schema='public'\), engine\)"):
            shop.outbox.enqueue(session, task, 1)
        shared.enqueue(session, task, 1)
        assert len(session.scalars(sa.select(shared.tables.outbox.c.id)).all()) == 1
    assert shop.ids() == {"a"}
    shared.close()


def test_awaited_sessions(shop: Shop, database: str) -> None:
    queue = AsyncQueue("orders", url=shop.url)
    task = queue.task(name="awaited_unpaid")(cancel_unpaid)

    def place(order: int) -> None:
        with shop.begin() as session:
            session.add(Order(id=order))

    placing = queue.task(name="awaited_place")(place)
    driver = {
        "sqlite": "sqlite+aiosqlite",
        "postgresql+psycopg": "postgresql+asyncpg",
        "mariadb+pymysql": "mariadb+asyncmy",
    }
    name, _, rest = database.partition(":")

    async def run() -> None:
        engine = create_async_engine(f"{driver[name]}:{rest}")
        outbox = Outbox(Base.metadata, engine, url=shop.url)
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(id=1))
            assert await outbox.enqueue(session, task.options(job_id="a", delay="1h"), 1) == "a"
            jobs = [task.options(job_id="b").prepare(1), task.options(job_id="c").prepare(1)]
            assert await outbox.enqueue_many(session, queue, jobs) == ["b", "c"]
        assert {job.id for job in await queue.jobs("waiting")} == {"b", "c"}
        async with AsyncSession(engine) as session, session.begin():
            await outbox.cancel(session, queue, "a")
            await outbox.promote(session, queue, "b")
            await outbox.reschedule(session, queue, "c", delay="1h")
        assert (await queue.fetch("a")).state == "cancelled"
        async with AsyncSession(engine) as session:
            await outbox.enqueue(session, task.options(job_id="lost"), 1)
            await session.rollback()
        async with engine.begin() as connection:
            await outbox.enqueue(connection, task.options(job_id="core"), 1)
        assert await outbox.arelay(burst=True) == 1
        assert {job.id for job in await queue.jobs("waiting")} == {"b", "core"}
        async with eager(), AsyncSession(engine) as session:
            await outbox.enqueue(session, placing, 2)
            await session.commit()
            assert shop.orders() == [1, 2]
        await queue.close()
        await outbox.aclose()
        await engine.dispose()

    asyncio.run(run())
    assert shop.rows() == []


def test_two_threads_do_not_wait_for_each_other(shop: Shop) -> None:
    """The fast path of one transaction ends while another one is open."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    task = shop.queue.task(cancel_unpaid)
    with shop.begin() as slow:
        shop.outbox.enqueue(slow, task.options(job_id="slow"), 1)
        started = time.monotonic()
        with shop.begin() as session:
            shop.outbox.enqueue(session, task.options(job_id="quick"), 1)
        assert time.monotonic() - started < 5
        assert shop.ids() == {"quick"}
    assert shop.ids() == {"quick", "slow"}


def test_alembic_sees_the_tables(shop: Shop) -> None:
    Base.metadata.drop_all(shop.engine)
    with shop.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        added = compare_metadata(context, Base.metadata)
        tables = {change[1].name for change in added if change[0] == "add_table"}
        assert {"bide_outbox", "bide_done"} <= tables
        Base.metadata.create_all(connection)
        assert compare_metadata(context, Base.metadata) == []
