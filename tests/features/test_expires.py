"""Jobs that lapse, as users meet them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from bide import AsyncQueue, JobCancelled, Queue, Worker, testing
from bide.model.job import State
from tests.support import jobs as tasks

TASK = f"{tasks.__name__}:add"


def test_a_job_lapses_and_its_neighbours_run() -> None:
    with testing.start() as bed:
        queue = Queue("mail")
        many = [queue.prepare(TASK, [n], expires="5m" if n % 2 else None) for n in range(6)]
        jobs = queue.enqueue_many(many)
        moment = queue.enqueue(TASK, 6, expires=datetime.now(UTC) + timedelta(hours=1))
        bed.advance("10m")
        Worker(queue, modules=tasks.__name__).run(burst=True)
        states = [job.refresh().state for job in [*jobs, moment]]
        assert states == [State.COMPLETED, State.CANCELLED] * 3 + [State.COMPLETED]
        assert [job.expired for job in jobs] == [False, True] * 3
        with pytest.raises(JobCancelled, match="it had not started when it expired"):
            jobs[1].wait()
        totals = queue.counts().totals
        assert (totals["cancelled"], totals["expired"]) == (3, 3)
        assert jobs[1].expires == jobs[1].due + timedelta(minutes=5)
        jobs[1].retry()
        Worker(queue, modules=tasks.__name__).run(burst=True)
        assert jobs[1].refresh().state == State.COMPLETED


def test_the_same_awaited_and_by_default_of_a_task() -> None:
    async def use(queue: AsyncQueue) -> None:
        job = await queue.enqueue(TASK, 1, expires="5m")
        kept = await queue.enqueue(TASK, 2)
        bed.advance("10m")
        await Worker(queue, modules=tasks.__name__).arun(burst=True)
        with pytest.raises(JobCancelled):
            await job.wait()
        assert await kept.wait() == 2
        await queue.close()

    with testing.start() as bed:
        asyncio.run(use(AsyncQueue("mail")))
