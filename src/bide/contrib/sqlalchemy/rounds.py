"""Rounds: claim rows, send them, and commit what became of them.

The fast path and the relay do the same. The rows are removed first, which locks them. So no other
sender has them, and if this process dies, its transaction is rolled back and the rows are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from bide.contrib.outbox.relay import Round
from bide.contrib.outbox.rows import BATCH
from bide.contrib.outbox.sending import Sender, is_final, waits_for_parent
from bide.contrib.sqlalchemy.tables import (
    KEPT,
    Tables,
    check_dialect,
    choose,
    claim,
    first_of,
    now_us,
    read_written,
)
from bide.errors import BideError, UsageError
from bide.logs import Log

log = Log("bide.outbox")

_FIRST_PAUSE_US, _LONGEST_PAUSE_US = 1_000_000, 60_000_000
"""Before a row is tried again that could not be sent: the first, and the longest after doubling."""

_LONGEST_ERROR: Final = 1000


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
        found = _claimed(connection, table, numbers, most)
        if not found:
            return Round()
        outcome = sender.send([read_written(row) for row in found])
        if len(outcome.errors) == len(found) and outcome.down is not None:
            return Round(len(found), 0, outcome.down)  # a rollback puts the rows back
        for row in found:
            if (error := outcome.errors.get(row.id)) is not None:
                kept = {name: getattr(row, name) for name in KEPT}
                _put_back(connection, table, kept, error)
        connection.commit()
    return Round(len(found), len(found) - len(outcome.errors), outcome.down)


def _claimed(
    connection: sa.Connection, table: sa.Table, numbers: Sequence[int] | None, most: int
) -> Sequence[Any]:
    """Remove rows, which locks them."""
    values: dict[str, Any] = {"most": most}
    if numbers is not None:
        values["numbers"] = numbers
    if connection.dialect.name != "mariadb":
        statement = claim(table, connection.dialect.name, numbers is not None)
        return connection.execute(statement, values).all()
    # InnoDB locks rows as they are now, but looks for earlier ones as they were at the start of the
    # statement. So a second statement looks for earlier rows after the lock.
    locked = connection.scalars(choose(table, numbers is not None), values).all()
    if not locked:
        return ()
    found = connection.execute(first_of(table), {"numbers": locked}).all()
    gone = sa.delete(table).where(table.c.id.in_([row.id for row in found]))
    connection.execute(gone)
    return found


def _put_back(
    connection: sa.Connection, table: sa.Table, values: dict[str, Any], error: BideError
) -> None:
    """Write a row again that was not sent, under its number."""
    parents = values["parents"].split()
    final = is_final(error)
    if final and waits_for_parent(error):
        pending = sa.select(table.c.id).where(table.c.job_id.in_(parents)).limit(1)
        final = connection.scalar(pending) is None
    tries = values["tries"]
    pause_us = min(_FIRST_PAUSE_US << min(tries, 10), _LONGEST_PAUSE_US)
    values |= {
        "tries": tries + 1,
        "error": f"{type(error).__name__}: {error}"[:_LONGEST_ERROR],
        "retry_us": None if final else now_us() + pause_us,
    }
    connection.execute(sa.insert(table).values(values))
    if final:
        log.error(
            "the outbox keeps row %d, %s of the job %s in %s, which cannot be sent: %s",
            *(values["id"], values["verb"], values["job_id"], values["queue"], error),
        )
