# /// script
# requires-python = ">=3.11"
# dependencies = ["procrastinate>=3,<4", "psycopg[binary,pool]>=3.2", "sqlalchemy>=2"]
# ///
"""procrastinate: jobs are rows in PostgreSQL. Beside `benchmarks.outbox`, not on Redis.

Prints its figures as JSON: ms for each order that is inserted and then deferred, ms for each order
that is only inserted, in turn, and jobs/s of a worker.
"""

import asyncio
import json
import sys
import time

import procrastinate
import sqlalchemy as sa

directory, orders, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
conninfo = f"host={directory} user=bide dbname=postgres"
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=conninfo))


@app.task(name="nothing")
async def nothing(order):
    pass


async def drain():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await nothing.batch_defer_async(*({"order": i} for i in range(jobs)))
        begun = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
        took = time.perf_counter() - begun
        done = [*await app.job_manager.list_jobs_async(status="succeeded")]
        assert len(done) == jobs, len(done)
        return jobs / took


def cost():
    engine = sa.create_engine(f"postgresql+psycopg://bide@/postgres?host={directory}")
    insert = sa.text("INSERT INTO orders DEFAULT VALUES")
    connector = procrastinate.SyncPsycopgConnector(conninfo=conninfo)
    deferred, plain = [], []
    with procrastinate.App(connector=connector).open() as blocking:
        task = blocking.configure_task("nothing", schedule_in={"hours": 1})
        for i in range(orders + 50):
            begun = time.perf_counter()
            with engine.begin() as connection:
                connection.execute(insert)
            middle = time.perf_counter()
            with engine.begin() as connection:
                connection.execute(insert)
            task.defer(order=1)
            if i >= 50:
                plain.append((middle - begun) * 1e3)
                deferred.append((time.perf_counter() - middle) * 1e3)
    return deferred, plain


rate = asyncio.run(drain())
deferred, plain = cost()
print(json.dumps({"jobs/s": rate, "deferred": deferred, "plain": plain}))
