"""What is called once a run has ended: the hooks that hear of a failure, then the job's callback.

None of them changes how the run ended, and what one raises is logged. They run in the context of
the job: on the event loop those of a coroutine function, in its thread those of a plain function.

A claim finds that a lease has ended, and returns the job to the queue, or has it fail. It says so
in its reply, once: if that is lost, or this worker dies before the hooks have run, none is told.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

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
    """A function of the user's that is to be called."""

    name: str
    function: Function | str
    args: Sequence[Any]

    def resolve(self, served: TaskRegistry) -> Function:
        """Return the function; a job may name its callback."""
        return served.function(self.function) if isinstance(self.function, str) else self.function


def is_due(judged: RunOutcome) -> bool:
    """Whether something is to be called after a run that ended so."""
    return judged.callback is not None or (judged.is_failure and bool(hearing_failures()))


async def call_async(
    run: RunningJob, judged: RunOutcome, served: TaskRegistry, in_thread: InThread, seconds: float
) -> None:
    """Call it all from the event loop, within so many seconds."""
    end = asyncio.get_running_loop().time() + seconds
    for call in _calls(run, judged):
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
            if inspect.isawaitable(made):  # it was a coroutine function, in a wrapper
                await made
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        begin_in_application(error)
        log.exception("job %s: %s raised", short_id(current_job().id), call.name)


def call(run: RunningJob, judged: RunOutcome, served: TaskRegistry, wait: Wait) -> None:
    """Call it all in this thread, the one that the job ran in."""
    for call in _calls(run, judged):
        try:
            made = call.resolve(served)(*call.args)
            if inspect.isawaitable(made):
                wait(_awaiting(made))
        except BaseException as error:
            begin_in_application(error)
            log.exception("job %s: %s raised", short_id(run.claimed.id), call.name)


async def _awaiting(made: Awaitable[Any]) -> Any:
    return await made


def _calls(run: RunningJob, judged: RunOutcome) -> list[_Call]:
    calls = []
    if judged.is_failure and (hearing := hearing_failures()):
        failure = _failure(run, judged)
        for middleware in hearing:
            name = f"the hook {type(middleware).__qualname__}.failed"
            calls.append(_Call(name, middleware.failed, (failure,)))
    if judged.callback is not None:
        name = f"its callback {judged.callback!r}"
        calls.append(_Call(name, judged.callback, (current_job(), judged.value)))
    return calls


def _failure(run: RunningJob, judged: RunOutcome) -> FailedAttempt:
    assert isinstance(judged.value, BaseException)
    args, kwargs = arguments_of(run)
    return FailedAttempt(current_job(), judged.value, args, kwargs, judged.retry_in, judged.raised)


Report = Callable[[RunningJob, str, bool], None]
"""Tells hooks of a run: how it ended, and whether the job has failed by that."""


class Crashes:
    """Reads the jobs, beside what else the worker does, and has them reported."""

    def __init__(
        self, client: aio.AsyncClient, report: Report, changed: Callable[[], None]
    ) -> None:
        """Set up.

        Args:
            client: of the server.
            report: called for each attempt.
            changed: called when all of a claim have been reported.
        """
        self._client = client
        self._report = report
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether some are still to be reported."""
        return bool(self._tasks)

    def found(self, station: QueueState, lost: Sequence[Lost]) -> None:
        """Have attempts reported that a claim has found to have ended."""
        task = asyncio.create_task(self._read(station, lost))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Wait for what is being read."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    async def _read(self, station: QueueState, lost: Sequence[Lost]) -> None:
        ids = [one.claimed.id for one in lost]
        bodies = [b""] * len(ids)
        try:
            found = await self._client.run(job_commands.fetch(station.keys, ids))
            bodies = [job.raw_body if job else b"" for job in found]
        except BideError as error:
            log.warning(
                "queue %s: hooks do not get the arguments of crashed jobs: %s", station.queue, error
            )
        for one, body in zip(lost, bodies, strict=True):
            now = time.monotonic()
            run = RunningJob(station, one.claimed._replace(body=body), now, lambda: None)
            run.deadline = now
            self._report(run, _how(one), one.has_failed)


def _how(lost: Lost) -> str:
    """Say how an attempt ended, in a sentence."""
    worker = printable(lost.worker)  # as another program may have written it
    if not lost.has_failed:
        return (
            f"Its worker {worker} died or stopped while it held this job; the job may have started."
        )
    claimed = lost.claimed
    return (
        f"Its worker died or stopped {claimed.reclaims} times under this job, {claimed.crashes} "
        f"of them while it ran alone; the last was {worker}."
    )
