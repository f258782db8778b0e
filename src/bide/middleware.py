"""What surrounds every enqueue and every run of a process: tracing, metrics, a session per job."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from bide.current import CurrentJob
from bide.errors import UsageError
from bide.payload.codec import Body

Around = AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None


class Middleware:
    """A pair of hooks; override what you need, and pass an instance to `bide.use`."""

    def enqueuing(self, queue: str, body: Body) -> Body:
        """Called in the producer for each job, before its arguments are encoded.

        Returns:
            The body, or another made from it: `msgspec.structs.replace(body, meta={...})`. What is
            raised reaches the caller, and nothing is enqueued.
        """
        return body

    def running(self, job: CurrentJob) -> Around:
        """Called in the worker for each run; the run happens inside the context manager returned.

        It sees what the task raises, may raise something else, and may keep it to itself, by which
        the job completes. An async one is entered on the event loop also where the task is a plain
        function, which runs in a thread. None leaves the run alone.
        """
        return None


M = TypeVar("M", bound=Middleware)

_used: list[Middleware] = []


def use(middleware: M) -> M:
    """Use a middleware for all that this process enqueues and runs; the first used is outermost.

    Raises:
        UsageError: it is no `Middleware`.
    """
    if not isinstance(middleware, Middleware):
        raise UsageError(f"use() wants an instance of a bide.Middleware, not {middleware!r}.")
    _used.append(middleware)
    return middleware


def used() -> list[Middleware]:
    """Those in use, outermost first."""
    return _used
