"""Reading and repairing the rows of an outbox, for the command line, doctor and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from bide.contrib.sqlalchemy.rounds import connect
from bide.contrib.sqlalchemy.tables import now_us
from bide.model.durations import from_us
from bide.worker.outbox import OutboxRow, OutboxStats


def stats(table: sa.Table, engine: sa.Engine) -> OutboxStats:
    """Count the rows."""
    is_refused = table.c.retry_us.is_(None)
    oldest = sa.func.min(sa.case((~is_refused, table.c.written_us)))
    counts = sa.select(
        sa.func.count(), sa.func.count(sa.case((is_refused, 1))), oldest, now_us()
    ).select_from(table)
    with connect(engine) as connection:
        rows, refused, oldest_us, at_us = connection.execute(counts).one()
    age_us = 0 if oldest_us is None else max(0, at_us - oldest_us)
    return OutboxStats(rows - refused, refused, age_us / 1e6)


def list_rows(table: sa.Table, engine: sa.Engine, limit: int, refused: bool) -> list[OutboxRow]:
    """Return the oldest rows."""
    chosen = sa.select(table).order_by(table.c.id).limit(limit)
    if refused:
        chosen = chosen.where(table.c.retry_us.is_(None))
    with connect(engine) as connection:
        return [_shown(row) for row in connection.execute(chosen)]


def retry_rows(table: sa.Table, engine: sa.Engine, numbers: Sequence[int] | None) -> int:
    """Have refused rows sent again."""
    change = sa.update(table).where(table.c.retry_us.is_(None)).values(retry_us=0)
    return _changed(engine, change if numbers is None else change.where(table.c.id.in_(numbers)))


def delete_rows(table: sa.Table, engine: sa.Engine, numbers: Sequence[int]) -> int:
    """Remove rows without sending them."""
    return _changed(engine, sa.delete(table).where(table.c.id.in_(numbers)))


def _changed(engine: sa.Engine, change: sa.Update | sa.Delete) -> int:
    with connect(engine) as connection:
        done = connection.execute(change)
        connection.commit()
        return done.rowcount


def _shown(row: Any) -> OutboxRow:
    return OutboxRow(
        row.id,
        row.queue,
        row.verb,
        row.job_id,
        from_us(row.written_us),
        row.tries,
        row.retry_us is None,
        row.error,
    )
