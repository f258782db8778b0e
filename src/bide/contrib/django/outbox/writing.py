"""The class `Outbox`: changes of jobs that are written in a transaction of Django.

After the commit, the process that wrote the rows sends them at once (the fast path). Rows that are
left, because the process died or the server was down, are sent by a relay.

Models are looked up when they are used: this package is imported before Django has loaded them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, Unpack

import django
from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from bide.contrib.django.running import AtCommit
from bide.contrib.outbox import OutboxBase, UnsentRows, shown
from bide.contrib.outbox.rows import (
    BATCH,
    AnyQueue,
    ChangedQueue,
    ChangeRow,
    OnceBase,
    batch_row,
    change_row,
    check_server,
    enqueue_rows,
    push_rows,
    task_row,
)
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
    claim,
    relay,
    relay_in_thread,
    send_claimed,
    wait_for_notify,
)
from bide.errors import UsageError
from bide.model.durations import Duration
from bide.model.options import Durability, Options
from bide.protocol.commands.enqueue import Prepared
from bide.queue._async.delay import AsyncDelayQueue
from bide.queue._sync.delay import DelayQueue
from bide.queue.core import TaskCall
from bide.worker.relay import OutboxRow, OutboxStats

P = ParamSpec("P")
T = TypeVar("T")

APP: Final = "bide.contrib.django.outbox"
"""The application with the outbox's tables; its variable `outbox` is the project's outbox."""

OUTBOX: Final = f"{APP}:outbox"
"""The project's outbox, as commands name it."""


class Outbox(OutboxBase):
    """An outbox in a database of Django: jobs change if, and only if, your transaction commits.

    Call its methods inside of `transaction.atomic()`. The application `bide.contrib.django.outbox`
    has its tables. The instance for the database `default` is
    `from bide.contrib.django.outbox import outbox`.
    """

    def __init__(
        self,
        using: str = DEFAULT_DB_ALIAS,
        *,
        url: str | None = None,
        fast: bool = True,
        keep: Duration = "30d",
    ) -> None:
        """Set up the outbox of a database; this opens no connection.

        Args:
            using: the alias of the database.
            url: the server of the queues; by default that in the `OPTIONS` of `TASKS`, otherwise
                `$BIDE_URL` and so on.
            fast: whether the process that commits sends its rows at once. Otherwise a relay sends
                them all.
            keep: how long `once` remembers a job. Longer than any job may come again: its retries,
                and the retention within which an operator retries it.

        Raises:
            UsageError: an argument is invalid.
        """
        if not isinstance(using, str):
            raise UsageError(f"using must be the alias of a database, not {using!r}.")
        super().__init__(url, fast, keep)
        self.using: Final = using
        self._senders: dict[str | None, Sender] = {}

    def __repr__(self) -> str:
        return f"Outbox({self.using!r})"

    # -- writing

    def enqueue(self, task: TaskCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue a job if the transaction commits; return its id.

        The delay counts from this call, by the clock of the database.

        Args:
            task: a task of a queue, with its options: `task.options(delay="30m")`.
            args: positional arguments of the task.
            kwargs: keyword arguments of the task.

        Raises:
            UsageError: there is no transaction, `task` is not a task, an option is invalid, or the
                arguments do not fit.
            PayloadError: the serializer cannot encode the arguments, or they take more than 1 MB.
        """
        given: Any = task
        if hasattr(given, "module_path") and hasattr(given, "get_backend"):
            raise UsageError(
                f'{given.module_path} is a task of django.tasks; set "outbox": True in the '
                "OPTIONS of its TASKS, and call its own enqueue()."
            )
        row = task_row(task, args, kwargs)
        self._write(task.queue, [row])
        return row.job_id

    def enqueue_many(self, queue: AnyQueue, jobs: Iterable[Prepared]) -> list[str]:
        """Enqueue jobs that `prepare` returned, if the transaction commits; return their ids.

        Raises:
            UsageError: there is no transaction, or an argument is invalid.
        """
        rows = enqueue_rows(queue, jobs)
        self._write(queue, rows)
        return [row.job_id for row in rows]

    def batch(
        self,
        queue: AnyQueue,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> str:
        """Add an item to a batch if the transaction commits; arguments as for `Queue.batch`.

        Only `Queue.batch` has `close=`.

        Returns:
            The id of the call. The job that holds the item may have another id.

        Raises:
            UsageError: there is no transaction, or an argument is invalid.
            PayloadError: the serializer cannot encode the item.
        """
        row = batch_row(queue, key, item, into, (quiet, max_wait, max_size), options)
        self._write(queue, [row])
        return row.job_id

    def push(
        self,
        delay_queue: DelayQueue | AsyncDelayQueue,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> str:
        """Push an item of data if the transaction commits; return its id.

        Arguments and errors as for `DelayQueue.push`.
        """
        (row,) = push_rows(delay_queue, data, delay, at, id, durability)
        self._write(delay_queue.queue, [row])
        return row.job_id

    def cancel(self, queue: ChangedQueue, id: str, running: bool = True) -> None:
        """Cancel a job if the transaction commits; arguments as for `Queue.cancel`.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: there is no transaction, or an argument is invalid.
        """
        self._write(queue, [change_row(queue, "cancel" if running else "cancel-waiting", id)])

    def reschedule(
        self,
        queue: ChangedQueue,
        id: str,
        delay: Duration | None = None,
        at: datetime | None = None,
    ) -> None:
        """Give a job another due time if the transaction commits; a delay counts from this call.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: there is no transaction, or an argument is invalid.
        """
        self._write(queue, [change_row(queue, "reschedule", id, delay, at)])

    def promote(self, queue: ChangedQueue, id: str) -> None:
        """Make a job due now if the transaction commits.

        It is not an error if the job runs or has ended by then.

        Raises:
            UsageError: there is no transaction, or an argument is invalid.
        """
        self._write(queue, [change_row(queue, "promote", id)])

    # -- in jobs

    def once(self, step: str = "") -> Once:
        """Return a transaction whose effect happens once, however often the job runs.

            with outbox.once() as once:
                if once.first:
                    once.result = take_money(order_id)
            return once.result

        It is a block of `transaction.atomic()` of the outbox's database.

        Args:
            step: a name for this block, if a job has several of them.

        Raises:
            UsageError: the caller does not run in a job, or an argument is invalid.
            Fenced: when the block is entered, a later run of the job has committed its effect.
            PayloadError: when the block ends, JSON cannot encode the result.
        """
        return Once(self.using, step)

    # -- relaying

    def check_ready(self, queue: AnyQueue | None = None) -> None:
        """Raise UsageError if the outbox has no tables, or a database that is not supported.

        Args:
            queue: if given, whether it is on the server of the outbox is checked too.
        """
        if not apps.ready:
            if not (settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE")):
                raise UsageError(
                    "The outbox needs the settings of your project; run the command as "
                    "`manage.py bide ...`, or set $DJANGO_SETTINGS_MODULE."
                )
            django.setup()
        checked_connection(self.using)
        if queue is not None:
            check_server(queue, self._url)

    def _relay(self, burst: bool, stop: threading.Event) -> int:
        if _is_in_transaction(connections[self.using]):
            raise UsageError(
                "A relay inside of a transaction would send rows before their commit; call "
                "relay() outside of transaction.atomic()."
            )
        return DjangoStore(self.using, Sender(self._url), self.keep_us, stop).run(burst)

    async def _relay_beside(self, burst: bool, stop: threading.Event) -> int:
        def call() -> int:
            try:
                return self.relay(burst=burst, stop=stop)
            finally:
                connections.close_all()  # the connections of this thread

        return await relay_in_thread(call, stop)

    def _on_rows(self, call: Callable[[UnsentRows], T]) -> T:
        connection = checked_connection(self.using)
        connection.close_if_unusable_or_obsolete()  # the thread may be the dashboard's
        try:
            return call(ModelRows(self.using))
        finally:
            connection.close_if_unusable_or_obsolete()

    def close(self) -> None:
        """Close the connections to the server; the next call opens new ones."""
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.close()

    # -- inside

    @property
    def _url(self) -> str | None:
        if self._given_url is not None:
            return self._given_url
        from bide.contrib.django.backend import common_url

        return common_url()

    def _write(self, queue: ChangedQueue, rows: Sequence[ChangeRow], alone: bool = False) -> None:
        """Insert rows in the transaction; with `alone`, without one in a transaction of its own."""
        connection = checked_connection(self.using)
        is_atomic = connection.in_atomic_block
        if not (is_atomic or alone or not connection.get_autocommit()):
            raise UsageError(
                "The outbox writes into your transaction, and there is none: call it inside of "
                f"`with transaction.atomic({_using(self.using)}):`, with the changes of your own "
                "rows."
            )
        if not rows:
            return
        url = self._url
        check_server(queue, url)
        numbers = insert(self.using, rows)
        if self.fast and (is_atomic or connection.get_autocommit()):
            _send_at_commit(self, connection, url, numbers)
        elif connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"NOTIFY {CHANNEL}")

    def _send_now(self, url: str | None, numbers: Sequence[int]) -> None:
        """The fast path: send the rows of a transaction that has committed."""
        sender = self._senders.get(url)
        if sender is None:
            sender = self._senders.setdefault(url, Sender(url))
        self._fast_path.send(partial(round_of, self.using, sender), numbers)


class ProjectOutbox(Outbox):
    """The outbox of `default`, whose relay also serves the databases that TASKS names."""

    def _relay(self, burst: bool, stop: threading.Event) -> int:
        if len(self._each()) == 1:
            return super()._relay(burst, stop)
        return asyncio.run(self._relay_beside(burst, stop))

    async def _relay_beside(self, burst: bool, stop: threading.Event) -> int:
        return sum(await asyncio.gather(*(one._relay_beside(burst, stop) for one in self._each())))

    def _each(self) -> list[Outbox]:
        from bide.contrib.django.backend import outbox_databases

        return [Outbox(using) for using in {self.using, *outbox_databases()}]


class _Written(AtCommit):
    """The fast path: at the commit, it sends rows that were written one after another."""

    def __init__(self, outbox: Outbox, url: str | None) -> None:
        super().__init__(self._send_now)
        self.outbox, self.url = outbox, url
        self.numbers: list[int] = []

    def _send_now(self) -> None:
        self.outbox._send_now(self.url, self.numbers)


def _send_at_commit(
    outbox: Outbox, connection: Any, url: str | None, numbers: Sequence[int]
) -> None:
    """Send rows after the commit, those of one savepoint together."""
    mine = [entry for entry in connection.run_on_commit if isinstance(entry[1], _Written)]
    if mine and mine[-1][0] == set(connection.savepoint_ids):
        last = mine[-1][1]
        if last.outbox is outbox and last.url == url:
            last.numbers += numbers
            return
    made = _Written(outbox, url)
    made.numbers += numbers
    connection.on_commit(made)


def _is_in_transaction(connection: Any) -> bool:
    """Whether the caller is in a transaction; that of a `TestCase` does not count."""
    blocks = connection.atomic_blocks
    return bool(
        any(not getattr(block, "_from_testcase", False) for block in blocks)
        or not (connection.in_atomic_block or connection.get_autocommit())
    )


def _using(alias: str) -> str:
    return "" if alias == DEFAULT_DB_ALIAS else f"using={alias!r}"


# -- once


class Once(OnceBase):
    """A transaction whose effect on the database happens once for each job: the result of `once`.

    It is a block of `transaction.atomic()`. If the block raises, it is rolled back, and the job has
    not happened.
    """

    def __init__(self, using: str, step: str) -> None:
        super().__init__(step)
        self._using: Final = using
        self._atomic: Any = None

    def __enter__(self) -> Self:
        """Check whether the job has happened; wait for another run that is about to commit.

        Raises:
            Fenced: a later run of this job has happened.
        """
        if self._atomic is not None:
            raise UsageError("A block of once cannot be entered twice; call outbox.once() again.")
        checked_connection(self._using)
        self._atomic = transaction.atomic(using=self._using)
        self._atomic.__enter__()
        try:
            self._begin()
        except BaseException as error:
            self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, and commit."""
        if error is None:
            try:
                self._end()
            except BaseException as failed:
                self._atomic.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._atomic.__exit__(kind, error, traceback)

    def _begin(self) -> None:
        connection, done = connections[self._using], model("Done")
        table = connection.ops.quote_name(done._meta.db_table)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} (queue, job_id, step, token, done_us) "
                f"VALUES (%s, %s, %s, %s, {NOW_US[connection.vendor]}) "
                "ON CONFLICT DO NOTHING RETURNING token",
                [*self._of.values(), self._token],
            )
            self.first = cursor.fetchone() is not None
        if not self.first:
            self._repeat(*self._mine().values_list("token", "result").get())

    def _end(self) -> None:
        if self.first and self.result is not None:
            self._mine().update(result=self._packed())

    def _mine(self) -> Any:
        return model("Done")._base_manager.using(self._using).filter(**self._of)


# -- the tables


def model(name: str) -> Any:
    """Return a model of the application.

    Raises:
        UsageError: the settings do not have the application.
    """
    try:
        return apps.get_model("bide_outbox", name)
    except LookupError:
        raise UsageError(
            f'The outbox needs its tables: add "{APP}" to INSTALLED_APPS, and run '
            "`manage.py migrate`."
        ) from None


def checked_connection(using: str) -> Any:
    """Return the connection of this thread to a database, if the outbox supports it.

    Raises:
        UsageError: there is no such database, it is not supported, or the application is missing.
    """
    model("Row")
    try:
        connection = connections[using]
    except ConnectionDoesNotExist:
        known = ", ".join(connections)
        raise UsageError(
            f"DATABASES of the settings has no {using!r}; name one of {known} in Outbox(using=)."
        ) from None
    if connection.vendor not in ("postgresql", "sqlite"):
        name = {"mysql": "MySQL or MariaDB"}.get(connection.vendor, connection.vendor)
        raise UsageError(
            f"The outbox supports PostgreSQL and SQLite in Django, not {name}; enqueue with "
            "on_commit() instead, or keep the rows of your transaction in one of these, and name "
            "it in Outbox(using=)."
        )
    return connection


def _rows(using: str) -> Any:
    return model("Row")._base_manager.using(using)


def insert(using: str, rows: Sequence[ChangeRow]) -> list[int]:
    """Insert rows in the transaction, and return their numbers."""
    kind, now = model("Row"), _now()
    made = [kind(**row._asdict(), written_us=now) for row in rows]
    return [one.pk for one in _rows(using).bulk_create(made, batch_size=BATCH)]


def round_of(
    using: str,
    sender: Sender,
    numbers: Sequence[int] | None = None,
    most: int = BATCH,
    changes: bool = False,
) -> Round:
    """Send rows, those of `numbers` or any, at most one of each job and each key.

    With `changes`, none that add jobs.
    """
    connection = connections[using]
    is_sqlite = connection.vendor == "sqlite"
    if numbers is None and is_sqlite and not _rows(using).exists():
        return Round()  # even a DELETE of no rows would take the only lock for writing
    with transaction.atomic(using=using):  # pyright: ignore[reportGeneralTypeIssues]
        found = _claim(connection, numbers, most, changes)
        if not found:
            return Round()

        def put_back(one: ClaimedRow, fared: Fared) -> None:
            row, now = model("Row"), _now()
            retry_us = None if fared.pause_us is None else now + fared.pause_us
            values = {"tries": fared.tries, "error": fared.error, "retry_us": retry_us}
            row._base_manager.using(using).bulk_create([row(**one.values(), **values)])

        def is_pending(ids: list[str]) -> bool:
            return bool(_rows(using).filter(job_id__in=ids).exists())

        done, has_changed = send_claimed(sender, found, put_back, is_pending)
        if not has_changed:
            transaction.set_rollback(True, using=using)
    return done


def _claim(
    connection: Any, numbers: Sequence[int] | None, most: int, changes: bool
) -> list[ClaimedRow]:
    table = connection.ops.quote_name(model("Row")._meta.db_table)
    listed = None if numbers is None else f"({', '.join(['%s'] * len(numbers))})"
    with connection.cursor() as cursor:
        if getattr(connection, "isolation_level", None) and not connection.savepoint_ids:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if connection.vendor == "postgresql" and numbers is None:
            cursor.execute(WITHOUT_JIT)
        claiming = claim(table, connection.vendor, "%s", listed, changes=changes)
        cursor.execute(claiming, [*(numbers or ()), most])
        return [ClaimedRow.read(columns) for columns in cursor.fetchall()]


def _now() -> Any:
    from bide.contrib.django.outbox.models import NowUs

    return NowUs()


class DjangoStore(RelayStore):
    """The store of a relay, which runs in one thread."""

    def __init__(self, using: str, sender: Sender, keep_us: int, stop: threading.Event) -> None:
        self._using: Final = using
        self._sender: Final = sender
        self._keep_us: Final = keep_us
        self._stop: Final = stop
        self._listening: Any = None

    def run(self, burst: bool) -> int:
        """Run the relay."""
        try:
            return relay(self, self._stop.is_set, burst)
        finally:
            self._sender.close()
            self._drop_listener()

    def round(self, changes: bool = False) -> Round:
        """Send up to `rows.BATCH` rows; with `changes`, none that add jobs."""
        connection = checked_connection(self._using)
        if not connection.in_atomic_block:  # a test may have a transaction
            connection.close_if_unusable_or_obsolete()
        if connection.vendor == "postgresql" and self._listening is None:
            # Before the read, so that no later row is missed.
            self._listening = connection.copy()
            with self._listening.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        return round_of(self._using, self._sender, changes=changes)

    def sweep(self) -> int:
        """Remove rows of `once` that are older than `keep`, unless their job may come again."""
        from django.db.models import Exists, OuterRef

        done = model("Done")._base_manager.using(self._using)
        pending = _rows(self._using).filter(job_id=OuterRef("job_id"))
        old = done.filter(~Exists(pending), done_us__lt=_now() - self._keep_us)
        swept = 0
        while ids := list(old.values_list("id", flat=True)[:SWEPT]):
            done.filter(id__in=ids).delete()
            swept += len(ids)
        return swept

    def wait(self, seconds: float) -> None:
        """Return when a row was written, the relay is stopped, or the time has passed."""
        if self._listening is None:
            self._stop.wait(seconds)
            return
        try:
            wait_for_notify(self._listening.connection, seconds, self._stop.wait)
        except Exception:  # the database is down
            self._drop_listener()
            self._stop.wait(min(seconds, 1.0))

    def _drop_listener(self) -> None:
        """Close the connection that listens, also if it is of a pool."""
        listening, self._listening = self._listening, None
        if listening is not None and listening.connection is not None:
            listening.connection.close()
            listening.close()


class ModelRows:
    """Reads and repairs the rows that have not been sent."""

    def __init__(self, using: str) -> None:
        self._rows: Final = _rows(using)

    def stats(self) -> OutboxStats:
        """Count the rows."""
        from django.db.models import Count, Min, Q

        is_refused = Q(retry_us__isnull=True)
        found = self._rows.aggregate(
            rows=Count("id"),
            refused=Count("id", filter=is_refused),
            age_us=_now() - Min("written_us", filter=~is_refused),
        )
        age_us = max(0, found["age_us"] or 0)
        return OutboxStats(found["rows"] - found["refused"], found["refused"], age_us / 1e6)

    def list(self, limit: int, refused: bool) -> list[OutboxRow]:
        """Return the oldest rows; with `refused`, only those."""
        chosen = self._refused() if refused else self._rows
        return [shown(row) for row in chosen.order_by("id")[:limit]]

    def retry(self, numbers: Sequence[int] | None) -> int:
        """Have refused rows sent again, all or some; return their number."""
        chosen = self._refused() if numbers is None else self._refused().filter(id__in=numbers)
        changed: int = chosen.update(retry_us=0)
        return changed

    def delete(self, numbers: Sequence[int]) -> int:
        """Remove rows without sending them; return their number."""
        deleted: int = self._rows.filter(id__in=numbers).delete()[0]
        return deleted

    def _refused(self) -> Any:
        return self._rows.filter(retry_us__isnull=True)
