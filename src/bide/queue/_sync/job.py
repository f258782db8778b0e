"""A job, for code that blocks."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

from bide.model.durations import Duration, to_us
from bide.model.job import Snapshot
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Receipt
from bide.queue.explain import Reason, explain, explain_calls, explain_dependencies
from bide.queue.job_view import ANNOUNCE_US, LOOK_EVERY, PENDING, JobView, not_found

if TYPE_CHECKING:
    from bide.queue._sync.queue import Queue

R = TypeVar("R")


class Job(JobView[R]):
    """A job; its first property access reads it from the server, and `refresh` reads it again."""

    def __init__(
        self,
        queue: Queue,
        id: str,
        receipt: Receipt | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(id, receipt, snapshot, queue._pickle_seal)
        self.queue: Final = queue

    def refresh(self) -> Job[R]:
        """Read the job again.

        Raises:
            JobNotFound: the job no longer exists.
        """
        self._snapshot = self.queue.fetch(self.id)._snapshot
        return self

    def wait(self, timeout: Duration | None = None) -> R:
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
        with self.queue._client.waiting_for(self.queue.keys["waiters"], self.id) as waiter:
            while (state := self.queue._run(watch)) != "gone":
                if state not in PENDING and self.refresh()._ended():
                    return self._outcome()
                look_at = time.monotonic() + LOOK_EVERY
                waiter.wait(look_at if until is None else min(look_at, until))
                if until is not None and time.monotonic() >= until:
                    if self.refresh()._ended():
                        return self._outcome()
                    raise self._late(seconds or 0)
        raise not_found(self.id)

    def why(self) -> list[Reason]:
        """Return the reasons why the job does not run now; none once it has started.

        Raises:
            JobNotFound: the job no longer exists.
        """
        workers = self.queue.workers()
        results = self.queue._client.run_many(explain_calls(self.queue, self.id))
        return explain(explain_dependencies(self.queue, self, results, workers))

    def cancel(self, running: bool = True) -> bool:
        """Cancel the job before it runs; ask a running job to stop; see `Queue.cancel`."""
        self._snapshot = None
        return self.queue.cancel(self.id, running)

    def reschedule(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Give the job another due time.

        Raises:
            JobStateError: the job runs or has ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.reschedule(
            self.queue.keys, [self.id], enqueue_commands.when(delay, at)
        )
        self._moved(self.queue._run(command)[0], "rescheduled", "a delayed or waiting one")

    def promote(self) -> None:
        """Make the job due now; raises as `reschedule` does."""
        command = job_commands.promote(self.queue.keys, [self.id])
        self._moved(self.queue._run(command)[0], "promoted", "a delayed or waiting one")

    def retry(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Run a finished job again; its attempts are counted from 1 again.

        Raises:
            JobStateError: the job has not ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.retry(self.queue.keys, [self.id], enqueue_commands.when(delay, at))
        self._moved(self.queue._run(command)[0], "retried", "one that has ended")

    def delete(self) -> bool:
        """Delete the job and all its data; return False if it did not exist.

        Raises:
            JobStateError: the job runs.
        """
        return self._removed(self.queue.delete_many([self.id])[0])

    def _seen(self) -> Snapshot:
        if self._snapshot is None:
            self.refresh()
        return super()._seen()
