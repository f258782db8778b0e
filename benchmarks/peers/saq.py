# /// script
# requires-python = ">=3.11"
# dependencies = ["saq[redis]>=0.26,<1", "redis[hiredis]", "typing_extensions"]
# ///
"""SAQ: coroutines; each of a worker's slots waits at the queue itself."""

import asyncio
import time

from saq import Queue

from benchmarks.peers.common import QUEUE, URL, mark, take_async

ABOUT = {
    "package": "saq",
    "acks": "when a job has ended; one whose worker dies is looked for by a sweep once its "
    "time-out (10 s) has passed, and runs again only if it has retries",
    "delays": "a sorted set, which a worker looks at every second",
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


queue = Queue.from_url(URL, name=QUEUE)
plain = {"queue": queue, "functions": [job, held]}
busy = {**plain, "concurrency": 100}


async def _enqueue(calls):
    queue = Queue.from_url(URL, name=QUEUE)
    await queue.connect()
    for name, kwargs, delay in calls:
        scheduled = {"scheduled": time.time() + delay} if delay else {}
        await queue.enqueue(name, **kwargs, **scheduled)
    await queue.disconnect()


def enqueue(numbers, worker):
    asyncio.run(_enqueue([("job", {"number": n}, 0) for n in numbers]))


def hold(delays, seconds):
    calls = [("held", {"number": n, "seconds": seconds}, delay) for n, delay in delays.items()]
    asyncio.run(_enqueue(calls))
