"""From a stored body to a call: what runs, with which arguments, surrounded by what.

Arguments become what the function's annotations say, resources are handed in, and middlewares are
entered around the call. A plain function is called in the thread that calls `run`, a coroutine
function is awaited by `run_async`; middlewares of the other kind are taken to where they belong.

Code in a thread that needs a coroutine's result is given a `Wait`: how to wait for one from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from bide.errors import BideError, TaskNotFound
from bide.model.context import CurrentJob, enter
from bide.model.payload.body import Body, Envelope, check_id, decode_envelope, open_envelope
from bide.tasks.middleware import Middleware
from bide.tasks.task import Policy, Target, TaskRegistry
from bide.worker.lifespan import Lifespan
from bide.worker.run import outcome
from bide.worker.run.running_job import RunningJob

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine where coroutines run, and returns its result, or raises what it raised."""


def from_thread(loop: asyncio.AbstractEventLoop) -> Wait:
    """How a thread waits for a coroutine that an event loop runs in another."""

    def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
        caught = asyncio.run_coroutine_threadsafe(_catch(coroutine), loop)
        result, error = caught.result()
        if error is not None:
            raise error
        return result

    return wait


async def _catch(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What it returns or raises: a SystemExit in a task of its own would end the event loop."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


class Invocation(NamedTuple):
    """One run of a task, ready to be made."""

    target: Target
    args: Sequence[Any]
    kwargs: dict[str, Any]
    middlewares: Sequence[Middleware]

    async def run_async(self, job: CurrentJob) -> Any:
        """Await a coroutine function."""
        if not self.middlewares:
            return await self.target.function(*self.args, **self.kwargs)
        async with AsyncExitStack() as stack:
            for middleware in self.middlewares:
                around: Any = middleware.running(job)
                if hasattr(around, "__aenter__"):
                    await stack.enter_async_context(around)
                elif around is not None:
                    stack.enter_context(around)
            return await self.target.function(*self.args, **self.kwargs)

    def run(self, job: CurrentJob, wait: Wait) -> Any:
        """Call a plain function, in this thread."""
        if not self.middlewares:
            return self.target.function(*self.args, **self.kwargs)
        with ExitStack() as stack:
            for middleware in self.middlewares:
                around: Any = middleware.running(job)
                if hasattr(around, "__aenter__"):
                    stack.enter_context(_waited(around, wait))
                elif around is not None:
                    stack.enter_context(around)
            return self.target.function(*self.args, **self.kwargs)


def prepare(
    body: Body, target: Target, lifespan: Lifespan, middlewares: Sequence[Middleware]
) -> Invocation:
    """Make a call of a body.

    Raises:
        PayloadError: an argument is missing, too many, or not what the function's annotation says.
        BideError: a resource is not open.
    """
    args, kwargs = target.signature.bind(body.args, body.kwargs, body.task)
    if target.signature.injected:
        kwargs = {**lifespan.values_for(target.signature.injected), **kwargs}
    return Invocation(target, args, kwargs, middlewares)


def policy_for(body: Body, policy: Policy) -> Policy:
    """What holds for a job: its own options, where it has none its task's."""
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
    """An async context manager around code in a thread: entered and left on the event loop."""
    wait(around.__aenter__())
    try:
        yield
    except BaseException as error:
        if not wait(around.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(around.__aexit__(None, None, None))


def read(run: RunningJob, served: TaskRegistry, *, allow_pickle: bool) -> tuple[Target, Body]:
    """The task and the body of a job; along the way, the run learns what it is.

    The context in which this is called becomes that of the job.

    Raises:
        BideError: the body is not signed as it has to be, or cannot be read, the task is not
            served, or the job must not be repeated and a worker died under it.
    """
    target, envelope, is_signed = identify(run, served)
    if run.claimed.reclaims and run.policy.on_crash == "fail":
        raise outcome.crashed()
    run.body = open_envelope(envelope, allow_pickle=allow_pickle and is_signed)
    return target, run.body


def arguments_of(run: RunningJob) -> tuple[Sequence[Any], Mapping[str, Any]] | tuple[None, None]:
    """Return the arguments of a job as they were enqueued, None where they cannot be read.

    A job whose process died has not been read here. Its pickled arguments are not read now: that
    runs code of theirs, which may have been what the process died of.
    """
    if run.body is None:
        try:
            run.station.seal.check("job", run.claimed.id, run.claimed.body)
            run.body = open_envelope(decode_envelope(run.claimed.body))
        except BideError:
            return None, None
    return run.body.args, run.body.kwargs


def identify_if_possible(run: RunningJob, served: TaskRegistry) -> None:
    """Have a run learn of itself what can be learnt, and make this context that of the job."""
    with suppress(BideError):  # otherwise it has no policy
        identify(run, served)
    enter(run.job or run.as_job())


def identify(run: RunningJob, served: TaskRegistry) -> tuple[Target, Envelope, bool]:
    """Have a run learn what it is, by which policy, without touching its arguments.

    Returns:
        The task, the body, and whether a key of ours has signed it.

    Raises:
        BideError: the body is not signed as it has to be, or cannot be read, or the task is not
            served.
    """
    check_id(run.claimed.id)
    is_signed = run.station.seal.check("job", run.claimed.id, run.claimed.body)
    envelope = decode_envelope(run.claimed.body)
    head = envelope.body
    run.learn(head)
    run.codec = head.codec
    run.job = run.as_job(head.meta, head.schedule, head.parents)
    enter(run.job)
    try:
        target = served.find_to_run(head.task)
    except BaseException as error:
        run.policy = policy_for(head, run.policy)  # by which the error is judged
        run.missing = isinstance(error, TaskNotFound)
        raise
    run.policy = policy_for(head, target.policy)
    return target, envelope, is_signed
