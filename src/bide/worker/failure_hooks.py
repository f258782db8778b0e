"""Calls failure hooks and then the job's callback, once a run has ended.

None of them changes the outcome of the run, and their errors are logged. They run in the context of
the job: on the event loop after a coroutine function, in the job's thread after a plain function.

If a claim finds that a lease has ended, the server returns the job to the queue or fails it. Only
the reply to that claim reports it. If the reply is lost, or this worker dies before the hooks have
run, the hooks are not called.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from bide.client import aio
from bide.errors import BideError
from bide.logs import Log, printable
from bide.model.context import current_job
from bide.model.ids import short_id
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Lost
from bide.tasks.middleware import FailedAttempt, hearing_failures
from bide.tasks.task import Function, TaskRegistry, is_async
from bide.worker.queue_state import QueueState
from bide.worker.run.invoke import Wait, arguments_of
from bide.worker.run.outcome import RunOutcome, begin_in_application
from bide.worker.run.running_job import RunningJob

log = Log("bide.worker")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a plain function in a thread."""


class _Call(NamedTuple):
    """A call of a hook or a callback of the application."""

    name: str
    function: Function | str
    args: Sequence[Any]

    def resolve(self, served: TaskRegistry) -> Function:
        """Return the function; if a job names its callback, find it by that name."""
        return served.function(self.function) if isinstance(self.function, str) else self.function


def is_due(outcome: RunOutcome) -> bool:
    """Whether a hook or a callback must be called after this outcome."""
    return outcome.callback is not None or (outcome.is_failure and bool(hearing_failures()))


async def call_async(
    run: RunningJob, outcome: RunOutcome, served: TaskRegistry, in_thread: InThread, seconds: float
) -> None:
    """Call the hooks and the callback from the event loop, within `seconds` in total."""
    end = asyncio.get_running_loop().time() + seconds
    for call in _calls(run, outcome):
        try:
            async with asyncio.timeout_at(end):
                await _call_async(call, served, in_thread)
        except TimeoutError:
            log.warning("job %s: %s took too long", short_id(run.claimed.id), call.name)


async def _call_async(call: _Call, served: TaskRegistry, in_thread: InThread) -> None:
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


def call(run: RunningJob, outcome: RunOutcome, served: TaskRegistry, wait: Wait) -> None:
    """Call the hooks and the callback in this thread, in which the job ran."""
    for call in _calls(run, outcome):
        try:
            made = call.resolve(served)(*call.args)
            if inspect.isawaitable(made):
                wait(_awaiting(made))
        except BaseException as error:
            begin_in_application(error)
            log.exception("job %s: %s raised", short_id(run.claimed.id), call.name)


async def _awaiting(made: Awaitable[Any]) -> Any:
    return await made


def _calls(run: RunningJob, outcome: RunOutcome) -> list[_Call]:
    calls = []
    if outcome.is_failure and (hooks := hearing_failures()):
        assert isinstance(outcome.value, BaseException)
        args, kwargs = arguments_of(run)
        failure = FailedAttempt(
            current_job(), outcome.value, args, kwargs, outcome.retry_in, outcome.raised
        )
        for middleware in hooks:
            name = f"the hook {type(middleware).__qualname__}.failed"
            calls.append(_Call(name, middleware.failed, (failure,)))
    if outcome.callback is not None:
        name = f"its callback {outcome.callback!r}"
        calls.append(_Call(name, outcome.callback, (current_job(), outcome.value)))
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
