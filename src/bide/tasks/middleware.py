"""Middlewares: they surround every enqueue and run of a process, and see every failure."""

from __future__ import annotations

import inspect
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
    """The error of the task, or `JobTimeout`, `PayloadError`, `TaskNotFound` or `WorkerCrashed`."""
    args: Sequence[Any] | None
    """The positional arguments as they were enqueued; None if they cannot be read."""
    kwargs: Mapping[str, Any] | None
    """The keyword arguments as they were enqueued; None if they cannot be read."""
    retry_in: float | None
    """Seconds until the next attempt; None if the job has failed."""
    raised: bool
    """Whether the run itself raised the error, so that `Middleware.running` has seen it."""

    @property
    def is_final(self) -> bool:
        """Whether the job has failed: no other attempt follows."""
        return self.retry_in is None


class Middleware:
    """Four hooks around enqueues and runs; pass an instance to `bide.add_middleware`.

    Override the hooks that you need:

        class Timing(bide.Middleware):
            def running(self, job: bide.CurrentJob) -> AbstractContextManager[None]:
                return timer(job.task)
    """

    def enqueuing(self, queue: str, body: Body) -> Body:
        """Called in the producer for each job, before its arguments are encoded.

        If it raises, the error reaches the caller, and nothing is enqueued.

        Returns:
            The body, or a changed copy: `msgspec.structs.replace(body, meta={...})`.
        """
        return body

    def sending(
        self, queue: str, jobs: Sequence[Prepared] | None
    ) -> AbstractContextManager[Any] | None:
        """Called in the producer for each send to the server, inside the returned context.

        The context manager sees the error of the send, and must not suppress it. Return None to add
        no context.

        Args:
            queue: the queue of the jobs.
            jobs: the jobs of `enqueue_many`; None for `enqueue`, which prepares its job inside the
                context.
        """
        return None

    def running(self, job: CurrentJob) -> Around:
        """Called in the worker for each run, which happens inside the returned context manager.

        The context manager sees the task's error, and may raise another. If it suppresses the
        error, the job completes. An async context manager is entered on the event loop, also if the
        task is a plain function, which runs in a thread. Return None to add no context.
        """
        return None

    def failed(self, failure: FailedAttempt) -> Awaitable[None] | None:
        """Called in the worker once for each attempt that failed, for whatever reason.

        If the whole worker died, the worker that detects this calls it. It may be a coroutine
        function. It cannot change the outcome of the attempt: if it raises, the error is logged.
        A snooze and a cancel are not failures.
        """
        return None


M = TypeVar("M", bound=Middleware)

_HOOKS: Final = ("enqueuing", "sending", "running", "failed")

in_use: list[Middleware] = []
"""The middlewares of this process, outermost first."""


def add_middleware(middleware: M) -> M:
    """Add a middleware to all enqueues and runs of this process; the first one is outermost.

    Raises:
        UsageError: it is not a `Middleware`, has no hook but other methods, or was added before.
    """
    if not isinstance(middleware, Middleware):
        raise UsageError(
            f"add_middleware() needs an instance of a bide.Middleware, not {middleware!r}."
        )
    kind = type(middleware)
    is_new = {name: callable(value) for name, value in vars(kind).items() if name[0] != "_"}
    own = [name for name, is_call in is_new.items() if is_call and name not in _HOOKS]
    if own and all(getattr(kind, hook) is getattr(Middleware, hook) for hook in _HOOKS):
        raise UsageError(
            f"{kind.__qualname__} overrides no hook of bide.Middleware, and {own[0]} is never "
            f"called; the hooks are {', '.join(_HOOKS)}."
        )
    if any(one is middleware for one in in_use):
        raise UsageError(f"{middleware!r} was added before; add a middleware once.")
    in_use.append(middleware)
    return middleware


def hearing_failures() -> list[Middleware]:
    """Return the middlewares in use that override `failed`."""
    return [one for one in in_use if type(one).failed is not Middleware.failed]


T = TypeVar("T")


def checked_context(around: T, middleware: Middleware, hook: str) -> T:
    """Return what a hook returned, if it is a context manager."""
    if hasattr(type(around), "__enter__") or hasattr(type(around), "__aenter__"):
        return around
    if inspect.iscoroutine(around):
        around.close()
    cure = ""
    if inspect.isgenerator(around) or inspect.isasyncgen(around):
        cure = f"; put @{'async' * inspect.isasyncgen(around)}contextmanager above it"
    raise UsageError(
        f"{type(middleware).__qualname__}.{hook} must return a context manager or None, not "
        f"{type(around).__name__}{cure}."
    )


NOT_AROUND: Final = nullcontext()
"""Around a sending without middlewares."""


def around_sending(queue: str, jobs: Sequence[Prepared] | None) -> AbstractContextManager[None]:
    """Return a context manager that runs a sending inside all middlewares."""
    return _around_sending(queue, jobs) if in_use else NOT_AROUND


@contextmanager
def _around_sending(queue: str, jobs: Sequence[Prepared] | None) -> Iterator[None]:
    has_ended = False
    with ExitStack() as stack:
        for middleware in in_use:
            if (around := middleware.sending(queue, jobs)) is not None:
                stack.enter_context(checked_context(around, middleware, "sending"))
        yield
        has_ended = True
    if not has_ended:
        raise UsageError(
            "A middleware suppressed the error of a sending, so it is unknown whether the jobs "
            "were added; let the error through in the context manager that sending() returns."
        )
