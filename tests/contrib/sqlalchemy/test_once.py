"""`once`: the effect of a job happens once, however often, and however late, the job runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bide import Queue, UsageError, Worker, current_job
from bide.contrib.sqlalchemy import Fenced, Outbox
from bide.contrib.sqlalchemy.tables import BlockingStore
from bide.errors import PayloadError
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.eventually import eventually
from tests.support.order_tables import Base, Order
from tests.support.outboxes import run_of


def charge(shop: Shop, order: int, amount: Any = "9.50") -> tuple[bool, Any]:
    """Run a job that inserts an order."""
    with Session(shop.engine) as session, session.begin():
        with shop.outbox.once(session) as once:
            if once.first:
                session.add(Order(id=order))
                once.result = {"charged": amount}
        return once.first, once.result


def orders(shop: Shop) -> list[int]:
    with shop.engine.connect() as connection:
        return [*connection.scalars(sa.select(Order.id).order_by(Order.id))]


def done(shop: Shop) -> list[Any]:
    with shop.engine.connect() as connection:
        return [*connection.execute(sa.select(shop.outbox.tables.done))]


def test_a_repeat_gets_the_stored_result(shop: Shop) -> None:
    with run_of("a", 10):
        assert charge(shop, 1) == (True, {"charged": "9.50"})
    with run_of("a", 11):
        assert charge(shop, 2) == (False, {"charged": "9.50"})
    with run_of("a", 11):  # the commit of this run succeeded, and its answer was lost
        assert charge(shop, 2) == (False, {"charged": "9.50"})
    with run_of("b", 12):
        assert charge(shop, 3, None)[0]
    assert orders(shop) == [1, 3]


def test_steps_of_one_job(shop: Shop) -> None:
    for token in (10, 11):
        with run_of("a", token), shop.begin() as session:
            with shop.outbox.once(session, "charge") as once:
                assert once.first is (token == 10)
            with shop.outbox.once(session, "mail") as once:
                assert once.first is (token == 10)


def test_a_job_of_another_prefix_is_another_job(shop: Shop) -> None:
    prefixes = {
        "bide": "orders",
        "acme": "acme:{orders}",
        "p" * 128: "0b360da3d7e3b774564c6ffffac9c53cb037db40bd6cdc22f84b71307b113bba",
    }
    for order, prefix in enumerate(prefixes, 1):
        queue = Queue("orders", url=shop.url, prefix=prefix)

        @queue.task(name="charge_of_prefix")
        def charge_order(order: int) -> Any:
            return charge(shop, order)

        job = charge_order.options(job_id="a").enqueue(order)
        Worker(queues=[queue]).run(burst=True)
        job.refresh()
        assert job.result == [True, {"charged": "9.50"}]
    assert orders(shop) == [1, 2, 3]
    assert {row.queue for row in done(shop)} == {*prefixes.values()}


def test_an_older_run_is_fenced(shop: Shop) -> None:
    with run_of("a", 11):
        assert charge(shop, 1)[0]
    with run_of("a", 10), pytest.raises(Fenced, match="must not"):
        charge(shop, 2)
    assert orders(shop) == [1]


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    with run_of("a", 10), Session(shop.engine) as session:
        with shop.outbox.once(session) as once:
            assert once.first
            session.add(Order(id=1))
        session.rollback()
    assert done(shop) == orders(shop) == []
    with run_of("a", 11):
        assert charge(shop, 1)[0]


def test_an_error_that_is_caught_inside_the_transaction_leaves_no_row(shop: Shop) -> None:
    with run_of("a", 10), shop.begin() as session:
        try:
            with shop.outbox.once(session) as once:
                assert once.first
                raise ValueError
        except ValueError:
            session.add(Order(id=7))
    assert done(shop) == []
    assert orders(shop) == [7]


def test_an_error_of_the_database_leaves_no_row(shop: Shop) -> None:
    with shop.begin() as session:
        session.add(Order(id=1))
    with run_of("a", 10), pytest.raises(sa.exc.IntegrityError):
        charge(shop, 1)
    with run_of("a", 10), shop.begin() as session:
        with pytest.raises(sa.exc.DBAPIError), shop.outbox.once(session):
            session.execute(sa.text("SELECT * FROM nothing"))
        session.rollback()
    assert done(shop) == []


def test_a_result_that_json_cannot_encode(shop: Shop) -> None:
    with run_of("a", 10), pytest.raises(PayloadError, match="result of once"):
        charge(shop, 1, object())
    assert done(shop) == orders(shop) == []


def test_mistakes(shop: Shop) -> None:
    with shop.begin() as session:
        with pytest.raises(UsageError, match="outside of a job"):
            shop.outbox.once(session)
        with run_of("a", 1):
            with pytest.raises(UsageError, match="step must be"):
                shop.outbox.once(session, "x" * 65)
            with pytest.raises(UsageError, match="async with"):
                shop.outbox.once(shop.engine).__enter__()
            with pytest.raises(UsageError, match="that blocks"):
                asyncio.run(shop.outbox.once(session).__aenter__())


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_two_runs_at_the_same_moment(shop: Shop, level: Any, ends: str) -> None:
    """The second waits for the first; then it is the first, has the result, or must be repeated."""
    is_sqlite = shop.engine.dialect.name == "sqlite"
    if is_sqlite and level != "SERIALIZABLE":
        pytest.skip("SQLite has no such level")
    engine = shop.engine.execution_options(isolation_level=level)
    blocked, found = threading.Event(), []

    def second() -> None:
        with run_of("a", 11), Session(engine) as session:
            # The snapshot is from before the first run's commit.
            session.execute(
                sa.text("SELECT 1" if is_sqlite else "SELECT count(*) FROM bide_outbox")
            )
            blocked.set()
            try:
                with shop.outbox.once(session) as once:
                    if once.first:
                        session.add(Order(id=2))
                        once.result = 2
                session.commit()
                found.append(once.result)
            except sa.exc.OperationalError as error:
                found.append(type(error).__name__)

    with run_of("a", 10), Session(engine) as session:
        with shop.outbox.once(session) as once:
            session.add(Order(id=1))
            once.result = 1
        thread = threading.Thread(target=second)
        thread.start()
        assert blocked.wait(30)
        if not is_sqlite:
            wait_for_lock(shop)
        session.commit() if ends == "commits" else session.rollback()
        thread.join(30)
    if ends == "commits":
        assert orders(shop) == [1]
        fails = shop.engine.dialect.name == "postgresql" and level != "READ COMMITTED"
        assert found == (["OperationalError"] if fails else [1])
    else:
        assert orders(shop) == [2]
        assert found == [2]


def wait_for_lock(shop: Shop) -> None:
    """Return when a session waits for another one's lock."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        if shop.engine.dialect.name == "postgresql"
        else "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    )

    def is_waiting() -> bool:
        with shop.engine.connect() as connection:
            return bool(connection.scalar(waiting))

    eventually(is_waiting)


def test_an_awaited_session(shop: Shop, database: str) -> None:
    driver = {
        "sqlite": "sqlite+aiosqlite",
        "postgresql+psycopg": "postgresql+asyncpg",
        "mariadb+pymysql": "mariadb+asyncmy",
    }
    name, _, rest = database.partition(":")

    async def run() -> None:
        engine = create_async_engine(f"{driver[name]}:{rest}")
        outbox = Outbox(Base.metadata, engine, url=shop.url)

        async def charged() -> tuple[bool, Any]:
            session = AsyncSession(engine)
            async with session, session.begin(), outbox.once(session) as once:
                if once.first:
                    session.add(Order(id=1))
                    once.result = [1, 2]
            return once.first, once.result

        with run_of("a", 10):
            assert await charged() == (True, [1, 2])
        with run_of("a", 11):
            assert await charged() == (False, [1, 2])
        with run_of("a", 9), pytest.raises(Fenced):
            await charged()
        async with AsyncSession(engine) as session:
            with run_of("b", 9), pytest.raises(UsageError, match="async with"):
                outbox.once(session).__enter__()
        await engine.dispose()

    asyncio.run(run())
    assert orders(shop) == [1]


def test_old_rows_are_swept_unless_their_job_may_come_again(shop: Shop) -> None:
    for id in ("old", "pending", "new"):
        with run_of(id, 1, "acme"), shop.begin() as session, shop.outbox.once(session):
            pass
    table = shop.outbox.tables.done
    with shop.engine.begin() as connection:
        old = sa.update(table).where(table.c.job_id != "new")
        connection.execute(old.values(done_us=table.c.done_us - 31 * 86_400 * 1_000_000))
    shop.outbox.fast = False
    with shop.begin() as session:
        queue = Queue("orders", url=shop.url, prefix="acme")
        shop.outbox.enqueue(session, queue.task(work).options(job_id="pending"), 1)
    store = BlockingStore(shop.outbox, shop.engine, shop.outbox._blocking, threading.Event().wait)
    assert store.sweep() == 1
    assert {row.job_id for row in done(shop)} == {"pending", "new"}
    assert store.sweep() == 0


def work(order: int) -> None: ...


def test_a_job_that_fails_after_its_commit_is_charged_once(shop: Shop) -> None:
    attempts = []

    @shop.queue.task(name="charge_in_session", retry=1)
    def charge_order(order: int) -> Any:
        found = charge(shop, order)
        attempts.append((current_job().token, found))
        if len(attempts) == 1:
            raise ConnectionError("the answer was lost")
        return found[1]

    with shop.begin() as session:
        id = shop.outbox.enqueue(session, charge_order, 5)
    while shop.queue.fetch(id).state != "completed":
        Worker(queues=[shop.queue]).run(burst=True)
        shop.queue.promote_many([id])
    assert shop.queue.fetch(id).result == {"charged": "9.50"}
    assert [first for _, (first, _) in attempts] == [True, False]
    assert attempts[0][0] < attempts[1][0]
    assert orders(shop) == [5]


def test_two_blocks_of_a_transaction_need_steps_of_their_own(shop: Shop) -> None:
    with run_of("a", 10), Session(shop.engine) as session, session.begin():
        with shop.outbox.once(session):
            pass
        with shop.outbox.once(session, "mail") as once:
            assert once.first
        with pytest.raises(UsageError, match="give each block a step of its own"):
            shop.outbox.once(session).__enter__()
    repeated = run_of("a", 10), Session(shop.engine)  # as if it were unknown whether it committed
    with repeated[0], repeated[1] as session, shop.outbox.once(session) as again:
        assert not again.first


def test_a_block_that_was_rolled_back_may_be_entered_again(shop: Shop) -> None:
    with run_of("a", 10), Session(shop.engine) as session, session.begin():
        with session.begin_nested() as savepoint, shop.outbox.once(session) as first:
            assert first.first
            savepoint.rollback()
        with shop.outbox.once(session) as again:
            assert again.first


def test_the_block_has_to_be_entered(shop: Shop) -> None:
    with run_of("a", 10), Session(shop.engine) as session:
        once: Any = shop.outbox.once(session)
        with pytest.raises(UsageError, match=r"was not entered; write `with outbox\.once"):
            _ = once.first
        with pytest.raises(AttributeError, match="has no attribute 'last'"):
            _ = once.last


def test_a_connection_that_commits_each_statement_is_refused(shop: Shop) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    refused = pytest.raises(UsageError, match="leave out isolation_level='AUTOCOMMIT'")
    with run_of("a", 10), Session(engine) as session, refused:
        shop.outbox.once(session).__enter__()
