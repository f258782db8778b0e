"""What surrounds every enqueue and every run of a process, and hears of every failure."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.context import CurrentJob
from bide.model.payload.body import Body
from bide.protocol.commands.enqueue import Prepared

Around = AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None


class FailedAttempt(NamedTuple):
    """An attempt that failed, and what follows it."""

    job: CurrentJob
    """The job, which is also the current one."""
    error: BaseException
    """What the task raised; or `JobTimeout`, `PayloadError`, `TaskNotFound`, `WorkerCrashed`."""
    args: Sequence[Any] | None
    """The positional arguments as they were enqueued; None if they cannot be read."""
    kwargs: Mapping[str, Any] | None
    """The keyword arguments as they were enqueued; None if they cannot be read."""
    retry_in: float | None
    """Seconds until the next attempt; None if there is none, because the job has failed."""
    raised: bool
    """The error came out of the run itself, so `Middleware.running` has seen it."""

    @property
    def is_final(self) -> bool:
        """Whether the job has failed: no other attempt follows."""
        return self.retry_in is None


class Middleware:
    """Four hooks; override what you need, and pass an instance to `bide.add_middleware`."""

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

    def failed(self, failure: FailedAttempt) -> Awaitable[None] | None:
        """Called in the worker once for each attempt that failed, for whatever reason.

        If the whole worker died, the worker that finds this out calls it. It may be a coroutine
        function. It changes nothing: what it raises is logged, and how the attempt ended stands.
        A snooze and a cancel are no failures.
        """
        return None


M = TypeVar("M", bound=Middleware)

_used: list[Middleware] = []


def add_middleware(middleware: M) -> M:
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


def hearing_failures() -> list[Middleware]:
    """Return those in use that override `failed`."""
    return [one for one in _used if type(one).failed is not Middleware.failed]


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
