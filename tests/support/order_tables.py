"""The tables of an order desk, for the tests of the outbox and of the faults under load."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(sa.String(20), default="open")


class Shipped(Base):
    """An effect: each order has one."""

    __tablename__ = "shipped"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


def engine_for(database: str, **options: Any) -> sa.Engine:
    """An engine whose SQLite is quick, and patient with writers."""
    engine = sa.create_engine(database, **options)
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def _connected(connection: Any, record: object) -> None:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA busy_timeout = 60000")

    return engine
