"""Makes a call from a stored body: the function, its arguments, resources and middlewares.

Arguments are converted to the types of the function's annotations, resources are injected, and
middlewares are entered around the call. `run` calls a plain function in the current thread, and
`run_async` awaits a coroutine function. Around a plain function, an async middleware is entered on
the event loop.

Code in a thread that needs the result of a coroutine receives a `Wait`.

After the run has ended, failure hooks and then the job's callback are called. None of them changes
the outcome of the run, and their errors are logged. They run in the context of the job: on the
event loop after a coroutine function, in the job's thread after a plain function.

If a claim finds that a lease has ended, the server returns the job to the queue or fails it. Only
the reply to that claim reports it. If the reply is lost, or this worker dies before the hooks have
run, the hooks are not called.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from bide.client import aio
from bide.errors import BideError, PayloadError, TaskNotFound
from bide.logs import Log, printable
from bide.model.context import CurrentJob, current_job, enter
from bide.model.ids import short_id
from bide.model.payload.body import Body, Envelope, check_id, decode_envelope, open_envelope
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Lost
from bide.tasks import middleware
from bide.tasks.middleware import FailedAttempt, Middleware, checked_context, hearing_failures
from bide.tasks.task import Function, Policy, Target, TaskRegistry, is_async
from bide.worker import outcome
from bide.worker.lifespan import Lifespan
from bide.worker.outcome import RunOutcome, begin_in_application
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob

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
                    stack.enter_context(checked_context(around, middleware, "running"))
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
                    stack.enter_context(checked_context(around, middleware, "running"))
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


log = Log("bide.worker")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a plain function in a thread."""


class _HookCall(NamedTuple):
    """A call of a hook or a callback of the application."""

    name: str
    function: Function | str
    args: Sequence[Any]

    def resolve(self, served: TaskRegistry) -> Function:
        """Return the function; if a job names its callback, find it by that name."""
        return served.function(self.function) if isinstance(self.function, str) else self.function


def hooks_due(outcome: RunOutcome) -> bool:
    """Whether a hook or a callback must be called after this outcome."""
    return outcome.callback is not None or (outcome.is_failure and bool(hearing_failures()))


async def call_hooks_async(
    run: RunningJob, outcome: RunOutcome, served: TaskRegistry, in_thread: InThread, seconds: float
) -> None:
    """Call the hooks and the callback from the event loop, within `seconds` in total."""
    end = asyncio.get_running_loop().time() + seconds
    for call in _hooks_of(run, outcome):
        try:
            async with asyncio.timeout_at(end):
                await _call_hook_async(call, served, in_thread)
        except TimeoutError:
            log.warning("job %s: %s took too long", short_id(run.claimed.id), call.name)


async def _call_hook_async(call: _HookCall, served: TaskRegistry, in_thread: InThread) -> None:
    try:
        function, args = call.resolve(served), call.args
        if is_async(function):
            await function(*args)
        else:
            made = await in_thread(lambda: function(*args))
            if inspect.isawaitable(made):  # a wrapper hid a coroutine function
                await made
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        begin_in_application(error)
        log.exception("job %s: %s raised", short_id(current_job().id), call.name)


def call_hooks(run: RunningJob, outcome: RunOutcome, served: TaskRegistry, wait: Wait) -> None:
    """Call the hooks and the callback in this thread, in which the job ran."""
    for call in _hooks_of(run, outcome):
        try:
            made = call.resolve(served)(*call.args)
            if inspect.isawaitable(made):
                wait(_awaiting(made))
        except BaseException as error:
            begin_in_application(error)
            log.exception("job %s: %s raised", short_id(run.claimed.id), call.name)


async def _awaiting(made: Awaitable[Any]) -> Any:
    return await made


def _hooks_of(run: RunningJob, outcome: RunOutcome) -> list[_HookCall]:
    calls = []
    if outcome.is_failure and (hooks := hearing_failures()):
        assert isinstance(outcome.value, BaseException)
        args, kwargs = arguments_of(run)
        failure = FailedAttempt(
            current_job(), outcome.value, args, kwargs, outcome.retry_in, outcome.raised
        )
        for middleware in hooks:
            name = f"the hook {type(middleware).__qualname__}.failed"
            calls.append(_HookCall(name, middleware.failed, (failure,)))
    if outcome.callback is not None:
        name = f"its callback {outcome.callback!r}"
        calls.append(_HookCall(name, outcome.callback, (current_job(), outcome.value)))
    return calls


Report = Callable[[RunningJob, str, bool], None]
"""Passes a run to the hooks, with a sentence on how it ended, and whether the job has failed."""


class Crashes:
    """Fetches the jobs of lost attempts in background tasks, and reports them to hooks."""

    def __init__(
        self, client: aio.AsyncClient, report: Report, changed: Callable[[], None]
    ) -> None:
        """Set up; `changed` is called when all lost attempts of a claim have been reported."""
        self._client = client
        self._report = report
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether lost attempts are still to be reported."""
        return bool(self._tasks)

    def found(self, queue_state: QueueState, lost: Sequence[Lost]) -> None:
        """Report the attempts that a claim found to have lost their lease."""
        task = asyncio.create_task(self._read(queue_state, lost))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Wait for the reports under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    async def _read(self, queue_state: QueueState, lost: Sequence[Lost]) -> None:
        ids = [one.claimed.id for one in lost]
        bodies = [b""] * len(ids)
        try:
            found = await self._client.run(job_commands.fetch(queue_state.keys, ids))
            bodies = [job.raw_body if job else b"" for job in found]
        except BideError as error:
            log.warning(
                "queue %s: hooks do not get the arguments of crashed jobs: %s",
                queue_state.queue,
                error,
            )
        for one, body in zip(lost, bodies, strict=True):
            now = time.monotonic()
            run = RunningJob(
                queue_state, msgspec.structs.replace(one.claimed, body=body), now, lambda: None
            )
            run.deadline = now
            self._report(run, _how(one), one.has_failed)


def _how(lost: Lost) -> str:
    """Describe in a sentence how an attempt ended."""
    worker = printable(lost.worker)  # another program may have written the name
    if not lost.has_failed:
        return (
            f"Its worker {worker} died or stopped while it held this job; the job may have started."
        )
    claimed = lost.claimed
    return (
        f"Its worker died or stopped {claimed.reclaims} times under this job, {claimed.crashes} "
        f"of them while it ran alone; the last was {worker}."
    )
