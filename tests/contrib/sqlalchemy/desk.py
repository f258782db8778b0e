"""An order desk on SQLAlchemy whose processes are killed between any two statements.

`tests/support/outboxes.py` says how.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.order_tables import Base, Order, Shipped, engine_for
from tests.support.outboxes import die_at, print_books_of_kills


def unpaid(order: int) -> None: ...


class Desk(Shop):
    """The shop, in one of its processes."""

    def __init__(self, database: str, url: str, dies_at: int = 0) -> None:
        super().__init__(engine_for(database), url)
        self.unpaid = self.queue.task(name="unpaid")(unpaid)
        self.ship = self.queue.task(name="ship", retry=20)(self.ship_order)
        if not dies_at:
            return
        around = die_at(dies_at)
        dialect: Any = self.engine.dialect
        for name in ("do_execute", "do_executemany", "do_commit", "do_rollback"):
            setattr(dialect, name, around(getattr(dialect, name)))

    def ship_order(self, order: int) -> str:
        with Session(self.engine) as session, session.begin():
            with self.outbox.once(session) as once:
                if once.first:
                    session.add(Shipped(order_id=order))
                    once.result = f"parcel {order}"
            return str(once.result)

    def produce(self) -> None:
        with self.begin() as session:
            session.add(Order(id=1))
            self.outbox.enqueue(session, self.unpaid.options(job_id="unpaid-1", delay="1h"), 1)
            self.outbox.enqueue(session, self.ship.options(job_id="ship-1"), 1)
        with self.begin() as session:
            session.get_one(Order, 1).state = "paid"
            self.outbox.cancel(session, self.queue, "unpaid-1")

    def clear(self) -> None:
        Base.metadata.drop_all(self.engine)
        Base.metadata.create_all(self.engine)

    def books(self) -> list[Any]:
        jobs = self.queue.fetch_many(["unpaid-1", "ship-1"])
        with Session(self.engine) as session:
            order = session.get(Order, 1)
            parcels = session.scalar(sa.select(sa.func.count()).select_from(Shipped))
        states = [job and str(job.state) for job in jobs]
        return [order and order.state, *states, parcels, len(self.rows())]


if __name__ == "__main__":
    print_books_of_kills(Desk)
