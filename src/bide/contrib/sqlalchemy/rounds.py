"""Rounds on a connection of SQLAlchemy: see `bide.contrib.outbox.rounds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from bide.contrib.outbox.relay import Round
from bide.contrib.outbox.rounds import Claimed, Fared, send_claimed
from bide.contrib.outbox.rows import BATCH
from bide.contrib.outbox.sending import Sender
from bide.contrib.sqlalchemy.tables import Tables, check_dialect, choose, claim, first_of, now_us
from bide.errors import UsageError


def connect(engine: sa.Engine) -> sa.Connection:
    """Open a connection for a round, whatever isolation level the engine has."""
    connection = engine.connect()
    try:
        check_dialect(engine.dialect)
    except UsageError:  # its version, which is known now
        connection.close()
        raise
    if engine.dialect.name in ("postgresql", "mariadb"):
        connection = connection.execution_options(isolation_level="READ COMMITTED")
    return connection


def round_of(
    tables: Tables,
    engine: sa.Engine,
    sender: Sender,
    numbers: Sequence[int] | None = None,
    most: int = BATCH,
) -> Round:
    """Send rows, those of `numbers` or any, at most one of each job and each key."""
    table = tables.outbox
    with connect(engine) as connection:
        if numbers is None and engine.dialect.name == "sqlite":
            # To remove nothing would still take the only lock for writing.
            if connection.scalar(sa.select(table.c.id).limit(1)) is None:
                return Round()
            connection.rollback()
        found = [Claimed.read(row) for row in _claim(connection, table, numbers, most)]
        if not found:
            return Round()

        def put_back(one: Claimed, fared: Fared) -> None:
            retry_us = None if fared.pause_us is None else now_us() + fared.pause_us
            values = {"tries": fared.tries, "error": fared.error, "retry_us": retry_us}
            connection.execute(sa.insert(table).values(one.values() | values))

        def is_pending(ids: list[str]) -> bool:
            pending = sa.select(table.c.id).where(table.c.job_id.in_(ids)).limit(1)
            return connection.scalar(pending) is not None

        done, has_changed = send_claimed(sender, found, put_back, is_pending)
        if has_changed:
            connection.commit()
    return done


def _claim(
    connection: sa.Connection, table: sa.Table, numbers: Sequence[int] | None, most: int
) -> Sequence[Any]:
    """Remove rows, which locks them."""
    dialect = connection.dialect
    values: dict[str, Any] = {"most": most}
    if numbers is not None:
        values["numbers"] = numbers
    if dialect.name != "mariadb":
        return connection.execute(claim(table, dialect, numbers is not None), values).all()
    # InnoDB locks rows as they are now, but looks for earlier ones as they were at the start of the
    # statement. So a second statement looks for earlier rows after the lock.
    locked = connection.scalars(choose(table, dialect, numbers is not None), values).all()
    if not locked:
        return ()
    found = connection.execute(first_of(table, dialect), {"numbers": locked}).all()
    connection.execute(sa.delete(table).where(table.c.id.in_([row.id for row in found])))
    return found
