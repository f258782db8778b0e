"""The tables of an outbox, and the statements on them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement, FunctionElement

from bide.contrib.outbox.rows import Row
from bide.contrib.outbox.sending import Written
from bide.errors import UsageError

CHANNEL: Final = "bide_outbox"
"""The channel of PostgreSQL that wakes relays."""

_NAME: Final = sa.String(128)
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite counts only what it calls an integer."""

LONGEST_STEP: Final = 64
"""Characters of a step of `once`."""

DIALECTS: Final = ("postgresql", "sqlite")


class now_us(FunctionElement[int]):
    """The present moment by the clock of the database, in microseconds since 1970."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_us, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


@compiles(now_us, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


class Tables(NamedTuple):
    """The tables of an outbox."""

    outbox: sa.Table
    done: sa.Table


def tables_of(metadata: sa.MetaData) -> Tables:
    """Define the tables in `metadata`, unless it has them."""
    outbox, done = "bide_outbox", "bide_done"
    if (known := metadata.tables.get(_key(metadata, outbox))) is not None:
        return Tables(known, metadata.tables[_key(metadata, done)])
    rows = sa.Table(
        outbox,
        metadata,
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("prefix", _NAME, nullable=False),
        sa.Column("queue", _NAME, nullable=False),
        sa.Column("verb", sa.String(16), nullable=False),
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("dedup", sa.String(64)),
        sa.Column("due", sa.String(20), nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("durability", sa.String(8), nullable=False),
        sa.Column("constraints", sa.Text, nullable=False),
        sa.Column("parents", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("written_us", sa.BigInteger, nullable=False, default=now_us()),
        sa.Column("tries", sa.Integer, nullable=False, default=0),
        sa.Column("retry_us", sa.BigInteger, default=0),
        sa.Column("error", sa.Text),
        sqlite_autoincrement=True,
    )
    sa.Index("ix_bide_outbox_job", rows.c.job_id)
    has_key = rows.c.dedup.is_not(None)
    sa.Index("ix_bide_outbox_dedup", rows.c.dedup, postgresql_where=has_key, sqlite_where=has_key)
    finished = sa.Table(
        done,
        metadata,
        sa.Column("queue", _NAME, primary_key=True),
        sa.Column("job_id", _NAME, primary_key=True),
        sa.Column("step", sa.String(LONGEST_STEP), primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("done_us", sa.BigInteger, nullable=False, default=now_us()),
    )
    sa.Index("ix_bide_done_at", finished.c.done_us)
    return Tables(rows, finished)


def _key(metadata: sa.MetaData, name: str) -> str:
    return f"{metadata.schema}.{name}" if metadata.schema else name


def check_dialect(dialect: sa.Dialect) -> None:
    """Raise UsageError for a database that has not been tested."""
    if dialect.name not in DIALECTS:
        raise UsageError(
            f"The outbox supports PostgreSQL and SQLite, not {dialect.name}; keep its tables in "
            "one of these."
        )


KEPT: Final = ("id", "written_us", "tries", *Row._fields)
"""The columns of a row that is put back."""


@lru_cache(maxsize=64)
def claim(table: sa.Table, database: str, of_numbers: bool) -> sa.Executable:
    """Return the statement that removes rows to send, and returns them; a rollback restores them.

    The transaction has the locks of these rows until it ends, so no other sender has them. A row
    that others send now is skipped. A row that follows another of its job or key is not taken. The
    statement has the parameter `most`, the maximum number of rows.

    Args:
        table: the outbox.
        database: the name of its dialect.
        of_numbers: whether only the rows of the parameter `numbers` are taken.
    """
    row, earlier = table.alias("row"), table.alias("earlier")
    before = sa.and_(
        earlier.c.id < row.c.id,
        earlier.c.queue == row.c.queue,
        earlier.c.prefix == row.c.prefix,
    )
    follows_job = sa.exists().where(earlier.c.job_id == row.c.job_id, before)
    follows_key = sa.exists().where(earlier.c.dedup == row.c.dedup, before)
    which: list[ColumnElement[bool]] = [
        row.c.retry_us <= now_us(),
        ~follows_job,
        sa.or_(row.c.dedup.is_(None), ~follows_key),
    ]
    if of_numbers:
        which.append(row.c.id.in_(sa.bindparam("numbers", expanding=True)))
    most = sa.bindparam("most", type_=sa.Integer)
    chosen = sa.select(row.c.id).where(*which).order_by(row.c.id).limit(most)
    if database == "postgresql":
        # In a WITH of its own, as a subselect with LIMIT may be evaluated more than once.
        locked = chosen.with_for_update(skip_locked=True).cte("chosen")
        chosen = sa.select(locked.c.id)
    elapsed = (now_us() - table.c.written_us).label("elapsed_us")
    columns = [table.c[name] for name in KEPT]
    return sa.delete(table).where(table.c.id.in_(chosen)).returning(*columns, elapsed)


def read_written(found: Any) -> Written:
    """Convert a claimed row."""
    values = [getattr(found, name) for name in Row._fields]
    return Written(found.id, found.elapsed_us, Row(*values))


_SWEPT: Final = 1_000
"""Rows that one statement removes at most."""


def sweep(tables: Tables, keep_us: int) -> sa.Delete:
    """Return the statement that removes rows of `once` that are older.

    While the outbox has a row of the job, the job may come again, so its row stays.
    """
    done, rows = tables.done, tables.outbox
    old = done.alias("old")
    pending = sa.exists().where(rows.c.job_id == old.c.job_id, rows.c.queue == old.c.queue)
    is_old = old.c.done_us < now_us() - keep_us
    chosen = sa.select(*_of(old)).where(is_old, ~pending).limit(_SWEPT)
    return sa.delete(done).where(sa.tuple_(*_of(done)).in_(chosen))


def _of(done: Any) -> list[sa.Column[Any]]:
    return [done.c.queue, done.c.job_id, done.c.step]
