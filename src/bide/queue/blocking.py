"""Queues and jobs for code that blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from bide import sync
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


class Queue(QueueCore):
    """A queue, for code that blocks; safe to share by threads."""

    def __init__(
        self,
        name: str = "default",
        *,
        url: str | None = None,
        prefix: str | None = None,
        patience: float = PATIENCE,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Name a queue; nothing is sent before the first call.

        Args:
            name: without braces, spaces or control characters.
            url: of the server; else `$BIDE_URL`, else the local default.
            prefix: of all keys: separates applications that share a server; else `$BIDE_PREFIX`,
                else `bide`.
            patience: seconds for which a call is repeated when the connection breaks.
            clock: which clock the scripts are built for (the tests have one that can be moved).

        Raises:
            UsageError: a name or the URL cannot be meant.
        """
        super().__init__(name, prefix=prefix, clock=clock)
        self._client = sync.Client(url, patience=patience, clock=clock)
        self.url: Final = self._client.url

    def enqueue(
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
    ) -> Job:
        """Add a job that calls `task(*args, **kwargs)`; options as for `enqueue_call`."""
        return self.enqueue_call(
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

    def enqueue_call(
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
    ) -> Job:
        """Add a job that calls `task(*args, **kwargs)` when it is due.

        Args:
            task: a function at the top level of a module, or its name `"module:function"`.
            args: positional arguments; with `kwargs` they must fit JSON.
            kwargs: keyword arguments.
            delay: seconds, a `timedelta` or text such as `"30m"`, from now on the server's clock.
            at: an aware `datetime` instead of a delay; one that has passed means now.
            priority: 0 to 9; 9 runs first; 5 by default.
            job_id: your own id: while a job has it, enqueueing it again changes nothing.
            timeout: how long the job may run; five minutes by default.
            retry: what happens when it raises: `Retry(...)`, or a number of retries.

        Raises:
            UsageError: an option cannot be meant.
            PayloadError: the arguments do not fit JSON, or take more than a megabyte.
            ServerFull: the server takes no more; nothing was changed.
            ServerUnavailable: no answer; the job may exist. Its id is in the error's `job_ids`:
                repeating with `job_id=` is safe.
        """
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
        return self.enqueue_many([job])[0]

    def enqueue_many(self, jobs: Sequence[Prepared]) -> list[Job]:
        """Add prepared jobs, in one round trip up to some thousands; raises as `enqueue_call` does.

        Where the server becomes full in the middle, those before are added; enqueueing the same
        prepared jobs again adds the rest.
        """
        receipts: list[Receipt] = []
        with self._in_doubt(jobs):
            for trip in self._trips(jobs):
                receipts += read_receipts(trip, self._client.attempt_many(trip))
        return [Job(self, r.id, receipt=r) for r in receipts]

    def fetch(self, id: str) -> Job:
        """The job with this id, as it is now.

        Raises:
            JobNotFound: there is none, or no more.
        """
        job = self.fetch_many([id])[0]
        if job is None:
            raise not_found(id)
        return job

    def fetch_many(self, ids: Sequence[str]) -> list[Job | None]:
        """Jobs by id in one round trip; None for one that is not there."""
        pages = self._client.run_many(inspect.fetch_many(self.keys, ids))
        return [s and Job(self, s.id, snapshot=s) for page in pages for s in page]

    def jobs(self, state: str, start: int = 0, count: int = 50) -> list[Job]:
        """A page of the jobs in one state: due ones in the order they run, others newest first."""
        ids = self._client.run(inspect.listing(self.keys, state, start, count))
        return [job for job in self.fetch_many(ids) if job is not None]

    def counts(self) -> Counts:
        """How many jobs are in each state."""
        return self._client.run(inspect.counts(self.keys))

    def cancel(self, id: str) -> bool:
        """Take a job back before it runs; False if it is too late or there is none."""
        return read_cancel(self._client.run(manage.cancel(self.keys, [id])))

    def pause(self) -> None:
        """Let no job be claimed; those that run go on."""
        self._client.run(manage.pause(self.keys))

    def resume(self) -> None:
        """Let jobs be claimed again."""
        self._client.run(manage.resume(self.keys))

    def empty(self) -> int:
        """Remove all delayed and waiting jobs, in bounded steps; how many there were."""
        begin = new_id()
        step = self._client.run(manage.empty(self.keys, begin))
        while step.busy:
            step = self._client.run(manage.empty(self.keys, begin))
        removed = step.aside
        while step.more:
            step = self._client.run(manage.empty(self.keys, None))
        return removed

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._client.close()

    def _run(self, command: Command[T]) -> T:
        return self._client.run(command)


class Job(JobView):
    """A job; what it says of itself is read from the server when first asked, or by `refresh`."""

    def __init__(
        self,
        queue: Queue,
        id: str,
        receipt: Receipt | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(id, receipt, snapshot)
        self.queue: Final = queue

    def refresh(self) -> Job:
        """Read the job again.

        Raises:
            JobNotFound: it is no more.
        """
        self._snapshot = self.queue.fetch(self.id)._snapshot
        return self

    def cancel(self) -> bool:
        """Take the job back before it runs; False if it is too late."""
        self._snapshot = None
        return self.queue.cancel(self.id)

    def reschedule(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Give the job another due time.

        Raises:
            JobStateError: it runs or has ended.
            JobNotFound: it is no more.
        """
        when = produce.when(delay, at)
        self._moved(
            self.queue._run(manage.reschedule(self.queue.keys, self.id, when)), "rescheduled"
        )

    def promote(self) -> None:
        """Make the job due now; raises as `reschedule` does."""
        self._moved(self.queue._run(manage.promote(self.queue.keys, self.id)), "promoted")

    def delete(self) -> bool:
        """Remove every trace of the job; False if there was none.

        Raises:
            JobStateError: it runs.
        """
        return self._removed(self.queue._run(manage.delete(self.queue.keys, [self.id])))

    def _seen(self) -> Snapshot:
        if self._snapshot is None:
            self.refresh()
        return super()._seen()
