"""Tasks, for code on an event loop: functions that can be called, and enqueued."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from bide.model.options import Options, TaskOptions
from bide.queue.binding import note_task_queue
from bide.queue.core import TaskCall, as_due, enrolled
from bide.tasks.registry import Named

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bide.queue._async.job import AsyncJob
    from bide.queue._async.queue import AsyncQueue

P = ParamSpec("P")
C = TypeVar("C")
"""The return type of a call: for a coroutine function, a coroutine."""
R = TypeVar("R")
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


class AsyncTask(AwaitedCall[P, R], Named, Generic[P, C, R]):
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
