# /// script
# requires-python = ">=3.11"
# dependencies = ["arq>=0.28,<1", "redis[hiredis]", "uvloop"]
# ///
"""arq: coroutines; a worker polls for what is due."""

from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.peers.common import QUEUE, URL, mark, take_async, when

ABOUT = {
    "name": "arq",
    "best": "arq, 100",
    "package": "arq",
    "acks": "when a job has ended; a job whose worker dies runs again when its key has expired, "
    "after the time-out (300 s)",
    "delays": "the same sorted set as all jobs, which a worker looks at twice a second",
    "by_id": True,
}
_QUIET = ["arq", "--custom-log-dict", "benchmarks.peers.arq.quiet"]
WORKERS = {
    "arq, 100": {"command": [*_QUIET, "benchmarks.peers.arq.Busy"], "jobs": 1_000},
}
FAULTS = {
    "command": ["arq", "benchmarks.peers.arq.Plain"],
    "settings": "defaults, 10 at once",
}


async def job(ctx, number):
    mark(number)


async def held(ctx, number, seconds):
    await take_async(number, seconds)


quiet = {"version": 1, "loggers": {"arq": {"level": "WARNING"}}}


class Plain:
    functions = (job, held)
    redis_settings = RedisSettings.from_dsn(URL)
    queue_name = QUEUE


Busy = {**vars(Plain), "max_jobs": 100}  # a class would not pass on what it inherits


@asynccontextmanager
async def session():
    global pool
    pool = await create_pool(Plain.redis_settings, default_queue_name=QUEUE)
    try:
        yield
    finally:
        await pool.aclose()


async def aone(task, args, at):
    await pool.enqueue_job(task, *args, _defer_until=when(at))
