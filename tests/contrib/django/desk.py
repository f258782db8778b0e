"""An order desk on Django whose processes are killed between any two statements.

`tests/support/outboxes.py` says how.
"""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["bide.contrib.django", "bide.contrib.django.outbox"],
        USE_TZ=True,
    )
    django.setup()

from django.db import connections
from django.db.backends.utils import CursorWrapper

from tests.contrib.django.shop import Order, Shipped, Shop, create_tables, use
from tests.support.outboxes import die_at, print_books_of_kills


def unpaid(order: int) -> None: ...


class Desk(Shop):
    """The shop, in one of its processes."""

    def __init__(self, database: str, url: str, dies_at: int = 0) -> None:
        use("default", database)
        super().__init__("default", url)
        self.unpaid = self.queue.task(name="unpaid")(unpaid)
        self.ship = self.queue.task(name="ship", retry=20)(self.ship_order)
        if not dies_at:
            return
        around = die_at(dies_at)
        kind: Any = type(connections["default"])
        for name in ("_commit", "_rollback"):
            setattr(kind, name, around(getattr(kind, name)))

        wrapper: Any = CursorWrapper
        for name in ("_execute", "_executemany"):
            setattr(wrapper, name, around(getattr(wrapper, name)))

    def ship_order(self, order: int) -> str:
        with self.outbox.once() as once:
            if once.first:
                Shipped.objects.create(order_id=order)
                once.result = f"parcel {order}"
        return str(once.result)

    def produce(self) -> None:
        with self.begin():
            self.place(1)
            self.outbox.enqueue(self.unpaid.options(job_id="unpaid-1", delay="1h"), 1)
            self.outbox.enqueue(self.ship.options(job_id="ship-1"), 1)
        with self.begin():
            Order.objects.filter(id=1).update(state="paid")
            self.outbox.cancel(self.queue, "unpaid-1")

    def clear(self) -> None:
        connection = connections["default"]
        with connection.cursor() as cursor:
            for name in connection.introspection.table_names(cursor):
                cursor.execute(f"DROP TABLE {connection.ops.quote_name(name)}")
        create_tables("default")

    def books(self) -> list[Any]:
        jobs = self.queue.fetch_many(["unpaid-1", "ship-1"])
        order = Order.objects.filter(id=1).first()
        states = [job and str(job.state) for job in jobs]
        return [order and order.state, *states, Shipped.objects.count(), len(self.rows())]


if __name__ == "__main__":
    print_books_of_kills(Desk)
