"""The tables of an outbox, and the statements on them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from bide.contrib.outbox import rounds
from bide.contrib.outbox.once import LONGEST_STEP
from bide.errors import UsageError

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

_OLDEST_MARIADB: Final = (10, 6)
"""The first version that has SKIP LOCKED."""


class now_us(FunctionElement[int]):
    """The present moment by the clock of the database, in microseconds since 1970."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_us)
def _compiled(element: Any, compiler: Any, **options: Any) -> str:
    return rounds.NOW_US[compiler.dialect.name]


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
    if dialect.name not in rounds.NOW_US:
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


@lru_cache(maxsize=64)
def claim(table: sa.Table, dialect: sa.Dialect, of_numbers: bool) -> sa.Executable:
    """Return the statement that claims rows: see `bide.contrib.outbox.rounds.claim`.

    Its parameters are `most`, and, with `of_numbers`, `numbers`.
    """
    numbers = ":numbers" if of_numbers else None
    return _text(rounds.claim(_name(table, dialect), dialect.name, ":most", numbers), of_numbers)


@lru_cache(maxsize=64)
def choose(table: sa.Table, dialect: sa.Dialect, of_numbers: bool) -> sa.Executable:
    """Return the statement that locks rows to send on MariaDB, and returns their numbers.

    It may miss an earlier row that was committed meanwhile, so look again with `first_of`.
    """
    numbers = ":numbers" if of_numbers else None
    chosen = rounds.choose(_name(table, dialect), dialect.name, ":most", numbers)
    return _text(f"{chosen} FOR UPDATE SKIP LOCKED", of_numbers)


@lru_cache(maxsize=64)
def first_of(table: sa.Table, dialect: sa.Dialect) -> sa.Executable:
    """Return the statement that reads the rows of the parameter `numbers` that follow no other."""
    return _text(rounds.first_of(_name(table, dialect), dialect.name, ":numbers"), True)


def _text(statement: str, of_numbers: bool) -> sa.Executable:
    if not of_numbers:
        return sa.text(statement)
    numbers: sa.BindParameter[int] = sa.bindparam("numbers", expanding=True)
    return sa.text(statement).bindparams(numbers)


def _name(table: sa.Table, dialect: sa.Dialect) -> str:
    return dialect.identifier_preparer.format_table(table)


def sweep(tables: Tables, keep_us: int) -> sa.Delete:
    """Return the statement that removes rows of `once` that are older.

    While the outbox has a row of the job, the job may come again, so its row stays.
    """
    done, rows = tables.done, tables.outbox
    old = done.alias("old")
    pending = sa.exists().where(rows.c.job_id == old.c.job_id, rows.c.queue == old.c.queue)
    is_old = old.c.done_us < now_us() - keep_us
    chosen = sa.select(*_of(old)).where(is_old, ~pending).limit(rounds.SWEPT).subquery("chosen")
    # In a subselect of its own, as MariaDB has no LIMIT directly in IN.
    return sa.delete(done).where(sa.tuple_(*_of(done)).in_(sa.select(*_of(chosen))))


def _of(done: Any) -> list[sa.Column[Any]]:
    return [done.c.queue, done.c.job_id, done.c.step]
