"""The tables of an outbox, and the statements on them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
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

_TEXT: Final = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_BYTES: Final = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
"""MariaDB's plain types hold 64 KB."""

_ON_MARIADB: Final[dict[str, Any]] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_nopad_bin"),  # ids that differ in case or in spaces differ
    )
}

LONGEST_STEP: Final = 64
"""Characters of a step of `once`."""

DIALECTS: Final = ("postgresql", "sqlite", "mariadb")

_OLDEST_MARIADB: Final = (10, 6)
"""The first version that has SKIP LOCKED."""


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


@compiles(now_us, "mariadb")
def _on_mariadb(element: Any, compiler: Any, **options: Any) -> str:
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


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
        sa.Column("constraints", _TEXT, nullable=False),
        sa.Column("parents", _TEXT, nullable=False),
        sa.Column("body", _BYTES, nullable=False),
        sa.Column("written_us", sa.BigInteger, nullable=False, default=now_us()),
        sa.Column("tries", sa.Integer, nullable=False, default=0),
        sa.Column("retry_us", sa.BigInteger, default=0),
        sa.Column("error", _TEXT),
        sqlite_autoincrement=True,
        **_ON_MARIADB,
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
        sa.Column("result", _BYTES),
        sa.Column("done_us", sa.BigInteger, nullable=False, default=now_us()),
        **_ON_MARIADB,
    )
    sa.Index("ix_bide_done_at", finished.c.done_us)
    event.listen(rows, "before_create", _before_create)
    return Tables(rows, finished)


def _before_create(table: sa.Table, connection: sa.Connection, **options: Any) -> None:
    check_dialect(connection.dialect)


def _key(metadata: sa.MetaData, name: str) -> str:
    return f"{metadata.schema}.{name}" if metadata.schema else name


def check_dialect(dialect: sa.Dialect) -> None:
    """Raise UsageError for a database that has not been tested."""
    if dialect.name == "mysql":
        raise UsageError(
            "The outbox supports MariaDB, not MySQL; if the server is MariaDB, write the engine's "
            "address with mariadb+ instead of mysql+."
        )
    if dialect.name not in DIALECTS:
        raise UsageError(
            f"The outbox supports PostgreSQL, MariaDB and SQLite, not {dialect.name}; keep its "
            "tables in one of these."
        )
    version = getattr(dialect, "server_version_info", None)  # None before the first connection
    if dialect.name == "mariadb" and version is not None and version[:2] < _OLDEST_MARIADB:
        raise UsageError(
            f"The outbox needs MariaDB 10.6 or later, not {'.'.join(map(str, version[:3]))}; "
            "upgrade the server."
        )


KEPT: Final = ("id", "written_us", "tries", *Row._fields)
"""The columns of a row that is put back."""


@lru_cache(maxsize=64)
def choose(table: sa.Table, of_numbers: bool) -> sa.Select[Any]:
    """Return the statement that locks rows to send on MariaDB, and returns their numbers.

    It may miss an earlier row that was committed meanwhile, so look again with `first_of`.
    """
    return _chosen(table, of_numbers).with_for_update(skip_locked=True)


@lru_cache(maxsize=64)
def first_of(table: sa.Table) -> sa.Select[Any]:
    """Return the statement that reads the rows of the parameter `numbers` that follow no other."""
    row, follows = _following(table)
    columns = [row.c[name] for name in KEPT]
    elapsed = (now_us() - row.c.written_us).label("elapsed_us")
    of_numbers = row.c.id.in_(sa.bindparam("numbers", expanding=True))
    return sa.select(*columns, elapsed).where(of_numbers, *follows).order_by(row.c.id)


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
    chosen = _chosen(table, of_numbers)
    if database == "postgresql":
        # In a WITH of its own, as a subselect with LIMIT may be evaluated more than once.
        locked = chosen.with_for_update(skip_locked=True).cte("chosen")
        chosen = sa.select(locked.c.id)
    elapsed = (now_us() - table.c.written_us).label("elapsed_us")
    columns = [table.c[name] for name in KEPT]
    return sa.delete(table).where(table.c.id.in_(chosen)).returning(*columns, elapsed)


def _chosen(table: sa.Table, of_numbers: bool) -> sa.Select[Any]:
    row, which = _following(table)
    which = [row.c.retry_us <= now_us(), *which]
    if of_numbers:
        which.append(row.c.id.in_(sa.bindparam("numbers", expanding=True)))
    most = sa.bindparam("most", type_=sa.Integer)
    return sa.select(row.c.id).where(*which).order_by(row.c.id).limit(most)


def _following(table: sa.Table) -> tuple[Any, list[ColumnElement[bool]]]:
    """Return an alias of the table, and the conditions that a row follows no other."""
    row, earlier = table.alias("row_"), table.alias("earlier")
    before = sa.and_(
        earlier.c.id < row.c.id,
        earlier.c.queue == row.c.queue,
        earlier.c.prefix == row.c.prefix,
    )
    follows_job = sa.exists().where(earlier.c.job_id == row.c.job_id, before)
    follows_key = sa.exists().where(earlier.c.dedup == row.c.dedup, before)
    return row, [~follows_job, sa.or_(row.c.dedup.is_(None), ~follows_key)]


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
    chosen = sa.select(*_of(old)).where(is_old, ~pending).limit(_SWEPT).subquery("chosen")
    # In a subselect of its own, as MariaDB has no LIMIT directly in IN.
    return sa.delete(done).where(sa.tuple_(*_of(done)).in_(sa.select(*_of(chosen))))


def _of(done: Any) -> list[sa.Column[Any]]:
    return [done.c.queue, done.c.job_id, done.c.step]
