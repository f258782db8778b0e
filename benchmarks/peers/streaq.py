# /// script
# requires-python = ">=3.11"
# dependencies = ["streaq>=7,<8", "uvloop"]
# ///
"""streaq: coroutines; jobs are read from a stream, in batches."""

from contextlib import asynccontextmanager

from streaq import Worker

from benchmarks.peers.common import QUEUE, URL, mark, take_async, when

ABOUT = {
    "name": "streaq",
    "best": "streaq, 100",
    "package": "streaq",
    "acks": "when a job has ended; a job whose worker dies runs again once it has been idle for a "
    "minute",
    "delays": "a sorted set, which a worker looks at",
    "by_id": True,
}
WORKERS = {
    "streaq, 100": {"command": ["streaq", "run", "benchmarks.peers.streaq:busy"], "jobs": 2_000},
}
FAULTS = {
    "command": ["streaq", "run", "benchmarks.peers.streaq:plain"],
    "settings": "defaults, 16 at once",
}

plain = Worker(redis_url=URL, queue_name=QUEUE)
busy = Worker(redis_url=URL, queue_name=QUEUE, concurrency=100, anyio_kwargs={"use_uvloop": True})


async def job(number):
    mark(number)


async def held(number, seconds):
    await take_async(number, seconds)


tasks = {worker: {"job": worker.task(job), "held": worker.task(held)} for worker in (plain, busy)}


@asynccontextmanager
async def session():
    async with busy:
        yield


def _prepare(task, args, at):
    made = tasks[busy][task].enqueue(*args)
    return made if at is None else made.start(schedule=when(at))


async def aone(task, args, at):
    await _prepare(task, args, at)


async def amany(calls):
    await busy.enqueue_many([_prepare(*call) for call in calls])
