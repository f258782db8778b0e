# /// script
# requires-python = ">=3.11"
# dependencies = ["arq>=0.28,<1", "redis[hiredis]"]
# ///
"""arq: coroutines; a worker polls for what is due."""

import asyncio

from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.peers.common import QUEUE, URL, mark, take_async

ABOUT = {
    "package": "arq",
    "acks": "when a job has ended; one whose worker dies runs again when its key has expired, "
    "after the time-out (300 s)",
    "delays": "the same sorted set as all jobs",
}
WORKERS = {
    "arq, 100": {"command": ["arq", "benchmarks.peers.arq.Busy"], "jobs": 1_000},
}
FAULTS = {
    "command": ["arq", "benchmarks.peers.arq.Plain"],
    "settings": "defaults, 10 at once",
}


async def job(ctx, number):
    mark(number)


async def held(ctx, number, seconds):
    await take_async(number, seconds)


class Plain:
    functions = (job, held)
    redis_settings = RedisSettings.from_dsn(URL)
    queue_name = QUEUE


class Busy(Plain):
    max_jobs = 100


async def _enqueue(calls):
    pool = await create_pool(Plain.redis_settings, default_queue_name=QUEUE)
    try:
        for name, args, delay in calls:
            await pool.enqueue_job(name, *args, _defer_by=delay or None)
    finally:
        await pool.aclose()


def enqueue(numbers, worker):
    asyncio.run(_enqueue([("job", (n,), 0) for n in numbers]))


def hold(delays, seconds):
    asyncio.run(_enqueue([("held", (n, seconds), delay) for n, delay in delays.items()]))
