"""The tables of an outbox, and the operations on them: rounds, `once`, the relay, and repairs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.util import await_only

from bide.contrib.outbox import sending, shown
from bide.contrib.outbox.rows import BATCH, LONGEST_STEP, OnceBase
from bide.contrib.outbox.sending import (
    CHANNEL,
    NOW_US,
    SWEPT,
    WITHOUT_JIT,
    ClaimedRow,
    Fared,
    RelayStore,
    Round,
    Sender,
    relay,
    send_claimed,
    wait_for_notify,
)
from bide.errors import PayloadError, UsageError
from bide.worker.relay import OutboxRow, OutboxStats

if TYPE_CHECKING:
    from bide.contrib.sqlalchemy.outbox import Outbox

Transaction = Session | sa.Connection

_NAME: Final = sa.String(128)
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite increments only columns of its type INTEGER."""

_TEXT: Final = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_BYTES: Final = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
"""MariaDB's default type holds 64 KB."""

_ON_MARIADB: Final[dict[str, Any]] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_nopad_bin"),  # ids that differ only in case or spaces are different
    )
}

_OLDEST_MARIADB: Final = (10, 6)
"""The first version with SKIP LOCKED."""


class now_us(FunctionElement[int]):
    """The present moment by the clock of the database, in microseconds since 1970."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_us)
def _compiled(element: Any, compiler: Any, **options: Any) -> str:
    return NOW_US[compiler.dialect.name]


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
    if dialect.name not in NOW_US:
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
def claim(
    table: sa.Table, dialect: sa.Dialect, of_numbers: bool, changes: bool = False
) -> sa.Executable:
    """Return the statement that claims rows: see `bide.contrib.outbox.sending.claim`.

    Its parameters are `most`, and, with `of_numbers`, `numbers`.
    """
    numbers = ":numbers" if of_numbers else None
    name = _name(table, dialect)
    return _text(sending.claim(name, dialect.name, ":most", numbers, changes=changes), of_numbers)


@lru_cache(maxsize=64)
def choose(
    table: sa.Table, dialect: sa.Dialect, of_numbers: bool, changes: bool = False
) -> sa.Executable:
    """Return the statement that locks rows to send on MariaDB, and returns their numbers.

    It may miss an earlier row that was committed meanwhile, so look again with `first_of`.
    """
    numbers = ":numbers" if of_numbers else None
    name = _name(table, dialect)
    chosen = sending.choose(name, dialect.name, ":most", numbers, changes=changes)
    return _text(f"{chosen} FOR UPDATE SKIP LOCKED", of_numbers)


@lru_cache(maxsize=64)
def first_of(table: sa.Table, dialect: sa.Dialect) -> sa.Executable:
    """Return the statement that reads the rows of the parameter `numbers` that follow no other."""
    return _text(sending.first_of(_name(table, dialect), dialect.name, ":numbers"), True)


def _text(statement: str, of_numbers: bool) -> sa.Executable:
    if not of_numbers:
        return sa.text(statement)
    numbers: sa.BindParameter[int] = sa.bindparam("numbers", expanding=True)
    return sa.text(statement).bindparams(numbers)


def _name(table: sa.Table, dialect: sa.Dialect) -> str:
    return dialect.identifier_preparer.format_table(table)


def sweep(tables: Tables, keep_us: int) -> sa.Delete:
    """Return the statement that removes rows of `once` that are older.

    While the outbox has a row of a job of this id, the job may come again, so its row stays.
    """
    done, rows = tables.done, tables.outbox
    old = done.alias("old")
    pending = sa.exists().where(rows.c.job_id == old.c.job_id)
    is_old = old.c.done_us < now_us() - keep_us
    chosen = sa.select(*_of(old)).where(is_old, ~pending).limit(SWEPT).subquery("chosen")
    # In a subselect of its own, as MariaDB has no LIMIT directly in IN.
    return sa.delete(done).where(sa.tuple_(*_of(done)).in_(sa.select(*_of(chosen))))


def _of(done: Any) -> list[sa.Column[Any]]:
    return [done.c.queue, done.c.job_id, done.c.step]


# -- rounds


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
    changes: bool = False,
) -> Round:
    """Send rows, those of `numbers` or any, at most one of each job and each key.

    With `changes`, none that add jobs.
    """
    table = tables.outbox
    with connect(engine) as connection:
        if numbers is None and engine.dialect.name == "sqlite":
            # Even a DELETE of no rows would take the only lock for writing.
            if connection.scalar(sa.select(table.c.id).limit(1)) is None:
                return Round()
            connection.rollback()
        found = [ClaimedRow.read(row) for row in _claim(connection, table, numbers, most, changes)]
        if not found:
            return Round()

        def put_back(one: ClaimedRow, fared: Fared) -> None:
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
    connection: sa.Connection,
    table: sa.Table,
    numbers: Sequence[int] | None,
    most: int,
    changes: bool,
) -> Sequence[Any]:
    """Remove rows, which locks them."""
    dialect = connection.dialect
    values: dict[str, Any] = {"most": most}
    if numbers is not None:
        values["numbers"] = numbers
    if dialect.name == "postgresql" and numbers is None:
        connection.exec_driver_sql(WITHOUT_JIT)
    if dialect.name != "mariadb":
        claiming = claim(table, dialect, numbers is not None, changes)
        return connection.execute(claiming, values).all()
    # InnoDB locks rows as they are now, but looks for earlier ones as they were at the start of the
    # statement. So a second statement looks for earlier rows after the lock.
    choosing = choose(table, dialect, numbers is not None, changes)
    locked = connection.scalars(choosing, values).all()
    if not locked:
        return ()
    found = connection.execute(first_of(table, dialect), {"numbers": locked}).all()
    connection.execute(sa.delete(table).where(table.c.id.in_([row.id for row in found])))
    return found


# -- once


_entered: Final[WeakKeyDictionary[sa.RootTransaction, set[tuple[str, ...]]]] = WeakKeyDictionary()
"""The blocks that each open transaction has entered as their first run."""


def check_transaction(connection: sa.Connection, row: str) -> None:
    """Raise UsageError if each statement commits by itself, as far as the library knows."""
    asks = getattr(connection, "_is_autocommit_isolation", None)
    if asks and asks():
        raise UsageError(
            f"The connection commits each statement by itself, so {row} would stay after a "
            "rollback; leave out isolation_level='AUTOCOMMIT' for this session."
        )


def check_schema(table: sa.Table, connection: sa.Connection) -> None:
    """Raise UsageError if the connection writes to another table than the relay reads."""
    moves = connection.get_execution_options().get("schema_translate_map") or {}
    if moves.get(table.schema, table.schema) != table.schema:
        raise UsageError(
            f"schema_translate_map gives this session another table {table.name} than the relay "
            "reads; give the outbox a MetaData of its own, with a schema that the map leaves "
            "alone: Outbox(MetaData(schema='public'), engine)."
        )


class Once(OnceBase):
    """A block whose effect on the database happens once for each job: the result of `once`.

    If the block raises, the job has not happened: roll back, as `session.begin()` does.
    """

    def __init__(self, done: sa.Table, session: Any, step: str) -> None:
        super().__init__(step)
        if hasattr(session, "registry"):  # a scoped session
            session = session()
        self._done: Final = done
        self._session: Final = session

    def __enter__(self) -> Self:
        """Check whether the job has happened; wait for another run that is about to commit.

        Raises:
            Fenced: a later run of this job has happened.
        """
        if not isinstance(self._session, Session | sa.Connection):
            raise UsageError("With an async session, write `async with outbox.once(session)`.")
        self._begin(self._session)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, in the same transaction."""
        self._end(error is None, self._session)

    async def __aenter__(self) -> Self:
        """Do as `__enter__`, with an async session."""
        if isinstance(self._session, Session | sa.Connection):
            raise UsageError("With a session that blocks, write `with outbox.once(session)`.")
        await self._session.run_sync(self._begin)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, in the same transaction."""
        await self._session.run_sync(partial(self._end, error is None))

    def _begin(self, session: Transaction) -> None:
        done, values = self._done, {**self._of, "token": self._token}
        if isinstance(session, Session):
            session = session.connection(bind_arguments={"clause": done})
        check_dialect(session.dialect)
        check_transaction(session, "the row of once()")
        stored_row = sa.select(done.c.token, done.c.result).where(self._is_mine)
        if session.dialect.name == "mariadb":
            try:
                session.execute(sa.insert(done).values(values))
                self.first = True
            except IntegrityError:  # InnoDB undoes only the statement
                self.first = False
            stored_row = stored_row.with_for_update(read=True)  # not as of the transaction's start
        else:
            make = postgresql.insert if session.dialect.name == "postgresql" else sqlite.insert
            insert = make(done).values(values).on_conflict_do_nothing().returning(done.c.token)
            self.first = session.execute(insert).first() is not None
        key, transaction = tuple(self._of.values()), session.get_transaction()
        entered = _entered.setdefault(transaction, set()) if transaction else set()
        if self.first:
            entered.add(key)
            return
        if key in entered:
            raise UsageError(
                f"This transaction has entered once() before with the step {self._of['step']!r}; "
                "give each block a step of its own, as in once(session, 'charge')."
            )
        stored = session.execute(stored_row).one()
        self._repeat(stored.token, stored.result)

    def _end(self, succeeded: bool, session: Transaction) -> None:
        if not self.first:
            return
        if not succeeded:
            self._forget(session)
        elif self.result is not None:
            try:
                packed = self._packed()
            except PayloadError:
                self._forget(session)
                raise
            session.execute(sa.update(self._done).where(self._is_mine).values(result=packed))

    @property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        return sa.and_(*(self._done.c[name] == value for name, value in self._of.items()))

    def _forget(self, session: Transaction) -> None:
        """Remove the row, in case the caller catches the error and commits what there is."""
        if isinstance(session, Session) and not session.is_active:
            return  # a flush has failed, and only a rollback is possible
        try:
            session.execute(sa.delete(self._done).where(self._is_mine))
        except DBAPIError:  # the transaction has failed, and cannot commit
            return


# -- the relay


class _Store(RelayStore):
    """The common part of the blocking and the awaited store."""

    def __init__(self, outbox: Outbox, engine: sa.Engine, sender: Sender) -> None:
        check_dialect(engine.dialect)
        self._outbox: Final = outbox
        self._engine: Final = engine
        self._sender: Final = sender
        self._listening: sa.Connection | None = None

    def run(self, stopped: Callable[[], bool], burst: bool) -> int:
        """Run the relay."""
        try:
            return relay(self, stopped, burst)
        finally:
            self._sender.close()
            self._drop_listener()

    def round(self, changes: bool = False) -> Round:
        """Send up to `rows.BATCH` rows; with `changes`, none that add jobs."""
        if self._engine.dialect.name == "postgresql" and self._listening is None:
            # Before the read, so that no later row is missed.
            self._listen()
        return round_of(self._outbox.tables, self._engine, self._sender, changes=changes)

    def sweep(self) -> int:
        """Remove rows of `once` that are older than `keep`."""
        swept = 0
        while True:
            with connect(self._engine) as connection:
                found = connection.execute(sweep(self._outbox.tables, self._outbox.keep_us))
                connection.commit()
            if not found.rowcount:
                return swept
            swept += found.rowcount

    def _listen(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._listening = connection
        try:
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            self._hear(connection.connection.driver_connection)
        except BaseException:
            self._drop_listener()
            raise

    def _hear(self, driver: Any) -> None:
        """Set up what a driver needs to hear notifications."""

    def _drop_listener(self) -> None:
        """Close the connection that listens; the next round opens a new one."""
        if self._listening is not None:
            self._listening.invalidate()  # so that the pool returns no listening connection
            self._listening.close()
            self._listening = None

    @property
    def _driver(self) -> Any:
        assert self._listening is not None
        return self._listening.connection.driver_connection


class BlockingStore(_Store):
    """The store of a relay in a thread."""

    def __init__(
        self, outbox: Outbox, engine: sa.Engine, sender: Sender, pause: Callable[[float], bool]
    ) -> None:
        """Set up; `pause` waits so long, and returns whether the relay is stopped."""
        super().__init__(outbox, engine, sender)
        self._pause: Final = pause

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        if self._listening is None:
            self._pause(seconds)
            return
        until = time.monotonic() + seconds
        try:
            wait_for_notify(self._driver, seconds, self._pause)
        except Exception:  # the database is down
            self._drop_listener()
            self._pause(max(0.0, until - time.monotonic()))


class AwaitedStore(_Store):
    """The store of a relay in an event loop; its methods run in a greenlet."""

    def __init__(self, outbox: Outbox, engine: sa.Engine, sender: Sender) -> None:
        super().__init__(outbox, engine, sender)
        self._written: Final = asyncio.Event()

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        driver = None if self._listening is None else self._driver
        if hasattr(driver, "notifies"):
            try:
                return await_only(_wait_for_notify(driver, seconds))
            except Exception:  # the database is down
                self._drop_listener()
        elif driver is not None and driver.is_closed():
            self._drop_listener()
        return await_only(self._wait(seconds))

    def _hear(self, driver: Any) -> None:
        if hasattr(driver, "add_listener"):  # asyncpg
            await_only(driver.add_listener(CHANNEL, lambda *_: self._written.set()))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._written.wait()
        except TimeoutError:
            return
        self._written.clear()


async def _wait_for_notify(driver: Any, seconds: float) -> None:
    """Return when a connection of psycopg has a notification, or the time is over."""
    async for _ in driver.notifies(timeout=seconds, stop_after=1):
        pass


# -- looking and repairing


class TableRows:
    """Reads and repairs the rows that have not been sent."""

    def __init__(self, table: sa.Table, engine: sa.Engine) -> None:
        self._table: Final = table
        self._engine: Final = engine
        self._is_refused: Final = table.c.retry_us.is_(None)

    def stats(self) -> OutboxStats:
        """Count the rows."""
        oldest = sa.func.min(sa.case((~self._is_refused, self._table.c.written_us)))
        refused_ones = sa.func.count(sa.case((self._is_refused, 1)))
        counts = sa.select(sa.func.count(), refused_ones, oldest, now_us())
        with connect(self._engine) as connection:
            found = connection.execute(counts.select_from(self._table))
            rows, refused, oldest_us, at_us = found.one()
        age_us = 0 if oldest_us is None else max(0, at_us - oldest_us)
        return OutboxStats(rows - refused, refused, age_us / 1e6)

    def list(self, limit: int, refused: bool) -> list[OutboxRow]:
        """Return the oldest rows; with `refused`, only those."""
        chosen = sa.select(self._table).order_by(self._table.c.id).limit(limit)
        if refused:
            chosen = chosen.where(self._is_refused)
        with connect(self._engine) as connection:
            return [shown(row) for row in connection.execute(chosen)]

    def retry(self, numbers: Sequence[int] | None) -> int:
        """Have refused rows sent again, all or some; return their number."""
        change = sa.update(self._table).where(self._is_refused).values(retry_us=0)
        if numbers is not None:
            change = change.where(self._table.c.id.in_(numbers))
        return self._change(change)

    def delete(self, numbers: Sequence[int]) -> int:
        """Remove rows without sending them; return their number."""
        return self._change(sa.delete(self._table).where(self._table.c.id.in_(numbers)))

    def _change(self, change: sa.Update | sa.Delete) -> int:
        with connect(self._engine) as connection:
            done = connection.execute(change)
            connection.commit()
            return done.rowcount
