# /// script
# requires-python = ">=3.11"
# dependencies = ["pydocket>=0.27,<1", "redis[hiredis]", "uvloop"]
# ///
"""Docket: coroutines; jobs are read from a stream, and a scheduler polls for what is due."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from docket import Docket, Worker

from benchmarks.peers.common import QUEUE, URL, mark, take_async, when

ABOUT = {
    "name": "Docket",
    "best": "Docket, 100",
    "package": "pydocket",
    "acks": "when a job has ended; a job whose worker dies runs again after the redelivery "
    "time-out (5 minutes)",
    "delays": "a sorted set, from which they move to a stream; a worker looks four times a second",
    "by_id": True,
    "lateness": ["Docket, 100", "Docket, 100, polling every 10 ms"],
}
_RUN = ["docket", "worker", "--docket", QUEUE, "--url", URL, "--tasks"]
_TASKS = ["benchmarks.peers.docket:tasks", "--logging-level", "WARNING"]
_BUSY = [*_RUN, *_TASKS, "--concurrency", "100"]
WORKERS = {
    "Docket, 100": {"command": _BUSY, "jobs": 1_000},
    # Its command line takes whole seconds only.
    "Docket, 100, polling every 10 ms": {
        "command": ["python", "-m", "benchmarks.peers.docket"],
        "jobs": 1_000,
    },
}
FAULTS = {
    "command": [*_RUN, *_TASKS],
    "settings": "defaults, 10 at once",
}


async def job(number: int) -> None:
    mark(number)


async def held(number: int, seconds: float) -> None:
    await take_async(number, seconds)


tasks = [job, held]


@asynccontextmanager
async def session():
    global docket
    async with Docket(name=QUEUE, url=URL) as docket:
        for task in tasks:
            docket.register(task)
        yield


async def aone(task, args, at):
    await docket.add(task, when=when(at) or datetime.now(UTC))(*args)


if __name__ == "__main__":
    asyncio.run(
        Worker.run(
            QUEUE,
            URL,
            concurrency=100,
            minimum_check_interval=timedelta(milliseconds=10),
            scheduling_resolution=timedelta(milliseconds=10),
            tasks=["benchmarks.peers.docket:tasks"],
        )
    )
