"""The cost of an outbox on PostgreSQL, the lateness of its jobs, and procrastinate beside it.

Each order is measured in four ways, in turn: a plain insert, an insert and then an enqueue, as
`on_commit` does it, an insert with the outbox and its fast path, and one whose row is left to a
relay. procrastinate, whose jobs are rows in the same database, has a process of its own. The
database does not sync its files, so only what is added is compared.

- *from the commit to the enqueue*: rows that are left to a relay, woken by NOTIFY or by its poll
  once a second. Until the moment at which the server has the job.
- *lateness of delayed jobs*: until a worker has claimed the job, from the call and 500 ms.
- *the fast path*: four threads write orders beside a relay, and the relay counts what it sends.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.install import PEERS, install_python
from benchmarks.lab import ROOT, Lab
from benchmarks.report import Aim, Report, Row, Rows, percentiles
from bide import Queue, Worker
from bide.contrib.sqlalchemy import Outbox
from tests.support.postgres import Postgres, missing

WRITTEN_AT_ONCE = 2_000
LEAST_RATE = 5_000
"""Rows that one relay is to send in a second."""
DELAY_S = 0.5


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


async def nothing(order: int) -> None: ...


def _hasten(connection: Any, record: object) -> None:
    """Have SQLite sync no files, as the PostgreSQL here does not."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA busy_timeout = 60000")


class Desk:
    """A database with orders, an outbox and a queue."""

    def __init__(self, lab: Lab, address: str) -> None:
        self.engine = sa.create_engine(address)
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _hasten)
        self.queue = Queue("outbox-bench", url=lab.server.url)
        self.task = self.queue.task(name="nothing")(nothing)
        self.outbox = Outbox(Base.metadata, self.engine, url=lab.server.url)
        Base.metadata.create_all(self.engine)

    def place(self, task: Any = None, fast: bool | None = None) -> str:
        """Insert an order; with a task, write its row too."""
        if fast is not None:
            self.outbox.fast = fast
        with Session(self.engine) as session, session.begin():
            session.add(Order())
            return "" if task is None else self.outbox.enqueue(session, task, 1)

    def leave(self, rows: int) -> None:
        """Write rows without sending them."""
        self.outbox.fast = False
        for _ in range(rows // WRITTEN_AT_ONCE):
            jobs = [self.task.prepare(1) for _ in range(WRITTEN_AT_ONCE)]
            with Session(self.engine) as session, session.begin():
                self.outbox.enqueue_many(session, self.queue, jobs)

    @contextmanager
    def relaying(self) -> Iterator[list[int]]:
        """A relay; at the end, the list has the number of rows that it sent."""
        stop, sent = threading.Event(), list[int]()
        thread = threading.Thread(target=lambda: sent.append(self.outbox.relay(stop=stop)))
        thread.start()
        try:
            yield sent
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self.outbox.close()
        self.queue.close()
        self.engine.dispose()


def run(lab: Lab) -> list[Report]:
    """Measure on a PostgreSQL of its own; the poll, on SQLite."""
    if reason := missing():
        raise RuntimeError(reason)
    with Postgres() as postgres, TemporaryDirectory() as directory:
        desk = Desk(lab, postgres.url())
        polled = Desk(lab, f"sqlite:///{directory}/shop.db")
        try:
            orders = 200 if lab.quick else 600
            told = _procrastinate(postgres.directory, orders, 1_000 if lab.quick else 2_000)
            costs = _costs(desk, orders)
            costs["procrastinate: insert"] = percentiles(told["plain"])
            costs["procrastinate: insert, then defer"] = percentiles(told["deferred"])
            plain, deferred = (costs[f"procrastinate: {n}"]["p50"] for n in _THEIRS)
            added = costs["outbox, fast path"]["p50"] - costs["insert"]["p50"]
            costs["outbox, fast path, above an insert"] = {"p50": added}
            costs["procrastinate, above an insert"] = {"p50": deferred - plain}
            count, often = 100 if lab.quick else 300, (0.01, 0.03)
            sent = {"woken by NOTIFY": _delay(desk, count, often)}
            sent["by its poll"] = _delay(polled, count // 5, (0.3, 0.9))
            late = _lateness(desk, 60 if lab.quick else 200)
            backlog = 10_000 if lab.quick else 50_000
            rates = _rates(desk, backlog)
            rates["procrastinate: 100 at once"] = {"jobs/s": told["jobs/s"]}
            after = f"woken by NOTIFY, just after {backlog:,} rows"
            sent[after] = _delay(desk, count // 3, often)
            share = _share(desk, 200 if lab.quick else 1_000)
        finally:
            desk.close()
            polled.close()
    relayed = rates["outbox: one relay"]["rows/s"]
    aim = Aim("rows/s that one relay sends on PostgreSQL", relayed, at_least=LEAST_RATE)
    return [
        Report("Outbox: ms for an order, on PostgreSQL", costs, "an order"),
        Report("Outbox: rows and jobs a second, on PostgreSQL", rates, "", aims=[aim]),
        Report("Outbox: ms from the commit to the enqueue by a relay", sent, "the relay"),
        Report("Outbox: lateness in ms of jobs delayed by 500 ms", late, "the job"),
        Report("Outbox: rows that the fast path sends, beside a relay", share, ""),
    ]


_THEIRS = ("insert", "insert, then defer")


def _costs(desk: Desk, orders: int) -> Rows:
    task = desk.task.options(delay="1h")

    def on_commit() -> None:
        desk.place()
        task.enqueue(1)

    ways: dict[str, Callable[[], Any]] = {
        "insert": desk.place,
        "insert, then enqueue": on_commit,
        "outbox, fast path": lambda: desk.place(task, fast=True),
        "outbox, left to a relay": lambda: desk.place(task, fast=False),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(orders + 50):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if i >= 50:
                took[name].append((time.perf_counter() - begun) * 1e3)
    desk.outbox.relay(burst=True)
    return {name: percentiles(values) for name, values in took.items()}


def _rates(desk: Desk, rows: int) -> Rows:
    """The rows that one relay sends, and the jobs of one worker, from its start."""
    desk.leave(rows)
    begun = time.perf_counter()
    sent = desk.outbox.relay(burst=True)
    rate = sent / (time.perf_counter() - begun)
    begun = time.perf_counter()
    Worker(queues=[desk.queue], concurrency=100).run(burst=True)
    took = time.perf_counter() - begun
    return {"outbox: one relay": {"rows/s": rate}, "bide: 100 at once": {"jobs/s": rows / took}}


def _procrastinate(directory: Path, orders: int, jobs: int) -> dict[str, Any]:
    """The output of procrastinate."""
    python = install_python(PEERS / "procrastinate.py")
    command = [python, "-m", "benchmarks.peers.procrastinate", directory, orders, jobs]
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _delay(here: Desk, number: int, pauses: tuple[float, float]) -> Row:
    """Time from the commit until the server has the job, if a relay sends it."""
    found = []
    with here.relaying():
        time.sleep(0.5)
        for _ in range(number):
            id = here.place(here.task, fast=False)
            committed = time.time()
            time.sleep(random.uniform(*pauses))
            found.append((id, committed))
        time.sleep(1.5)
    jobs = here.queue.fetch_many([id for id, _ in found])
    Worker(queues=[here.queue]).run(burst=True)
    # A job without a delay is due at the moment at which the server gets it.
    return percentiles(
        max(0.0, job.due.timestamp() - committed) * 1e3
        for job, (_, committed) in zip(jobs, found, strict=True)
        if job is not None
    )


def _lateness(desk: Desk, count: int) -> Rows:
    """Lateness of jobs that a relay has sent, in turn with jobs that were enqueued at once."""
    task = desk.task.options(delay=f"{round(DELAY_S * 1000)}ms")
    ways: dict[str, Callable[[], str]] = {
        "enqueued at once": lambda: task.enqueue(1).id,
        "sent by the fast path": lambda: desk.place(task, fast=True),
        "sent by a relay": lambda: desk.place(task, fast=False),
    }
    due: dict[str, list[tuple[str, float]]] = {name: [] for name in ways}
    worker = Worker(queues=[desk.queue], concurrency=10)
    thread = threading.Thread(target=worker.run)
    with desk.relaying():
        thread.start()
        time.sleep(0.5)
        for _ in range(count):
            for name, way in ways.items():
                begun = time.time()
                due[name].append((way(), begun + DELAY_S))
                time.sleep(random.uniform(0.01, 0.03))
        time.sleep(DELAY_S + 1.5)
        worker.stop()
        thread.join()
    rows: Rows = {}
    for name, found in due.items():
        jobs = desk.queue.fetch_many([id for id, _ in found])
        rows[name] = percentiles(
            (job.started.timestamp() - at) * 1e3
            for job, (_, at) in zip(jobs, found, strict=True)
            if job is not None and job.started is not None
        )
    return rows


def _share(desk: Desk, orders: int) -> Rows:
    """The rows that the process sends which has committed, of all."""
    task = desk.task.options(delay="1h")
    desk.outbox.fast = True
    with desk.relaying() as sent:
        threads = [
            threading.Thread(target=lambda: [desk.place(task) for _ in range(orders // 4)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    row: Row = {"rows": orders, "by the relay": sent[0]}
    return {"four threads": row | {"by the fast path, %": 100 * (1 - sent[0] / orders)}}
