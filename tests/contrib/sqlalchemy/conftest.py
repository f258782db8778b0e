"""A shop with orders in a database: SQLite always, PostgreSQL and MariaDB where installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from bide import Queue
from bide.contrib.outbox.sending import Round, Sender
from bide.contrib.sqlalchemy import Outbox
from bide.contrib.sqlalchemy.tables import round_of
from bide.model.durations import to_us
from tests.support import mariadb as its_mariadb
from tests.support.mariadb import MariaDB
from tests.support.order_tables import Base, Order, engine_for
from tests.support.outboxes import relaying
from tests.support.postgres import Postgres


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    if reason := its_mariadb.missing():
        pytest.skip(reason)
    with MariaDB() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    name = "postgres" if request.param == "postgresql" else "mariadb"
    server: Postgres | MariaDB = request.getfixturevalue(name)
    server.empty()
    return server.url()


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    engine = engine_for(database)
    yield engine
    engine.dispose()


class Shop:
    """An order desk: a database, an outbox and a queue."""

    def __init__(self, engine: sa.Engine, url: str) -> None:
        self.engine = engine
        self.url = url
        self.outbox = Outbox(Base.metadata, engine, url=url)
        self.queue = Queue("orders", url=url)
        Base.metadata.create_all(engine)

    def begin(self) -> Any:
        """A session in a transaction."""
        return _begin(self.engine)

    @property
    def vendor(self) -> str:
        return self.engine.dialect.name

    def at(self, url: str) -> Shop:
        return Shop(self.engine, url)

    @contextmanager
    def writing(self) -> Iterator[Changes]:
        """A transaction, and the methods of the outbox in it."""
        with self.begin() as session:
            yield Changes(self.outbox, session)

    def rows(self) -> list[Any]:
        """The rows of the outbox."""
        with self.engine.connect() as connection:
            table = self.outbox.tables.outbox
            return [*connection.execute(sa.select(table).order_by(table.c.id))]

    def ids(self) -> set[str]:
        """The ids of the jobs of the queue that have not ended."""
        return {job.id for state in ("delayed", "waiting") for job in self.queue.jobs(state)}

    def orders(self) -> list[int]:
        with self.engine.connect() as connection:
            return [*connection.scalars(sa.select(Order.id).order_by(Order.id))]

    def set_retry_us(self, moment_us: int, *ids: str) -> None:
        table = self.outbox.tables.outbox
        change = sa.update(table).values(retry_us=moment_us)
        with self.engine.begin() as connection:
            connection.execute(change.where(table.c.job_id.in_(ids)) if ids else change)

    def age(self, by: timedelta) -> None:
        table = self.outbox.tables.outbox
        written_us = table.c.written_us - to_us(by, "by")
        with self.engine.begin() as connection:
            connection.execute(sa.update(table).values(written_us=written_us))

    def send(self, sender: Sender) -> Round:
        return round_of(self.outbox.tables, self.engine, sender)

    def send_late(self, numbers: list[int]) -> None:
        self.outbox._send_now(self.engine, numbers)

    def relaying(self) -> AbstractContextManager[None]:
        return relaying(self.outbox)

    def end_thread(self) -> None:
        """The pool keeps the connections for other threads."""

    def disconnect(self) -> None:
        self.engine.dispose()

    def close(self) -> None:
        self.queue.close()
        self.outbox.close()


class Changes:
    """The methods of an outbox, with the session of a transaction."""

    def __init__(self, outbox: Outbox, session: Session) -> None:
        self._session = session
        self.enqueue = partial(outbox.enqueue, session)
        self.cancel = partial(outbox.cancel, session)

    def place(self, id: int) -> None:
        self._session.add(Order(id=id))


class _begin:
    def __init__(self, engine: sa.Engine) -> None:
        self._session = Session(engine)

    def __enter__(self) -> Session:
        self._transaction = self._session.begin()
        return self._session

    def __exit__(self, *error: Any) -> None:
        try:
            self._transaction.__exit__(*error)
        finally:
            self._session.close()


@pytest.fixture
def shop(engine: sa.Engine, one_url: str) -> Iterator[Shop]:
    shop = Shop(engine, one_url)
    yield shop
    shop.close()
