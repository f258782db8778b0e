"""The class `Outbox`: changes of jobs that are written in the caller's transaction.

After the commit, the process that wrote the rows sends them at once (the fast path). Rows that are
left, because the process died or the server was down, are sent by a relay.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, Unpack, overload

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session
from sqlalchemy.util import await_only, greenlet_spawn

from bide.contrib.outbox import OutboxBase, UnsentRows
from bide.contrib.outbox.rows import (
    AnyQueue,
    ChangedQueue,
    ChangeRow,
    batch_row,
    change_row,
    check_server,
    enqueue_rows,
    push_rows,
    task_row,
)
from bide.contrib.outbox.sending import CHANNEL, Sender
from bide.contrib.sqlalchemy import tables
from bide.contrib.sqlalchemy.tables import (
    AwaitedStore,
    BlockingStore,
    Once,
    TableRows,
    check_dialect,
    check_schema,
    check_transaction,
    tables_of,
)
from bide.errors import UsageError
from bide.model.durations import Duration
from bide.model.options import Durability, Options
from bide.protocol.commands.enqueue import Prepared
from bide.queue._async.delay import AsyncDelayQueue
from bide.queue._sync.delay import DelayQueue
from bide.queue.core import TaskCall

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
    )

    Awaited: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection
    """Sessions and connections of asynchronous code: the results of the methods are awaited."""

P = ParamSpec("P")
T = TypeVar("T")

Blocking = Session | scoped_session[Any] | sa.Connection
"""Sessions and connections of blocking code, through which rows are written."""


class Outbox(OutboxBase):
    """An outbox in your database: jobs change if, and only if, your transaction commits.

    Give each method the session (or connection) of the transaction. With an `AsyncSession` or an
    `AsyncConnection`, await the result.
    """

    def __init__(
        self,
        metadata: sa.MetaData,
        engine: sa.Engine | AsyncEngine | None = None,
        *,
        url: str | None = None,
        fast: bool = True,
        keep: Duration = "30d",
    ) -> None:
        """Define the tables `bide_outbox` and `bide_done` in `metadata`; create them as your own.

        Args:
            metadata: that of your tables, so that Alembic sees these too.
            engine: of your database, for the relay; not needed to write rows.
            url: the server of the queues, as for `Queue`; by default `$BIDE_URL` and so on.
            fast: whether the process that commits sends its rows at once. Otherwise a relay sends
                them all.
            keep: how long `once` remembers a job. Longer than any job may come again: its retries,
                and the retention within which an operator retries it.

        Raises:
            UsageError: an argument is invalid.
        """
        if not isinstance(metadata, sa.MetaData):
            raise UsageError(
                "Outbox needs the MetaData of your tables, such as Base.metadata, not "
                f"{metadata!r}."
            )
        if not (engine is None or isinstance(engine, sa.Engine) or hasattr(engine, "sync_engine")):
            raise UsageError(
                "Outbox needs the engine of your database, as create_engine(...) returned it, not "
                f"{engine!r}."
            )
        super().__init__(url, fast, keep)
        self.engine = engine
        self.tables: Final = tables_of(metadata)
        """The tables of the outbox."""
        self._blocking = Sender(url)
        self._awaited = Sender(url, await_only)
        self._insert_one: Final = sa.insert(self.tables.outbox)

    def __repr__(self) -> str:
        return f"Outbox({self.tables.outbox.key!r})"

    # -- writing

    @overload
    def enqueue(
        self, session: Blocking, task: TaskCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs
    ) -> str: ...
    @overload
    def enqueue(
        self, session: Awaited, task: TaskCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[str]: ...
    def enqueue(
        self, session: Any, task: TaskCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Enqueue a job if the transaction commits; return its id.

        The delay counts from this call, by the clock of the database.

        Args:
            session: of the transaction.
            task: a task, with its options: `task.options(delay="30m")`, `task.later("30m")`.
            args: positional arguments of the task.
            kwargs: keyword arguments of the task.

        Raises:
            UsageError: `task` is not a task, an option is invalid, or the arguments do not fit.
            PayloadError: the serializer cannot encode the arguments, or they take more than 1 MB.
        """
        if isinstance(session, TaskCall):
            raise UsageError(
                "The session of your transaction is missing: outbox.enqueue(session, task, ...)."
            )
        row = task_row(task, args, kwargs)
        return self._write(session, task.queue, [row], row.job_id)

    @overload
    def enqueue_many(
        self, session: Blocking, queue: AnyQueue, jobs: Iterable[Prepared]
    ) -> list[str]: ...
    @overload
    def enqueue_many(
        self, session: Awaited, queue: AnyQueue, jobs: Iterable[Prepared]
    ) -> Awaitable[list[str]]: ...
    def enqueue_many(self, session: Any, queue: AnyQueue, jobs: Iterable[Prepared]) -> Any:
        """Enqueue jobs that `prepare` returned, if the transaction commits; return their ids.

        Raises:
            UsageError: an argument is invalid.
        """
        rows = enqueue_rows(queue, jobs)
        return self._write(session, queue, rows, [row.job_id for row in rows])

    @overload
    def batch(
        self,
        session: Blocking,
        queue: AnyQueue,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> str: ...
    @overload
    def batch(
        self,
        session: Awaited,
        queue: AnyQueue,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> Awaitable[str]: ...
    def batch(
        self,
        session: Any,
        queue: AnyQueue,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> Any:
        """Add an item to a batch if the transaction commits; arguments as for `Queue.batch`.

        Only `Queue.batch` has `close=`.

        Returns:
            The id of the call. The job that holds the item may have another id.

        Raises:
            UsageError: an argument is invalid.
            PayloadError: the serializer cannot encode the item.
        """
        row = batch_row(queue, key, item, into, (quiet, max_wait, max_size), options)
        return self._write(session, queue, [row], row.job_id)

    @overload
    def push(
        self,
        session: Blocking,
        delay_queue: DelayQueue | AsyncDelayQueue,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> str: ...
    @overload
    def push(
        self,
        session: Awaited,
        delay_queue: DelayQueue | AsyncDelayQueue,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> Awaitable[str]: ...
    def push(
        self,
        session: Any,
        delay_queue: DelayQueue | AsyncDelayQueue,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> Any:
        """Push an item of data if the transaction commits; return its id.

        Arguments and errors as for `DelayQueue.push`.
        """
        (row,) = push_rows(delay_queue, data, delay, at, id, durability)
        return self._write(session, delay_queue.queue, [row], row.job_id)

    @overload
    def cancel(
        self, session: Blocking, queue: ChangedQueue, id: str, running: bool = True
    ) -> None: ...
    @overload
    def cancel(
        self, session: Awaited, queue: ChangedQueue, id: str, running: bool = True
    ) -> Awaitable[None]: ...
    def cancel(self, session: Any, queue: ChangedQueue, id: str, running: bool = True) -> Any:
        """Cancel a job if the transaction commits; arguments as for `Queue.cancel`.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: an argument is invalid.
        """
        row = change_row(queue, "cancel" if running else "cancel-waiting", id)
        return self._write(session, queue, [row], None)

    @overload
    def reschedule(
        self,
        session: Blocking,
        queue: ChangedQueue,
        id: str,
        delay: Duration | None = None,
        at: datetime | None = None,
    ) -> None: ...
    @overload
    def reschedule(
        self,
        session: Awaited,
        queue: ChangedQueue,
        id: str,
        delay: Duration | None = None,
        at: datetime | None = None,
    ) -> Awaitable[None]: ...
    def reschedule(
        self,
        session: Any,
        queue: ChangedQueue,
        id: str,
        delay: Duration | None = None,
        at: datetime | None = None,
    ) -> Any:
        """Give a job another due time if the transaction commits; a delay counts from this call.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: an argument is invalid.
        """
        row = change_row(queue, "reschedule", id, delay, at)
        return self._write(session, queue, [row], None)

    @overload
    def promote(self, session: Blocking, queue: ChangedQueue, id: str) -> None: ...
    @overload
    def promote(self, session: Awaited, queue: ChangedQueue, id: str) -> Awaitable[None]: ...
    def promote(self, session: Any, queue: ChangedQueue, id: str) -> Any:
        """Make a job due now if the transaction commits.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: an argument is invalid.
        """
        return self._write(session, queue, [change_row(queue, "promote", id)], None)

    # -- in jobs

    def once(self, session: Any, step: str = "") -> Once:
        """Return a block whose effect on the database happens once, however often the job runs.

            with outbox.once(session) as once:
                if once.first:
                    once.result = take_money(session, order_id)
            return once.result

        Use it inside the transaction of the effect; with an async session, `async with`.

        Args:
            session: of the transaction.
            step: a name for this block, if a job has several of them.

        Raises:
            UsageError: the caller does not run in a job, or an argument is invalid.
            Fenced: when the block is entered, a later run of the job has committed its effect.
            PayloadError: when the block ends, JSON cannot encode the result.
        """
        return Once(self.tables.done, session, step)

    # -- relaying

    def check_ready(self) -> None:
        """Raise UsageError if the outbox has no engine, or a database that is not supported."""
        check_dialect(self._its_engine().dialect)

    def _relay(self, burst: bool, stop: threading.Event) -> int:
        engine = self._its_engine()
        if not isinstance(engine, sa.Engine):
            return asyncio.run(self.arelay(burst=burst, stop=stop))
        store = BlockingStore(self, engine, Sender(self._given_url), stop.wait)
        return store.run(stop.is_set, burst)

    async def _relay_beside(self, burst: bool, stop: threading.Event) -> int:
        engine = self._its_engine()
        if isinstance(engine, sa.Engine):
            return await super()._relay_beside(burst, stop)
        sender = Sender(self._given_url, await_only)
        store = AwaitedStore(self, engine.sync_engine, sender)
        return await greenlet_spawn(store.run, stop.is_set, burst)

    def _its_engine(self) -> sa.Engine | AsyncEngine:
        if self.engine is None:
            raise UsageError(
                "The relay needs the engine of your database: Outbox(metadata, engine)."
            )
        return self.engine

    def _on_rows(self, call: Callable[[UnsentRows], T]) -> T:
        engine = self._its_engine()
        if isinstance(engine, sa.Engine):
            return call(TableRows(self.tables.outbox, engine))
        given = engine.sync_engine
        # Connections belong to an event loop, and this one ends. The pool of the application, whose
        # loop may run meanwhile, is left alone.
        apart = sa.Engine(given.pool.recreate(), given.dialect, given.url)

        async def run() -> T:
            try:
                return await greenlet_spawn(call, TableRows(self.tables.outbox, apart))
            finally:
                await greenlet_spawn(apart.dispose)

        return asyncio.run(run())

    def close(self) -> None:
        """Close the connections to the server; the next call opens new ones."""
        self._blocking.close()

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the server."""
        self.close()
        await greenlet_spawn(self._awaited.close)

    # -- inside

    def _write(
        self, session: Any, queue: ChangedQueue, rows: Sequence[ChangeRow], result: T
    ) -> T | Awaitable[T]:
        """Insert rows in the transaction; return the result, to be awaited if the session is."""
        check_server(queue, self._given_url)
        if hasattr(session, "registry"):  # a scoped session
            session = session()
        if isinstance(session, Session | sa.Connection):
            self._insert(rows, session)
            return result
        if not hasattr(session, "run_sync"):
            raise UsageError(
                f"The outbox needs the session or connection of your transaction, not {session!r}."
            )

        async def write() -> T:
            await session.run_sync(partial(self._insert, rows))
            return result

        return write()

    def _insert(self, rows: Sequence[ChangeRow], session: Session | sa.Connection) -> None:
        if not rows:
            return
        table = self.tables.outbox
        bind: sa.Engine | sa.Connection
        if isinstance(session, Session):
            bind = session.get_bind(clause=table)
            connection = session.connection(bind_arguments={"clause": table})
        else:
            bind = connection = session
        check_dialect(bind.dialect)
        check_transaction(connection, "the row of the outbox")
        check_schema(table, connection)
        numbers: Sequence[int]
        if len(rows) == 1:
            done = session.execute(self._insert_one, rows[0]._asdict())
            numbers = [done.inserted_primary_key[0]]  # type: ignore[attr-defined]
        else:
            insert = sa.insert(table).returning(table.c.id, sort_by_parameter_order=True)
            numbers = session.execute(insert, [row._asdict() for row in rows]).scalars().all()
        if self.fast and isinstance(session, Session) and isinstance(bind, sa.Engine):
            held = session.info.setdefault(_HELD, {})
            held.setdefault((self, bind), []).extend(numbers)
        elif bind.dialect.name == "postgresql":
            session.execute(_NOTIFY)

    def _send_now(self, engine: sa.Engine, numbers: list[int]) -> None:
        """The fast path: send the rows of a transaction that has committed."""
        sender = self._awaited if engine.dialect.is_async else self._blocking
        self._fast_path.send(partial(tables.round_of, self.tables, engine, sender), numbers)


_NOTIFY: Final = sa.select(sa.func.pg_notify(CHANNEL, ""))
_HELD: Final = "bide.outbox"
"""In `Session.info`: the numbers of the rows that the transaction has written."""
_COMMITTED: Final = "bide.outbox.committed"


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    if _HELD in session.info and not session.in_nested_transaction():
        session.info[_COMMITTED] = session.info.pop(_HELD)


@event.listens_for(Session, "after_transaction_end")
def _after_transaction(session: Session, transaction: SessionTransaction) -> None:
    """Send what was written, once the transaction has returned its connections."""
    if transaction.parent is not None:
        return
    session.info.pop(_HELD, None)  # a rollback
    for (outbox, engine), numbers in session.info.pop(_COMMITTED, {}).items():
        outbox._send_now(engine, numbers)
