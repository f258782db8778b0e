"""Jobs, and tasks as functions that can be called and enqueued, for code on an event loop."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from bide.client.url import hide_password
from bide.errors import BideError
from bide.model.durations import Duration, to_us
from bide.model.job import Snapshot
from bide.model.options import Options, TaskOptions
from bide.model.payload.signing import Seal
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.queue import loops
from bide.queue.binding import note_task_queue
from bide.queue.core import TaskCall, as_due, enrolled
from bide.queue.job_view import (
    ANNOUNCE_US,
    LOOK_EVERY,
    PENDING,
    WARN_AFTER,
    JobView,
    Read,
    Reason,
    explain,
    warn_held,
)
from bide.tasks.registry import NamedTask

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

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
            ResultDropped: the server dropped the result, because the results of its queue exceeded
                their budget of bytes.
            JobNotFound: the job no longer exists.
        """
        seconds = None if timeout is None else to_us(timeout, "timeout") / 1e6
        until = None if seconds is None else time.monotonic() + seconds
        watch = job_commands.await_end(self.queue.keys, self.id, ANNOUNCE_US)
        waiters, warn_at = self.queue.keys["waiters"], time.monotonic() + WARN_AFTER
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
                if time.monotonic() >= warn_at:
                    warn_at = float("inf")
                    with suppress(BideError):
                        warn_held(self.id, await self.why())
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
            UsageError: neither or both of `delay` and `at` are given, or one is invalid.
            JobStateError: the job runs or has ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.reschedule(
            self.queue.keys, [self.id], enqueue_commands.given_when(delay, at)
        )
        self._moved((await self.queue._run(command))[0], "rescheduled", "a delayed or waiting job")

    async def promote(self) -> None:
        """Make the job due now; raises as `reschedule` does."""
        command = job_commands.promote(self.queue.keys, [self.id])
        self._moved((await self.queue._run(command))[0], "promoted", "a delayed or waiting job")

    async def retry(self, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Run a finished job again; its attempts are counted from 1 again.

        Raises:
            JobStateError: the job has not ended.
            JobNotFound: the job no longer exists.
        """
        command = job_commands.retry(self.queue.keys, [self.id], enqueue_commands.when(delay, at))
        self._moved((await self.queue._run(command))[0], "retried", "a finished job")

    async def delete(self) -> bool:
        """Delete the job and all its data; return False if it did not exist.

        Raises:
            JobStateError: the job runs.
        """
        return self._removed((await self.queue.delete_many([self.id]))[0])

    def _unread(self) -> Snapshot:
        return loops.unread(self)


P = ParamSpec("P")
C = TypeVar("C")
"""The return type of a call: for a coroutine function, a coroutine."""
"""The type of the job's result."""


class AwaitedCall(TaskCall[P, R, "AsyncQueue"]):
    """A task with options, for code on an event loop."""

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """Add a job with these arguments; raises as `Queue.enqueue_call` does."""
        return await self.queue.enqueue_call(
            self._given or self.function, args, kwargs, **self._options
        )

    def later(self, when: float | str | timedelta | datetime) -> AwaitedCall[P, R]:
        """Return the task with a due time: a delay, or an aware `datetime`."""
        return self.options(**as_due(when))

    def options(
        self, *, queue: AsyncQueue | None = None, **options: Unpack[Options]
    ) -> AwaitedCall[P, R]:
        """Return the task with other options, separate from the function's own arguments."""
        return AwaitedCall(self.function, queue or self.queue, self._over(options), self._given)


class AsyncTask(AwaitedCall[P, R], NamedTask, Generic[P, C, R]):
    """A function of a queue: call it to run it here, enqueue it to run it in a worker when due."""

    name: str
    """The name by which workers find it."""

    def __init__(
        self,
        function: Callable[P, C],
        queue: AsyncQueue,
        options: TaskOptions,
        name: str | None = None,
    ) -> None:
        """Register the function; a worker that imports its module can run it.

        `function` may be a task of another queue: its options apply, unless others are given.

        Raises:
            UsageError: a worker could not find the function by its name, another task has the name,
                the function is a method, or an option is invalid.
        """
        function, self.name, given = enrolled(function, options, name)
        super().__init__(function, queue, Options(), given)
        note_task_queue(self.name, queue._task_queue)
        # Not other attributes: other decorators own those, and one could replace the task's own.
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function, here and now."""
        result: C = self.function(*args, **kwargs)
        return result


class AsyncTaskDecorator(Protocol):
    """The decorator that `AsyncQueue.task(...)` with options returns.

    It keeps the function's types.
    """

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R, R]: ...
