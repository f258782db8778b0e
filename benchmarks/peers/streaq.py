# /// script
# requires-python = ">=3.11"
# dependencies = ["streaq>=7,<8"]
# ///
"""streaq: coroutines; jobs are read from a stream, in batches."""

import asyncio

from streaq import Worker

from benchmarks.peers.common import QUEUE, URL, mark, take_async

ABOUT = {
    "package": "streaq",
    "acks": "when a job has ended; one whose worker dies runs again once it has been idle for a "
    "minute",
    "delays": "a sorted set, which a worker looks at",
}
WORKERS = {
    "streaq, 100": {"command": ["streaq", "run", "benchmarks.peers.streaq:busy"], "jobs": 2_000},
}
FAULTS = {
    "command": ["streaq", "run", "benchmarks.peers.streaq:plain"],
    "settings": "defaults, 16 at once",
}

plain = Worker(redis_url=URL, queue_name=QUEUE)
busy = Worker(redis_url=URL, queue_name=QUEUE, concurrency=100)


async def job(number):
    mark(number)


async def held(number, seconds):
    await take_async(number, seconds)


tasks = {worker: (worker.task(job), worker.task(held)) for worker in (plain, busy)}


def enqueue(numbers, worker):
    async def send():
        async with busy:
            await busy.enqueue_many([tasks[busy][0].enqueue(n) for n in numbers])

    asyncio.run(send())


def hold(delays, seconds):
    async def send():
        async with plain:
            for number, delay in delays.items():
                made = tasks[plain][1].enqueue(number, seconds)
                await (made.start(delay=delay) if delay else made)

    asyncio.run(send())
