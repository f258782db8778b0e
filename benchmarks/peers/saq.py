# /// script
# requires-python = ">=3.11"
# dependencies = ["saq[redis]>=0.26,<1", "redis[hiredis]", "uvloop", "typing_extensions"]
# ///
"""SAQ: coroutines; each of a worker's slots waits at the queue itself."""

from contextlib import asynccontextmanager

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from benchmarks.peers.common import QUEUE, URL, mark, take_async

ABOUT = {
    "name": "SAQ",
    "best": "SAQ, 100",
    "package": "saq",
    "acks": "when a job has ended; after its time-out (10 s) a sweep finds a job whose worker "
    "died, and runs it again only if it has retries",
    "delays": "a sorted set, which a worker looks at every second",
    "by_id": True,
}
WORKERS = {
    "SAQ, 100": {"command": ["saq", "benchmarks.peers.saq.busy", "-q"], "jobs": 2_000},
}
FAULTS = {
    "command": ["saq", "benchmarks.peers.saq.plain", "-q"],
    "settings": "defaults, 10 at once",
}


async def job(ctx, *, number):
    mark(number)


async def held(ctx, *, number, seconds):
    await take_async(number, seconds)


queue = RedisQueue(Redis.from_url(URL), name=QUEUE)
plain = {"queue": queue, "functions": [job, held]}
busy = {**plain, "concurrency": 100}


@asynccontextmanager
async def session():
    global producer
    producer = RedisQueue(Redis.from_url(URL), name=QUEUE, max_concurrent_ops=100)
    await producer.connect()
    try:
        yield
    finally:
        await producer.disconnect()


async def aone(task, args, at):
    scheduled = {} if at is None else {"scheduled": at}
    await producer.enqueue(
        task, **dict(zip(("number", "seconds"), args, strict=False)), **scheduled
    )
