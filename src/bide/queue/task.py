"""The logic that tasks of blocking and awaited queues share: `Task` and `AsyncTask`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from bide.errors import UsageError
from bide.model.durations import at_to_us, delay_to_us
from bide.model.options import Options, TaskOptions, check_names
from bide.tasks.registry import Named, refuse_method
from bide.tasks.task import defaults_of, register

if TYPE_CHECKING:
    from collections.abc import Callable

    from bide.protocol.commands.enqueue import Prepared
    from bide.queue._async.queue import AsyncQueue
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
        """Prepare a job for `enqueue_many`."""
        return self.queue.prepare(self._given or self.function, args, kwargs, **self._options)

    def _over(self, options: Options) -> Options:
        """Merge options over the present ones; a new `at` or `delay` replaces both."""
        check_names(options)
        merged = self._options.copy()
        if options.get("at") is not None or options.get("delay") is not None:
            merged["at"] = merged["delay"] = None
        merged.update(options)
        return merged


def enrolled(
    function: Callable[P, C], options: TaskOptions, name: str | None
) -> tuple[Callable[P, C], str, str | None]:
    """Register a function, or the function inside a task or a static method.

    Return the function, its name, and the same name if it was given.
    """
    task: Any = function
    if isinstance(task, TaskCall) and isinstance(task, Named):
        options = options or defaults_of(task.name)
        name = name or task._given
        function = task.function
    elif isinstance(function, staticmethod):
        function = function.__func__
    refuse_method(function)
    return function, register(function, options, name), name


def as_due(when: float | str | timedelta | datetime) -> Options:
    """Convert a delay or a moment to the option `delay` or `at`."""
    if isinstance(when, datetime):
        at_to_us(when)
        return Options(at=when)
    if not isinstance(when, int | float | str | timedelta):
        raise UsageError(
            f"later() wants a delay such as '30m' or an aware datetime, not {type(when).__name__}."
        )
    delay_to_us(when)
    return Options(delay=when)
