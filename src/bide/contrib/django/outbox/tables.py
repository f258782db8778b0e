"""The outbox's side of a database of Django: rounds, the relay's store, listings and repairs.

Models are looked up when they are used: this package is imported before Django has loaded them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from django.db import connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from bide.contrib.outbox.relay import Round, Store, relay, wait_for_notify
from bide.contrib.outbox.rounds import (
    CHANNEL,
    SWEPT,
    Claimed,
    Fared,
    claim,
    send_claimed,
)
from bide.contrib.outbox.rows import BATCH, Row
from bide.contrib.outbox.sending import Sender
from bide.errors import UsageError
from bide.model.durations import from_us
from bide.worker.outbox import OutboxRow, OutboxStats

APP: Final = "bide.contrib.django.outbox"


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
        raise UsageError(
            f"The outbox supports PostgreSQL and SQLite in Django, not {connection.vendor}; keep "
            "its tables in one of these, and name it in Outbox(using=)."
        )
    return connection


def _rows(using: str) -> Any:
    return model("Row")._base_manager.using(using)


def insert(using: str, rows: Sequence[Row]) -> list[int]:
    """Insert rows in the transaction, and return their numbers."""
    kind, now = model("Row"), _now()
    made = [kind(**row._asdict(), written_us=now) for row in rows]
    return [one.pk for one in _rows(using).bulk_create(made, batch_size=BATCH)]


def round_of(
    using: str, sender: Sender, numbers: Sequence[int] | None = None, most: int = BATCH
) -> Round:
    """Send rows, those of `numbers` or any, at most one of each job and each key."""
    connection = connections[using]
    is_sqlite = connection.vendor == "sqlite"
    if numbers is None and is_sqlite and not _rows(using).exists():
        return Round()  # to remove nothing would still take the only lock for writing
    with transaction.atomic(using=using):
        found = _claim(connection, numbers, most)
        if not found:
            return Round()

        def put_back(one: Claimed, fared: Fared) -> None:
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


def _claim(connection: Any, numbers: Sequence[int] | None, most: int) -> list[Claimed]:
    table = connection.ops.quote_name(model("Row")._meta.db_table)
    listed = None if numbers is None else f"({', '.join(['%s'] * len(numbers))})"
    with connection.cursor() as cursor:
        if getattr(connection, "isolation_level", None) and not connection.savepoint_ids:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(claim(table, connection.vendor, "%s", listed), [*(numbers or ()), most])
        return [Claimed.read(columns) for columns in cursor.fetchall()]


def _now() -> Any:
    from bide.contrib.django.outbox.models import NowUs

    return NowUs()


class DjangoStore(Store):
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

    def round(self) -> Round:
        """Send up to `rows.BATCH` rows."""
        connection = checked_connection(self._using)
        if not connection.in_atomic_block:  # a test may have a transaction
            connection.close_if_unusable_or_obsolete()
        if connection.vendor == "postgresql" and self._listening is None:
            # Before it looks, so that no row is missed that is written after the look.
            self._listening = connection.copy()
            with self._listening.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        return round_of(self._using, self._sender)

    def sweep(self) -> int:
        """Remove rows of `once` that are older than `keep`, unless their job may come again."""
        from django.db.models import Exists, OuterRef

        done = model("Done")._base_manager.using(self._using)
        pending = _rows(self._using).filter(job_id=OuterRef("job_id"), queue=OuterRef("queue"))
        old = done.filter(~Exists(pending), done_us__lt=_now() - self._keep_us)
        swept = 0
        while ids := list(old.values_list("id", flat=True)[:SWEPT]):
            done.filter(id__in=ids).delete()
            swept += len(ids)
        return swept

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
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


def stats(using: str) -> OutboxStats:
    """Count the rows."""
    from django.db.models import Count, Min, Q

    is_refused = Q(retry_us__isnull=True)
    found = _rows(using).aggregate(
        rows=Count("id"),
        refused=Count("id", filter=is_refused),
        age_us=_now() - Min("written_us", filter=~is_refused),
    )
    age_us = max(0, found["age_us"] or 0)
    return OutboxStats(found["rows"] - found["refused"], found["refused"], age_us / 1e6)


def list_rows(using: str, limit: int, refused: bool) -> list[OutboxRow]:
    """Return the oldest rows."""
    chosen = _rows(using).order_by("id")
    if refused:
        chosen = chosen.filter(retry_us__isnull=True)
    return [
        OutboxRow(
            row.id,
            row.queue,
            row.verb,
            row.job_id,
            from_us(row.written_us),
            row.tries,
            row.retry_us is None,
            row.error,
        )
        for row in chosen[:limit]
    ]


def retry_rows(using: str, numbers: Sequence[int] | None) -> int:
    """Have refused rows sent again."""
    chosen = _rows(using).filter(retry_us__isnull=True)
    changed: int = (chosen if numbers is None else chosen.filter(id__in=numbers)).update(retry_us=0)
    return changed


def delete_rows(using: str, numbers: Sequence[int]) -> int:
    """Remove rows without sending them."""
    deleted: int = _rows(using).filter(id__in=numbers).delete()[0]
    return deleted
