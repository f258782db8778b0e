"""An order desk whose processes are killed between any two statements.

`books_of_kills` repeats a scene. In each repeat one process, the producer, a relay or a worker,
kills itself one step later than in the repeat before: before or after a statement, a commit, or a
round trip to the server. Then two relays and two workers finish the work, and the books must
balance. All processes are forked, and this one has no connections that they could inherit.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from bide import Queue, Worker
from bide.client import blocking
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.order_tables import Base, Order, Shipped, engine_for

LEASE = "500ms"


def unpaid(order: int) -> None: ...


class Desk(Shop):
    """The shop, in one of its processes."""

    def __init__(self, database: str, url: str, dies_at: int = 0) -> None:
        super().__init__(engine_for(database), url)
        self.queue = Queue("orders", url=url)
        self.unpaid = self.queue.task(name="unpaid")(unpaid)
        self.ship = self.queue.task(name="ship", retry=20)(self.ship_order)
        if dies_at:
            die_at(dies_at, self.engine)

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

    def work(self) -> None:
        Worker(queues=[self.queue], lease=LEASE, name=f"worker-{os.getpid()}").run(burst=True)


def die_at(number: int, engine: sa.Engine) -> None:
    """Kill this process at a step: a statement or a round trip has two, before it and after it."""
    left = number

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            step()
            result = call(*args, **kwargs)
            step()
            return result

        return stepped

    dialect: Any = engine.dialect
    for name in ("do_execute", "do_executemany", "do_commit", "do_rollback"):
        setattr(dialect, name, around(getattr(dialect, name)))
    exchange: Any = blocking.Connections.exchange

    def exchanged(*args: Any, **kwargs: Any) -> Any:
        step()
        for reply in exchange(*args, **kwargs):
            step()
            yield reply

    connections: Any = blocking.Connections
    connections.exchange = exchanged


def forked(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run a call in another process; return what waits for its result, None if it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps([call()]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)

    def wait() -> Any:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL), status
        return json.loads(text)[0] if text else None

    return wait


def cleared(database: str, url: str) -> bool:
    with redis.Redis.from_url(url) as direct:
        direct.flushall()
    desk = Desk(database, url)
    Base.metadata.drop_all(desk.engine)
    Base.metadata.create_all(desk.engine)
    return True


def books(database: str, url: str) -> list[Any]:
    """The order's state, its jobs, its parcels, and what the outbox has left."""
    desk = Desk(database, url)
    jobs = desk.queue.fetch_many(["unpaid-1", "ship-1"])
    with Session(desk.engine) as session:
        order = session.get(Order, 1)
        parcels = session.scalar(sa.select(sa.func.count()).select_from(Shipped))
    states = [job and str(job.status) for job in jobs]
    return [order and order.state, *states, parcels, len(desk.rows())]


BALANCED = {
    "nothing": [None, None, None, 0, 0],
    "placed": ["open", "delayed", "completed", 1, 0],
    "paid": ["paid", "cancelled", "completed", 1, 0],
}


def finish(database: str, url: str) -> None:
    """Have two relays and two workers finish what a process has left."""
    balanced = [*BALANCED.values()]
    for wait in [forked(lambda: Desk(database, url).outbox.relay(burst=True)) for _ in range(2)]:
        wait()
    until = time.monotonic() + 90
    while time.monotonic() < until and forked(lambda: books(database, url))() not in balanced:
        for wait in [forked(lambda: Desk(database, url).work()) for _ in range(2)]:
            wait()
        time.sleep(0.1)  # the lease of the killed worker


def scene(actor: str, database: str, url: str, dies_at: int) -> bool:
    """Play a scene; return whether the actor lived to its end."""
    assert forked(lambda: cleared(database, url))()

    def produce(fast: bool) -> bool:
        desk = Desk(database, url)
        desk.outbox.fast = fast
        desk.produce()
        return True

    def act() -> bool:
        desk = Desk(database, url, dies_at)
        if actor == "producer":
            desk.produce()
        elif actor == "relay":
            desk.outbox.relay(burst=True)
        else:
            desk.work()
        return True

    if actor != "producer":
        assert forked(lambda: produce(fast=actor == "worker"))()
    return bool(forked(act)())


PARTS = 3


def books_of_kills(actor: str, database: str, url: str, part: str) -> list[list[Any]]:
    """Kill an actor at every third of its steps; return the books after each, and without one.

    `part` is 1, 2 or 3: together they are all steps.
    """
    found = []
    for dies_at in range(int(part), 200, PARTS):
        lived = scene(actor, database, url, dies_at)
        finish(database, url)
        found.append(forked(lambda: books(database, url))())
        if lived:
            return found
    raise AssertionError("the actor never ends")


if __name__ == "__main__":
    import sys

    for kept in books_of_kills(*sys.argv[1:]):
        print(json.dumps(kept))
