"""What surrounds every enqueue and every run of a process: tracing, metrics, a session per job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from typing import Any, Final, TypeVar

from bide.current import CurrentJob
from bide.errors import UsageError
from bide.ops.produce import Prepared
from bide.payload.codec import Body

Around = AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None


class Middleware:
    """Three hooks; override what you need, and pass an instance to `bide.use`."""

    def enqueuing(self, queue: str, body: Body) -> Body:
        """Called in the producer for each job, before its arguments are encoded.

        Returns:
            The body, or another made from it: `msgspec.structs.replace(body, meta={...})`. What is
            raised reaches the caller, and nothing is enqueued.
        """
        return body

    def sending(
        self, queue: str, jobs: Sequence[Prepared] | None
    ) -> AbstractContextManager[Any] | None:
        """Called in the producer for each sending; it happens inside the context manager returned.

        It sees what the sending raises, and must let it through. None leaves the sending alone.

        Args:
            queue: where the jobs go.
            jobs: those of `enqueue_many`; None for `enqueue`, whose one is prepared inside.
        """
        return None

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


_ALONE: Final = nullcontext()


def around_sending(queue: str, jobs: Sequence[Prepared] | None) -> AbstractContextManager[None]:
    """What the middlewares in use put around a sending."""
    return _around_sending(queue, jobs) if _used else _ALONE


@contextmanager
def _around_sending(queue: str, jobs: Sequence[Prepared] | None) -> Iterator[None]:
    has_ended = False
    with ExitStack() as stack:
        for middleware in _used:
            if (around := middleware.sending(queue, jobs)) is not None:
                stack.enter_context(around)
        yield
        has_ended = True
    if not has_ended:
        raise UsageError(
            "A middleware kept to itself what a sending raised, so nobody knows whether the jobs "
            "are there; let it through in what sending() returns."
        )
