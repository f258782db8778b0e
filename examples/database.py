"""A pool of database connections that a worker opens once, and a fence against an old run.

Tasks borrow a connection each; the pool is closed when the worker stops. `token` only grows, so a
run that was frozen and comes back late changes no row. It prints:

    20 bookings, 190 in the account
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue

import bide

queue = bide.Queue("bank")

SCHEMA = "CREATE TABLE IF NOT EXISTS bookings (job TEXT PRIMARY KEY, amount INT, token INT)"


class Pool(SimpleQueue[sqlite3.Connection]):
    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        db = self.get()
        try:
            with db:  # commits, or rolls back
                yield db
        finally:
            self.put(db)


@bide.resource
def database() -> Iterator[Pool]:
    pool = Pool()
    for _ in range(4):
        pool.put(sqlite3.connect("bank.db", check_same_thread=False))
    with pool.connection() as db:
        db.execute(SCHEMA)
    yield pool
    while not pool.empty():
        pool.get().close()


@queue.task(retry=3)
def book(amount: int, pool: Pool = database.injected) -> None:
    job = bide.current_job()
    with pool.connection() as db:
        db.execute(
            "INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT (job) DO UPDATE"
            " SET amount = excluded.amount, token = excluded.token WHERE token < excluded.token",
            (job.id, amount, job.token),
        )


def main() -> None:
    for job in queue.enqueue_many([book.prepare(n) for n in range(20)]):
        job.wait(timeout=30)
    with closing(sqlite3.connect("bank.db")) as db:
        count, total = db.execute("SELECT count(*), sum(amount) FROM bookings").fetchone()
    print(f"{count} bookings, {total} in the account")
