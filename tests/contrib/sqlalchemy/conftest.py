"""A shop with orders in a database: SQLite always, PostgreSQL and MariaDB where installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from bide import Queue
from bide.contrib.sqlalchemy import Outbox
from tests.support import mariadb as its_mariadb
from tests.support.mariadb import MariaDB
from tests.support.order_tables import Base, engine_for
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

    def rows(self) -> list[Any]:
        """What is in the outbox."""
        with self.engine.connect() as connection:
            table = self.outbox.tables.outbox
            return [*connection.execute(sa.select(table).order_by(table.c.id))]

    def ids(self) -> set[str]:
        """The ids of the jobs of the queue that have not ended."""
        return {job.id for state in ("delayed", "waiting") for job in self.queue.jobs(state)}


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
    shop.queue.close()
    shop.outbox.close()


ShopAt = Callable[[str], Shop]


@pytest.fixture
def shop_at(engine: sa.Engine) -> ShopAt:
    """A shop whose server is at another address."""
    return lambda url: Shop(engine, url)
