"""A job, for code on an event loop."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from bide.client.url import hide_password
from bide.model.durations import Duration, to_us
from bide.model.job import Snapshot
from bide.model.payload.signing import Seal
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.queue import loops
from bide.queue.explain import Read, Reason, explain
from bide.queue.job_view import ANNOUNCE_US, LOOK_EVERY, PENDING, JobView

if TYPE_CHECKING:
    from bide.queue._async.queue import AsyncQueue

R = TypeVar("R")


class AsyncJob(JobView[R]):
    """A job; its properties have the values that `await job.refresh()` last read."""

    queue: AsyncQueue

    @property
    def _seal(self) -> Seal | None:
        return self.queue._pickle_seal

    @property
    def _place(self) -> str:
        return f" in queue {self.queue.name!r} on {hide_password(self.queue.url)}"

    async def refresh(self) -> AsyncJob[R]:
        """Read the job again; concurrent reads share round trips.

        Raises:
            JobNotFound: the job no longer exists.
        """
        binding = self.queue._binding
        (snapshot,) = await binding.client.share(job_commands.fetch(binding.keys, [self.id]))
        if snapshot is None:
            raise self._not_found()
        self._snapshot = snapshot
        return self

    async def wait(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended; return the result of the task.

        Args:
            timeout: maximum time to wait; None for no limit.

        Raises:
            JobFailed: the job has failed, and is not retried.
            JobCancelled: the job was cancelled.
            JobWaitTimeout: the job has not ended in time; it continues.
            JobNotFound: the job no longer exists.
        """
        seconds = None if timeout is None else to_us(timeout, "timeout") / 1e6
        until = None if seconds is None else time.monotonic() + seconds
        watch = job_commands.await_end(self.queue.keys, self.id, ANNOUNCE_US)
        waiters = self.queue.keys["waiters"]
        async with self.queue._client.waiting_for(waiters, self.id) as waiter:
            while (state := await self.queue._client.share(watch)) != "gone":
                if state not in PENDING and (await self.refresh())._ended():
                    return self._outcome()
                look_at = time.monotonic() + LOOK_EVERY
                await waiter.wait(look_at if until is None else min(look_at, until))
                if until is not None and time.monotonic() >= until:
                    if (await self.refresh())._ended():
                        return self._outcome()
                    raise self._late(seconds or 0)
        raise self._not_found()

    async def why(self) -> list[Reason]:
        """Return the reasons why the job does not run now; none once it has started.

        Raises:
            JobNotFound: the job no longer exists.
        """
        workers = await self.queue.workers()
        keys = self.queue.keys
        (snapshot,), counts = await self.queue._client.run_many(
            [job_commands.fetch(keys, [self.id]), job_commands.counts(keys)]
        )
        if snapshot is None:
            raise self._not_found()
        self._snapshot = snapshot
        return explain(Read(self.queue.name, snapshot, counts, workers))

    async def cancel(self, running: bool = True) -> bool:
        """Cancel the job before it runs, or ask a running job to stop; see `Queue.cancel`."""
        self._snapshot = None
        return await self.queue.cancel(self.id, running)

    async def reschedule(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Give the job another due time.

        Raises:
            JobStateError: the job runs or has ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.reschedule(
            self.queue.keys, [self.id], enqueue_commands.when(delay, at)
        )
        self._moved((await self.queue._run(command))[0], "rescheduled", "a delayed or waiting one")

    async def promote(self) -> None:
        """Make the job due now; raises as `reschedule` does."""
        command = job_commands.promote(self.queue.keys, [self.id])
        self._moved((await self.queue._run(command))[0], "promoted", "a delayed or waiting one")

    async def retry(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Run a finished job again; its attempts are counted from 1 again.

        Raises:
            JobStateError: the job has not ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.retry(self.queue.keys, [self.id], enqueue_commands.when(delay, at))
        self._moved((await self.queue._run(command))[0], "retried", "one that has ended")

    async def delete(self) -> bool:
        """Delete the job and all its data; return False if it did not exist.

        Raises:
            JobStateError: the job runs.
        """
        return self._removed((await self.queue.delete_many([self.id]))[0])

    def _unread(self) -> Snapshot:
        return loops.unread(self)
