# /// script
# requires-python = ">=3.11"
# dependencies = ["taskiq>=0.13,<1", "taskiq-redis>=1.2,<2", "redis[hiredis]", "uvloop"]
# ///
"""taskiq: coroutines, in one worker process; its scheduler, for delays, is a process of its own.

Its broker of lists is the faster one; the one of streams acknowledges. The scheduler looks for new
schedules once a minute unless it is told an interval: a second is the least.
"""

from contextlib import asynccontextmanager

from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

from benchmarks.peers.common import QUEUE, URL, mark, take_async, when

ABOUT = {
    "name": "taskiq",
    "best": "taskiq, scheduler",
    "package": "taskiq",
    "acks": "never, with the broker of lists: a job that a worker takes off the list is lost "
    "with the worker",
    "delays": "a list for each minute, which a scheduler, a process of its own, looks at every "
    "second",
    "by_id": True,
}


def _work(*options):
    return ["taskiq", "worker", "benchmarks.peers.taskiq:broker", "--workers", "1", *options]


def _beside(command):
    """The same, with a scheduler beside it."""
    scheduler = "taskiq scheduler benchmarks.peers.taskiq:scheduler --update-interval 1"
    return ["sh", "-c", f'{scheduler} --log-level WARNING & exec "$@"', "sh", *command]


_BUSY = _work("--max-async-tasks", "100", "--log-level", "WARNING")
WORKERS = {
    "taskiq, 100": {"command": _BUSY, "jobs": 3_000},
    "taskiq, scheduler": {"command": _beside(_BUSY), "jobs": 3_000},
}
FAULTS = {
    "command": _beside(_work()),
    "settings": "defaults (no acks) except the interval of the scheduler (1 s), 100 at once",
}

broker = ListQueueBroker(URL, queue_name=QUEUE)
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="job")
async def job(number):
    mark(number)


@broker.task(task_name="held")
async def held(number, seconds):
    await take_async(number, seconds)


tasks = {"job": job, "held": held}


@asynccontextmanager
async def session():
    await broker.startup()
    await source.startup()
    yield


async def aone(task, args, at):
    if at is None:
        await tasks[task].kiq(*args)
    else:
        await tasks[task].schedule_by_time(source, when(at), *args)
