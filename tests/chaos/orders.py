"""The load of the order desk: orders that are committed with their jobs, and the books of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from bide import Queue, Retry
from bide.contrib.sqlalchemy import Outbox
from bide.protocol.commands.enqueue import Prepared
from tests.chaos.load import Asked, Given, Load, now_us
from tests.support.order_tables import Order, Shipped

MODULE = "tests.chaos.desk"
DATABASE = "BIDE_TEST_DATABASE"
"""The variable of the environment in which workers find the address of the database."""
JOBS = ("unpaid", "ship")
"""Each order has a job that is cancelled when it is paid, and a job that has an effect."""
ROLLED_BACK = 1_000_000
"""Added to the number of an order whose transaction is rolled back."""


def job_of(queue: Queue, kind: str, order: int, seconds: float = 0.0) -> Prepared:
    """Prepare a job of an order."""
    id = f"{kind}-{order:05}"
    if kind == "unpaid":
        return queue.prepare(f"{MODULE}:unpaid", [order], job_id=id, delay="1h")
    again = Retry(50, "fixed", base=0.2)  # while the database is down
    return queue.prepare(f"{MODULE}:ship", [order, seconds], job_id=id, retry=again)


def order_of(id: str) -> int:
    """The order of a job."""
    return int(id.partition("-")[2])


class Orders(Load):
    """Commits orders at a steady rate, each in two transactions: it is placed, then it is paid.

    Of a transaction whose commit failed the database knows whether it took effect. So the producer
    looks before it writes again.
    """

    def __init__(
        self, engine: sa.Engine, outbox: Outbox, queue: Queue, jobs: Sequence[Given], *rest: Any
    ) -> None:
        """Set up.

        Args:
            engine: of the database.
            outbox: in it.
            queue: of the jobs.
            jobs: one `ship` job for each order.
            rest: as for `Load`.
        """
        super().__init__(queue, jobs, *rest)
        self._engine = engine
        self._outbox = outbox
        for job in jobs:
            unpaid = job_of(queue, "unpaid", order_of(job.prepared.id))
            self.jobs[unpaid.id] = Given(unpaid, ends="cancelled", attempts=0, runs=False)

    def left(self) -> int:
        """How many rows have not been sent."""
        stats = self._outbox.stats()
        return stats.waiting + stats.refused

    def _hand_in(self, batch: Sequence[Prepared], asked_us: int = 0) -> list[Any]:
        for ship in batch:
            self._take(order_of(ship.id), ship)
        return []

    def _take(self, order: int, ship: Prepared) -> None:
        self._outbox.fast = order % 2 == 0  # the relays send the others
        if order % 10 == 0:
            self._commit(lambda session: self._roll_back(session, order))
        unpaid = self.jobs[f"unpaid-{order:05}"].prepared
        asked_us = now_us()
        self._commit(lambda session: self._place(session, order, [unpaid, ship]))
        asked = Asked(asked_us, now_us())
        self._commit(lambda session: self._pay(session, order))
        self.asked |= dict.fromkeys((unpaid.id, ship.id), asked)

    def _commit(self, write: Callable[[Session], None]) -> None:
        while not self._ended.is_set():
            try:
                with Session(self._engine) as session, session.begin():
                    write(session)
                return
            except sa.exc.DBAPIError as error:
                kind = type(error).__name__
                self.refusals[kind] = self.refusals.get(kind, 0) + 1
                self._ended.wait(0.1)

    def _place(self, session: Session, order: int, jobs: Sequence[Prepared]) -> None:
        if session.get(Order, order) is None:
            session.add(Order(id=order))
            self._outbox.enqueue_many(session, self._queue, jobs)

    def _pay(self, session: Session, order: int) -> None:
        placed = session.get_one(Order, order)
        if placed.state == "open":
            placed.state = "paid"
            self._outbox.cancel(session, self._queue, f"unpaid-{order:05}")

    def _roll_back(self, session: Session, order: int) -> None:
        number = ROLLED_BACK + order
        jobs = [job_of(self._queue, kind, number) for kind in JOBS]
        self._place(session, number, jobs)
        session.flush()
        session.rollback()


class OrderBooks(NamedTuple):
    """The rows that the database has when the load has drained."""

    orders: Mapping[int, str]
    """The state of each order."""
    effects: Counter[int]
    """How many parcels each order has."""
    left: int
    """Rows of the outbox that have not been sent."""

    @classmethod
    def read(cls, engine: sa.Engine, left: int) -> OrderBooks:
        """Read them."""
        with Session(engine) as session:
            orders = {order.id: order.state for order in session.scalars(sa.select(Order))}
            effects = Counter(session.scalars(sa.select(Shipped.order_id)))
        return cls(orders, effects, left)

    def unbalanced(self, committed: set[int], jobs: set[str]) -> Iterator[str]:
        """Hold the books against each other; a sentence for what does not balance.

        Args:
            committed: the orders whose commit returned.
            jobs: the ids of all jobs that the server has.
        """
        if self.left:
            yield f"{self.left} rows are left in the outbox"
        for order in sorted(committed - self.orders.keys()):
            yield f"order {order} was committed, and is gone"
        for order, state in self.orders.items():
            if state != "paid":
                yield f"order {order} is {state}, not paid"
            for kind in JOBS:
                if f"{kind}-{order:05}" not in jobs:
                    yield f"order {order} has no job {kind}-{order:05}"
            if self.effects[order] != 1:
                yield f"order {order} has {self.effects[order]} parcels, not 1"
        for id in sorted(jobs):
            if order_of(id) not in self.orders:
                yield f"{id} is a job without its order"
        for order in sorted(self.effects.keys() - self.orders.keys()):
            yield f"a parcel without its order {order}"
