"""A shop with orders in a database of Django: SQLite always, PostgreSQL where it is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.db import connections, models, transaction
from django.db.backends.signals import connection_created

from bide import Queue
from bide.contrib.django.outbox import Outbox
from bide.contrib.django.outbox.models import Done, Row
from bide.contrib.django.outbox.writing import round_of
from bide.contrib.outbox.sending import Round, Sender
from bide.model.durations import to_us
from tests.support.outboxes import relaying

APPS = ["bide.contrib.django", "bide.contrib.django.outbox"]


class Order(models.Model):  # type: ignore[misc]
    id = models.BigAutoField(primary_key=True)
    state = models.CharField(max_length=20, default="open")

    class Meta:
        app_label = "shop"
        db_table = "shop_orders"


class Shipped(models.Model):  # type: ignore[misc]
    """An effect: each order has one."""

    id = models.BigAutoField(primary_key=True)
    order_id = models.BigIntegerField()

    class Meta:
        app_label = "shop"
        db_table = "shop_shipped"


def settings_of(database: str) -> dict[str, Any]:
    """The settings of a database: a file of SQLite, or the directory of PostgreSQL's socket."""
    if database.startswith("sqlite:"):
        name = database.removeprefix("sqlite:")
        options = {"timeout": 60}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    host = database.removeprefix("postgresql:")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "bide",
        "HOST": host,
    }


def _quick(sender: Any, connection: Any, **more: Any) -> None:
    if connection.vendor == "sqlite":
        connection.connection.execute("PRAGMA synchronous = OFF")


connection_created.connect(_quick)


def use(alias: str, database: str, **options: Any) -> None:
    """Have an alias name this database."""
    if alias in connections.databases and hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]
    made = settings_of(database)
    made.setdefault("OPTIONS", {}).update(options)
    connections.databases[alias] = made
    connections.settings = connections.configure_settings(connections.databases)


def create_tables(alias: str) -> None:
    call_command("migrate", "bide_outbox", database=alias, verbosity=0)
    with connections[alias].schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Shipped)


class Shop:
    """An order desk: a database, an outbox and a queue."""

    def __init__(self, using: str, url: str) -> None:
        self.using = using
        self.url = url
        self.outbox = Outbox(using, url=url)
        self.queue = Queue("orders", url=url)

    @property
    def vendor(self) -> str:
        return str(connections[self.using].vendor)

    def at(self, url: str) -> Shop:
        return Shop(self.using, url)

    def begin(self) -> Any:
        """A transaction, or a savepoint in it."""
        return transaction.atomic(using=self.using)

    @contextmanager
    def writing(self) -> Iterator[Changes]:
        """A transaction, and the methods of the outbox in it."""
        with self.begin():
            yield Changes(self)

    def place(self, id: int) -> Any:
        return Order.objects.using(self.using).create(id=id)

    def orders(self) -> list[int]:
        found = Order.objects.using(self.using).order_by("id")
        return [*found.values_list("id", flat=True)]

    def rows(self) -> list[Any]:
        """The rows of the outbox."""
        return [*Row.objects.using(self.using).order_by("id")]

    def done(self) -> list[Any]:
        return [*Done.objects.using(self.using).order_by("id")]

    def change_rows(self, **values: Any) -> None:
        """Change rows of the outbox, as others may have written them."""
        Row.objects.using(self.using).update(**values)

    def set_retry_us(self, moment_us: int, *ids: str) -> None:
        rows = Row.objects.using(self.using)
        (rows.filter(job_id__in=ids) if ids else rows).update(retry_us=moment_us)

    def age(self, by: timedelta) -> None:
        rows = Row.objects.using(self.using)
        rows.update(written_us=models.F("written_us") - to_us(by, "by"))

    def send(self, sender: Sender) -> Round:
        return round_of(self.using, sender)

    def send_late(self, numbers: list[int]) -> None:
        self.outbox._send_now(self.url, numbers)

    @contextmanager
    def relaying(self) -> Iterator[None]:
        """A relay in a thread, whose connections are closed at its end."""

        def relay(stop: threading.Event) -> None:
            try:
                self.outbox.relay(stop=stop)
            finally:
                connections.close_all()

        with relaying(self.outbox, relay):
            yield

    def end_thread(self) -> None:
        connections.close_all()

    disconnect = end_thread

    def ids(self, states: Sequence[Any] = ("delayed", "waiting")) -> set[str]:
        """The ids of the jobs of the queue that have not ended."""
        return {job.id for state in states for job in self.queue.jobs(state)}

    def close(self) -> None:
        self.queue.close()
        self.outbox.close()
        connections[self.using].close()


class Changes:
    """The methods of an outbox, in a transaction."""

    def __init__(self, shop: Shop) -> None:
        self.enqueue = shop.outbox.enqueue
        self.cancel = shop.outbox.cancel
        self.place = shop.place
