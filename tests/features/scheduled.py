"""Schedules that a module declares, as a worker's modules do."""

from __future__ import annotations

from bide import AsyncQueue, Queue, current_job
from tests.support import jobs

queue = Queue("declared")
aqueue = AsyncQueue("declared-too")


@queue.every("50ms", missed="all", limit=3, args=(1,), description="a beat", priority=7)
def beat(n: int, more: str = "") -> str:
    job = current_job()
    jobs.note(job.id, job.schedule, job.schedule_time, job.due)
    return f"{n}{more}"


@queue.cron("0 9 * * 1-5", tz="Europe/Paris", name="morning")
@queue.cron("0 18 * * *", name="evening", kwargs={"n": 2})
@queue.task(timeout=7, retry=2)
def report(n: int = 1) -> None: ...


@aqueue.cron("0 9 * * *")
async def later() -> None: ...
