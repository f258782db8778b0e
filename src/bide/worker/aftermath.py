"""What is called once a run has ended: the hooks that hear of a failure, then the job's callback.

None of them changes how the run ended, and what one raises is logged. They run in the context of
the job: on the event loop those of a coroutine function, in its thread those of a plain function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bide.current import current_job
from bide.ids import short_id
from bide.logs import Log
from bide.middleware import FailedAttempt, hearing_failures
from bide.task import Function, Served, is_async
from bide.worker.calling import Wait
from bide.worker.frames import begin_in_application
from bide.worker.judging import Judged
from bide.worker.reading import arguments_of
from bide.worker.run import Run

log = Log("bide.worker")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a plain function in a thread."""


class _Call(NamedTuple):
    """A function of the user's that is to be called."""

    name: str
    function: Function | str
    args: Sequence[Any]

    def resolve(self, served: Served) -> Function:
        """Return the function; a job may name its callback."""
        return served.function(self.function) if isinstance(self.function, str) else self.function


def is_due(judged: Judged) -> bool:
    """Whether something is to be called after a run that ended so."""
    return judged.callback is not None or (judged.is_failure and bool(hearing_failures()))


async def call_async(
    run: Run, judged: Judged, served: Served, in_thread: InThread, seconds: float
) -> None:
    """Call it all from the event loop, within so many seconds."""
    end = asyncio.get_running_loop().time() + seconds
    for call in _calls(run, judged):
        try:
            async with asyncio.timeout_at(end):
                await _call_async(call, served, in_thread)
        except TimeoutError:
            log.warning("job %s: %s took too long", short_id(run.claimed.id), call.name)


async def _call_async(call: _Call, served: Served, in_thread: InThread) -> None:
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


def call(run: Run, judged: Judged, served: Served, wait: Wait) -> None:
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


def _calls(run: Run, judged: Judged) -> list[_Call]:
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


def _failure(run: Run, judged: Judged) -> FailedAttempt:
    assert isinstance(judged.value, BaseException)
    args, kwargs = arguments_of(run)
    return FailedAttempt(current_job(), judged.value, args, kwargs, judged.retry_in, judged.raised)
