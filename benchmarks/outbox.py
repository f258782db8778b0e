"""The cost of an outbox on PostgreSQL: `python -m benchmarks.outbox`, and Debian's `postgresql`.

Milliseconds per order, in turn: a plain insert, an insert and then an enqueue, as `on_commit` does
it, an insert with the outbox and its fast path, and one whose row is left to a relay. Then the rows
that one relay sends in a second. The database does not sync its files, so only what bide adds is
compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.report import percentiles
from bide import Queue
from bide.contrib.sqlalchemy import Outbox
from bide.embedded import Server
from tests.support.postgres import Postgres

ORDERS = 400
ROWS, WRITTEN_AT_ONCE = 50_000, 2_000


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def cancel_unpaid(order: int) -> None: ...


def main() -> None:
    with Server.start() as server, Postgres() as postgres:
        engine = sa.create_engine(postgres.url())
        queue = Queue("orders", url=server.url)
        task = queue.task(name="cancel_unpaid")(cancel_unpaid).options(delay="1h")
        outbox = Outbox(Base.metadata, engine, url=server.url)
        Base.metadata.create_all(engine)

        def plain() -> None:
            with Session(engine) as session, session.begin():
                session.add(Order())

        def on_commit() -> None:
            plain()
            task.enqueue(1)

        def with_outbox() -> None:
            with Session(engine) as session, session.begin():
                session.add(Order())
                outbox.enqueue(session, task, 1)

        def left() -> None:
            outbox.fast = False
            with_outbox()
            outbox.fast = True

        ways: dict[str, Callable[[], None]] = {
            "insert": plain,
            "insert, then enqueue": on_commit,
            "outbox, fast path": with_outbox,
            "outbox, left to a relay": left,
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(ORDERS + 50):
            for name, way in ways.items():
                begun = time.perf_counter()
                way()
                if i >= 50:
                    took[name].append((time.perf_counter() - begun) * 1e3)
        print("| an order | p50, ms | p99, ms |\n|---|---|---|")
        for name, values in took.items():
            row = percentiles(values)
            print(f"| {name} | {row['p50']:.2f} | {row['p99']:.2f} |")
        outbox.relay(burst=True)
        outbox.fast = False
        for _ in range(ROWS // WRITTEN_AT_ONCE):
            jobs = [task.prepare(1) for _ in range(WRITTEN_AT_ONCE)]
            with Session(engine) as session, session.begin():
                outbox.enqueue_many(session, queue, jobs)
        begun = time.perf_counter()
        sent = outbox.relay(burst=True)
        print(f"\nOne relay: {sent / (time.perf_counter() - begun):,.0f} rows/s, {sent:,} rows")
        outbox.close()
        queue.close()
        engine.dispose()


if __name__ == "__main__":
    main()
