"""Queues and jobs for code on an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from bide import aio
from bide.clock import Duration
from bide.command import Command
from bide.dialogue import PATIENCE
from bide.ids import new_id
from bide.job import Snapshot
from bide.ops import inspect, manage, produce
from bide.ops.inspect import Counts
from bide.ops.produce import Prepared, Receipt
from bide.queue.core import JobView, QueueCore, not_found, read_cancel, read_receipts
from bide.retry import Retry
from bide.script import SERVER_CLOCK
from bide.task import Function

T = TypeVar("T")


class AsyncQueue(QueueCore):
    """A queue, for code on an event loop; one object for one loop."""

    def __init__(
        self,
        name: str = "default",
        *,
        url: str | None = None,
        prefix: str | None = None,
        patience: float = PATIENCE,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Name a queue; arguments and errors as for `Queue`."""
        super().__init__(name, prefix=prefix, clock=clock)
        self._client = aio.Client(url, patience=patience, clock=clock)
        self.url: Final = self._client.url

    async def enqueue(
        self,
        task: Function | str,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> AsyncJob:
        """Add a job that calls `task(*args, **kwargs)`; options as for `Queue.enqueue_call`."""
        return await self.enqueue_call(
            task,
            args,
            kwargs,
            delay=delay,
            at=at,
            priority=priority,
            job_id=job_id,
            timeout=timeout,
            retry=retry,
        )

    async def enqueue_call(
        self,
        task: Function | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
    ) -> AsyncJob:
        """Add a job; arguments and errors as for `Queue.enqueue_call`."""
        job = self.prepare(
            task,
            args,
            kwargs,
            delay=delay,
            at=at,
            priority=priority,
            job_id=job_id,
            timeout=timeout,
            retry=retry,
        )
        return (await self.enqueue_many([job]))[0]

    async def enqueue_many(self, jobs: Sequence[Prepared]) -> list[AsyncJob]:
        """Add prepared jobs, in one round trip up to some thousands; raises as `enqueue_call` does.

        Where the server becomes full in the middle, those before are added; enqueueing the same
        prepared jobs again adds the rest.
        """
        receipts: list[Receipt] = []
        with self._in_doubt(jobs):
            for trip in self._trips(jobs):
                receipts += read_receipts(trip, await self._client.attempt_many(trip))
        return [AsyncJob(self, r.id, receipt=r) for r in receipts]

    async def fetch(self, id: str) -> AsyncJob:
        """The job with this id, as it is now.

        Raises:
            JobNotFound: there is none, or no more.
        """
        job = (await self.fetch_many([id]))[0]
        if job is None:
            raise not_found(id)
        return job

    async def fetch_many(self, ids: Sequence[str]) -> list[AsyncJob | None]:
        """Jobs by id in one round trip; None for one that is not there."""
        pages = await self._client.run_many(inspect.fetch_many(self.keys, ids))
        return [s and AsyncJob(self, s.id, snapshot=s) for page in pages for s in page]

    async def jobs(self, state: str, start: int = 0, count: int = 50) -> list[AsyncJob]:
        """A page of the jobs in one state: due ones in the order they run, others newest first."""
        ids = await self._client.run(inspect.listing(self.keys, state, start, count))
        return [job for job in await self.fetch_many(ids) if job is not None]

    async def counts(self) -> Counts:
        """How many jobs are in each state."""
        return await self._client.run(inspect.counts(self.keys))

    async def cancel(self, id: str) -> bool:
        """Take a job back before it runs; False if it is too late or there is none."""
        return read_cancel(await self._client.run(manage.cancel(self.keys, [id])))

    async def pause(self) -> None:
        """Let no job be claimed; those that run go on."""
        await self._client.run(manage.pause(self.keys))

    async def resume(self) -> None:
        """Let jobs be claimed again."""
        await self._client.run(manage.resume(self.keys))

    async def empty(self) -> int:
        """Remove all delayed and waiting jobs, in bounded steps; how many there were."""
        begin = new_id()
        step = await self._client.run(manage.empty(self.keys, begin))
        while step.busy:
            step = await self._client.run(manage.empty(self.keys, begin))
        removed = step.aside
        while step.more:
            step = await self._client.run(manage.empty(self.keys, None))
        return removed

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        await self._client.close()

    async def _run(self, command: Command[T]) -> T:
        return await self._client.run(command)


class AsyncJob(JobView):
    """A job; what it says of itself is what `await job.refresh()` last read."""

    def __init__(
        self,
        queue: AsyncQueue,
        id: str,
        receipt: Receipt | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(id, receipt, snapshot)
        self.queue: Final = queue

    async def refresh(self) -> AsyncJob:
        """Read the job again.

        Raises:
            JobNotFound: it is no more.
        """
        self._snapshot = (await self.queue.fetch(self.id))._snapshot
        return self

    async def cancel(self) -> bool:
        """Take the job back before it runs; False if it is too late."""
        self._snapshot = None
        return await self.queue.cancel(self.id)

    async def reschedule(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Give the job another due time.

        Raises:
            JobStateError: it runs or has ended.
            JobNotFound: it is no more.
        """
        when = produce.when(delay, at)
        self._moved(
            await self.queue._run(manage.reschedule(self.queue.keys, self.id, when)), "rescheduled"
        )

    async def promote(self) -> None:
        """Make the job due now; raises as `reschedule` does."""
        self._moved(await self.queue._run(manage.promote(self.queue.keys, self.id)), "promoted")

    async def delete(self) -> bool:
        """Remove every trace of the job; False if there was none.

        Raises:
            JobStateError: it runs.
        """
        return self._removed(await self.queue._run(manage.delete(self.queue.keys, [self.id])))
