"""Makes a call from a stored body: the function, its arguments, resources and middlewares.

Arguments are converted to the types of the function's annotations, resources are injected, and
middlewares are entered around the call. `run` calls a plain function in the current thread, and
`run_async` awaits a coroutine function. Around a plain function, an async middleware is entered on
the event loop.

Code in a thread that needs the result of a coroutine receives a `Wait`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import msgspec

from bide.errors import BideError, PayloadError, TaskNotFound
from bide.model.context import CurrentJob, enter
from bide.model.payload.body import Body, Envelope, check_id, decode_envelope, open_envelope
from bide.tasks import middleware
from bide.tasks.middleware import Middleware
from bide.tasks.task import Policy, Target, TaskRegistry
from bide.worker.lifespan import Lifespan
from bide.worker.run import outcome
from bide.worker.run.running_job import RunningJob

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the event loop, and returns its result or raises its error."""


def from_thread(loop: asyncio.AbstractEventLoop) -> Wait:
    """Return a `Wait` for threads, which runs the coroutine on `loop` in another thread."""

    def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
        caught = asyncio.run_coroutine_threadsafe(_catch(coroutine), loop)
        result, error = caught.result()
        if error is not None:
            raise error
        return result

    return wait


async def _catch(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the result and the error; a SystemExit raised in a task would end the event loop."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


class Invocation(msgspec.Struct, frozen=True):
    """One call of a task, ready to run."""

    job: CurrentJob
    target: Target
    args: Sequence[Any]
    kwargs: dict[str, Any]
    middlewares: Sequence[Middleware]

    async def run_async(self) -> Any:
        """Await a coroutine function."""
        if not self.middlewares:
            return await self.target.function(*self.args, **self.kwargs)
        async with AsyncExitStack() as stack:
            for middleware in self.middlewares:
                around: Any = middleware.running(self.job)
                if hasattr(around, "__aenter__"):
                    await stack.enter_async_context(around)
                elif around is not None:
                    stack.enter_context(around)
            return await self.target.function(*self.args, **self.kwargs)

    def run(self, wait: Wait) -> Any:
        """Call a plain function, in this thread."""
        if not self.middlewares:
            return self.target.function(*self.args, **self.kwargs)
        with ExitStack() as stack:
            for middleware in self.middlewares:
                around: Any = middleware.running(self.job)
                if hasattr(around, "__aenter__"):
                    stack.enter_context(_waited(around, wait))
                elif around is not None:
                    stack.enter_context(around)
            return self.target.function(*self.args, **self.kwargs)


def prepare(run: RunningJob, target: Target, lifespan: Lifespan) -> Invocation:
    """Prepare the call of a job that `read` has read.

    Raises:
        PayloadError: an argument is missing, superfluous, or not of the annotated type.
        BideError: a resource is not open.
    """
    body, job = run.body, run.job
    assert body is not None
    assert job is not None
    try:
        args, kwargs = target.signature.bind(body.args, body.kwargs, body.task)
    except PayloadError:
        if target.signature.has_more(body.args, body.kwargs):
            run.missing = "arguments"
        raise
    if target.signature.injected:
        kwargs = {**lifespan.values_for(target.signature.injected), **kwargs}
    return Invocation(job, target, args, kwargs, middleware.in_use)


def policy_for(body: Body, policy: Policy) -> Policy:
    """Return the policy of a job: its own options, and otherwise the options of its task."""
    if body.timeout is not None:
        policy = policy._replace(timeout=body.timeout)
    if body.retry is not None:
        policy = policy._replace(retry=body.retry, has_retry=True)
    if body.keep is not None:
        policy = policy._replace(keep=body.keep)
    if body.on_crash is not None:
        policy = policy._replace(on_crash=body.on_crash)
    if body.on_success is not None:
        policy = policy._replace(on_success=body.on_success)
    if body.on_failure is not None:
        policy = policy._replace(on_failure=body.on_failure)
    return policy


@contextmanager
def _waited(around: Any, wait: Wait) -> Any:
    """Enter and leave an async context manager on the event loop, around code in a thread."""
    wait(around.__aenter__())
    try:
        yield
    except BaseException as error:
        if not wait(around.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(around.__aexit__(None, None, None))


def read(run: RunningJob, served: TaskRegistry, *, allow_pickle: bool) -> Target:
    """Read the body of a job into the run, and return its task.

    The current context becomes the context of the job.

    Raises:
        BideError: the body has no valid signature or cannot be read; or the task is not served; or
            the job must not be repeated and a worker has died under it.
    """
    target, envelope, is_signed = identify(run, served)
    if run.claimed.reclaims and run.policy.on_crash == "fail":
        raise outcome.crashed()
    run.body = open_envelope(envelope, allow_pickle=allow_pickle and is_signed)
    return target


def arguments_of(run: RunningJob) -> tuple[Sequence[Any], Mapping[str, Any]] | tuple[None, None]:
    """Return the arguments of a job as they were enqueued; None if they cannot be read."""
    try:
        body = run.arguments()
    except BideError:
        return None, None
    return body.args, body.kwargs


def identify_if_possible(run: RunningJob, served: TaskRegistry) -> None:
    """Identify a run as far as possible; the current context becomes that of the job."""
    with suppress(BideError):  # then it keeps the default policy
        identify(run, served)
    enter(run.job or run.as_job())


def identify(run: RunningJob, served: TaskRegistry) -> tuple[Target, Envelope, bool]:
    """Record the task and the policy in the run, without reading the arguments.

    Returns:
        The task, the body, and whether one of our keys has signed it.

    Raises:
        BideError: the body has no valid signature or cannot be read, or the task is not served.
    """
    check_id(run.claimed.id)
    is_signed = run.queue_state.seal.check("job", run.claimed.id, run.claimed.body)
    try:
        envelope = decode_envelope(run.claimed.body)
    except BideError:
        run.is_unreadable = True
        raise
    head = envelope.body
    run.learn(head)
    run.codec = head.codec
    run.job = run.as_job(head.meta, head.schedule, head.parents)
    enter(run.job)
    try:
        target = served.find_to_run(head.task)
    except BaseException as error:
        run.policy = policy_for(head, run.policy)  # it decides what follows the error
        run.missing = "task" if isinstance(error, TaskNotFound) else ""
        raise
    run.policy = policy_for(head, target.policy)
    return target, envelope, is_signed
