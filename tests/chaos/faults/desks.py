"""An order desk with a database: its workers, its relay, its server and its database break."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import sqlalchemy as sa

from bide.contrib.sqlalchemy import Outbox
from tests.chaos.books import Books
from tests.chaos.fault import Fault, Role
from tests.chaos.faults.servers import ServerKilled
from tests.chaos.faults.workers import Frozen, Killed
from tests.chaos.load import Given
from tests.chaos.orders import DATABASE, MODULE, OrderBooks, Orders, job_of, order_of
from tests.chaos.plan import Injection, dice
from tests.chaos.scene import Scene
from tests.support import postgres
from tests.support.order_tables import Base, engine_for
from tests.support.worker_pool import WorkerProcess

OUTBOX = f"{MODULE}:outbox"
WORKER = Role((MODULE, "-c", "4", "--outbox", OUTBOX))


class OrderDesk(Fault):
    """Each kind of fault comes once in each round of them, in an order that the seed says."""

    name = "order-desk"
    title = (
        "An order desk with SQLite and the outbox: a worker is killed or frozen, the relay is "
        "killed, the server is killed and starts again"
    )
    allows = "jobs of the worker run once more. Each effect in the database happens once"
    persist = True
    server = ServerKilled.server
    roles = (WORKER, WORKER)
    jobs = 240
    rate = 40.0
    injections = 8
    lease = 3.0
    back_off = 5.0
    descriptors = 40  # connections to the database
    KINDS: ClassVar[tuple[str, ...]] = (
        *("worker killed", "worker frozen"),
        *("relay killed", "server killed"),
    )

    def set_up(self, scene: Scene) -> None:
        self._kinds = [*self.KINDS]
        dice(scene.seed, self.name, "kinds").shuffle(self._kinds)
        self._database = self._start_database(scene)
        scene.worker_pool.settings |= {DATABASE: self._database, "BIDE_URL": scene.setup.url}
        self._engine = engine_for(self._database, pool_pre_ping=True)
        self._outbox = Outbox(Base.metadata, self._engine, url=scene.setup.url)
        scene.enter(_closed(self._engine, self._outbox))
        logging.getLogger("bide.outbox").addHandler(logging.NullHandler())
        Base.metadata.create_all(self._engine)
        self._relays = 0
        self._start_relay(scene)

    def _start_database(self, scene: Scene) -> str:
        return f"sqlite:///{scene.home}/orders.db"

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        for order in range(1, count + 1):
            seconds = scene.dice.choice([0.0, 0.01, 0.05, 0.2])
            yield Given(job_of(scene.queue, "ship", order, seconds), attempts=0)

    def producer(self, scene: Scene, jobs: Sequence[Given]) -> Orders:
        self._orders = Orders(
            *(self._engine, self._outbox, scene.queue, jobs, self.rate, scene.quiet.is_set)
        )
        return self._orders

    def _start_relay(self, scene: Scene) -> None:
        self._relays += 1
        name, pool = f"relay{self._relays}", scene.worker_pool
        command = [sys.executable, "-m", "bide", "outbox", "relay", OUTBOX]
        self._relay = WorkerProcess(name, command, pool.env(), scene.home / f"{name}.log")
        pool.workers.append(self._relay)
        self._relay.says(f"the relay of {OUTBOX} runs")

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {
            "worker": dice.randrange(2),
            "leases": round(dice.uniform(1.1, 1.3), 2),
            "seconds": round(dice.uniform(0.0, 0.3), 2),
        }

    def inject(self, scene: Scene, injection: Injection) -> None:
        kind = self._kinds[(injection.number - 1) % len(self._kinds)]
        scene.count(kind)
        if kind == "worker killed":
            Killed().inject(scene, injection)
        elif kind == "worker frozen":
            Frozen().inject(scene, injection)
        elif kind == "server killed":
            ServerKilled().inject(scene, injection)
        elif kind == "relay killed":
            happened = scene.hit(excuses=False)
            self._relay.kill()
            scene.last(injection.drawn["seconds"])
            self._start_relay(scene)
            scene.over(happened)
        else:
            self._restart_database(scene, injection)

    def _restart_database(self, scene: Scene, injection: Injection) -> None:
        raise NotImplementedError

    def is_drained(self, scene: Scene) -> bool:
        """Whether the server has each job of the outbox, and the load has drained."""
        return not self._orders.left() and super().is_drained(scene)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        found = OrderBooks.read(self._engine, self._orders.left())
        committed = {order_of(id) for id in self._orders.asked}
        yield from found.unbalanced(committed, books.holding.ids)
        scene.count("effects found", len(scene.ledger.lines("repeated")))
        scene.count("fenced runs", len(scene.ledger.lines("fenced")))
        self._relay.terminate()
        if (code := self._relay.wait()) != 0:
            yield f"{self._relay.name} ended with {code}"


class OrderDeskPostgres(OrderDesk):
    name = "order-desk-postgres"
    title = "The same with PostgreSQL, which is killed too, and starts again"
    allows = "the same. Jobs that need the database while it is down fail and are retried"
    injections = 10
    KINDS = (*OrderDesk.KINDS, "database killed")

    @staticmethod
    def missing() -> str:
        return postgres.missing()

    def _start_database(self, scene: Scene) -> str:
        self._server = postgres.Postgres()
        scene.enter(self._server)
        return self._server.url()

    def _restart_database(self, scene: Scene, injection: Injection) -> None:
        happened = scene.hit(excuses=False)
        self._server.stop()
        scene.last(injection.drawn["seconds"])
        self._server.start()
        scene.over(happened)


@contextmanager
def _closed(engine: sa.Engine, outbox: Outbox) -> Iterator[None]:
    try:
        yield
    finally:
        outbox.close()
        engine.dispose()
