"""Tasks as users hold them: a function that can be called, and enqueued.

`Task` and `AsyncTask` share everything but the enqueue itself, which `AsyncTask` awaits.
"""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from bide.errors import UsageError
from bide.model.durations import at_to_us, delay_to_us
from bide.model.options import Options, TaskOptions, check_names
from bide.queue.binding import note_home
from bide.tasks.registry import Named, refuse_method
from bide.tasks.task import defaults_of, register

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bide.protocol.commands.enqueue import Prepared
    from bide.queue._async.job import AsyncJob
    from bide.queue._async.queue import AsyncQueue
    from bide.queue._sync.job import Job
    from bide.queue._sync.queue import Queue

P = ParamSpec("P")
C = TypeVar("C")
"""The return type of a call: for a coroutine function, a coroutine."""
R = TypeVar("R")
"""The type of the job's result."""
Q = TypeVar("Q", bound="Queue | AsyncQueue")


class TaskCall(Generic[P, R, Q]):
    """A task with options: ready to be given its arguments."""

    def __init__(
        self, function: Callable[P, Any], queue: Q, options: Options, given: str | None
    ) -> None:
        self.function: Final = function
        self.queue: Final = queue
        self._options: Final = options
        self._given: Final = given
        """The name that the task was given, if there is one."""

    def __repr__(self) -> str:
        name = self._given or self.function.__qualname__
        return f"<{type(self).__name__} {name} on {self.queue.name}>"

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Make a job ready for `enqueue_many`."""
        return self.queue.prepare(self._given or self.function, args, kwargs, **self._options)

    def _over(self, options: Options) -> Options:
        """Merge options over the present ones; a new `at` or `delay` replaces both."""
        check_names(options)
        merged = self._options.copy()
        if options.get("at") is not None or options.get("delay") is not None:
            merged["at"] = merged["delay"] = None
        merged.update(options)
        return merged


class BlockingCall(TaskCall[P, R, "Queue"]):
    """A task with options, for code that blocks."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job with these arguments; raises as `Queue.enqueue_call` does."""
        return self.queue.enqueue_call(self._given or self.function, args, kwargs, **self._options)

    def later(self, when: float | str | timedelta | datetime) -> BlockingCall[P, R]:
        """Return the task with a due time: a delay, or an aware `datetime`."""
        return self.options(**as_due(when))

    def options(
        self, *, queue: Queue | None = None, **options: Unpack[Options]
    ) -> BlockingCall[P, R]:
        """Return the task with other options, separate from the function's own arguments."""
        return BlockingCall(self.function, queue or self.queue, self._over(options), self._given)


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


class Task(BlockingCall[P, R], Named, Generic[P, C, R]):
    """A function of a queue: call it to run it here, enqueue it to run it in a worker when due."""

    name: str
    """The name by which workers find it."""

    def __init__(
        self,
        function: Callable[P, C],
        queue: Queue,
        options: TaskOptions,
        name: str | None = None,
    ) -> None:
        """Register the function; a worker that imports its module can run it.

        `function` may be a task of another queue: its options apply, unless others are given.

        Raises:
            UsageError: a worker could not find the function by its name, another task has the name,
                the function is a method, or an option is invalid.
        """
        function, self.name, given = _enrolled(function, options, name)
        super().__init__(function, queue, Options(), given)
        note_home(self.name, queue._home)
        _look_like(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function, here and now."""
        result: C = self.function(*args, **kwargs)
        return result


class AsyncTask(AwaitedCall[P, R], Named, Generic[P, C, R]):
    """A function of a queue for code on an event loop; see `Task`."""

    name: str
    """The name by which workers find it."""

    def __init__(
        self,
        function: Callable[P, C],
        queue: AsyncQueue,
        options: TaskOptions,
        name: str | None = None,
    ) -> None:
        """Register the function, as `Task` does."""
        function, self.name, given = _enrolled(function, options, name)
        super().__init__(function, queue, Options(), given)
        note_home(self.name, queue._home)
        _look_like(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function, here and now."""
        result: C = self.function(*args, **kwargs)
        return result


def _enrolled(
    function: Callable[P, C], options: TaskOptions, name: str | None
) -> tuple[Callable[P, C], str, str | None]:
    """Register a function, or the function inside a task or a static method.

    Returns:
        The function, its name, and the same name if it was given.
    """
    if isinstance(function, Task | AsyncTask):
        options = options or defaults_of(function.name)
        name = name or function._given
        function = function.function
    elif isinstance(function, staticmethod):
        function = function.__func__
    refuse_method(function)
    return function, register(function, options, name), name


def _look_like(
    task: Task[..., Any, Any] | AsyncTask[..., Any, Any], function: Callable[..., Any]
) -> None:
    """Copy the name and the docstring of a function to its task, but not its other attributes.

    Other decorators own those, and an attribute `queue` or `name` would replace the task's.
    """
    functools.update_wrapper(task, function, updated=())


class TaskDecorator(Protocol):
    """The decorator that `Queue.task(...)` with options returns; it keeps the function's types."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class AsyncTaskDecorator(Protocol):
    """The decorator that `AsyncQueue.task(...)` with options returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R, R]: ...


def as_due(when: float | str | timedelta | datetime) -> Options:
    """Convert a delay or a moment to the option `delay` or `at`.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(when, datetime):
        at_to_us(when)
        return Options(at=when)
    if not isinstance(when, int | float | str | timedelta):
        raise UsageError(
            f"later() wants a delay such as '30m' or an aware datetime, not {type(when).__name__}."
        )
    delay_to_us(when)
    return Options(delay=when)
