"""Converts what a task returned or raised to the outcome that is settled."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from types import TracebackType
from typing import Final, Literal

import msgspec

from bide.errors import (
    BideError,
    JobCancelled,
    JobTimeout,
    PayloadError,
    PayloadTooNew,
    TaskNotFound,
    UsageError,
    WorkerCrashed,
)
from bide.logs import Log
from bide.model.context import Fail, PauseQueue, RetryLater, Snooze
from bide.model.durations import LONGEST_US, describe, from_us
from bide.model.ids import short_id
from bide.model.payload.body import encode_error, encode_result
from bide.model.retry import Retry
from bide.protocol.commands.enqueue import check_when
from bide.protocol.commands.worker import Ended
from bide.tasks.task import Function, TaskRegistry
from bide.worker.running_job import CANCELLED, UNBEGUN, RunningJob

_OURS: Final = ("bide", "importlib")
"""Packages whose frames are dropped from the start of a traceback."""

_BETWEEN: Final = ("asyncio", "concurrent", "contextlib", "threading", "uvloop")
"""Packages through which bide calls itself and the application. They may contain tasks too. So
their frames are dropped only if a frame of bide or of the application follows."""

_OF_THE_JOB: Final = (PayloadError, TaskNotFound)
"""Errors that bide raises before or after the call of a task, if its job is at fault."""

_TASKS: Final = "bide.cli.demo"
"""The package of bide that contains tasks: it counts as an application."""


def begin_in_application(error: BaseException) -> None:
    """Drop the frames of bide at the start of the tracebacks of an error and its causes.

    A traceback without other frames stays as it is: it shows a defect of bide. But an error in
    `_OF_THE_JOB` keeps none of them: its sentence says what is wrong with the job.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = from_application(one.__traceback__)
        if trace is not None or isinstance(one, _OF_THE_JOB):  # an exception may forbid assignment
            BaseException.with_traceback(one, trace)
        chain += (one.__cause__, None if one.__suppress_context__ else one.__context__)


def from_application(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the application's first frame; None if there is no such frame."""
    left = trace
    while trace is not None:
        whose = _whose(str(trace.tb_frame.f_globals.get("__name__", "")))
        if whose == "ours":
            left = trace.tb_next
        elif whose == "application":
            return trace
        trace = trace.tb_next
    return left


@lru_cache(maxsize=256)
def _whose(module: str) -> Literal["ours", "between", "application"]:
    """Tell whose code a module is."""
    package = module.partition(".")[0]
    if package in _OURS and not module.startswith(_TASKS):
        return "ours"
    return "between" if package in _BETWEEN else "application"


log = Log("bide.worker")


class RunOutcome(msgspec.Struct, frozen=True):
    """The outcome of a run, and what follows it."""

    ended: Ended
    callback: Function | str | None
    """The callback to call now."""
    value: object
    """The argument of the callback: the result, or the error."""
    retry_in: float | None = None
    """Seconds until the next attempt, after one that failed; None if there is none."""
    raised: bool = False
    """Whether the error was raised by the run itself."""

    @property
    def is_failure(self) -> bool:
        """Whether the attempt failed, finally or not."""
        return self.ended.outcome in ("retry", "fail", "crash")


CRASHES: Final = 3
"""Crashes with no other job beside it after which a job fails; `settle.lua` counts them."""

_LEAVE_FOR: Final = "+10000000"
"""Delay in microseconds until a job that needs a newer worker is claimed again: every 10 s, however
many old workers there are."""

PATIENCE: Final = 600.0
"""Seconds for which a job waits for a worker that serves its task, so that one can be deployed."""

MOST_LOGGED: Final = 100
"""Maximum number of failed attempts of one task that a process logs in a second."""

_RETRY_LATER: Final = Retry()
"""Limits `RetryLater` in a job without a retry policy."""


class LogLimiter:
    """Limits how many failed attempts of a task this process logs in a second.

    Logging an error takes longer than running a job that raises immediately, so logging all errors
    would delay later jobs. Each job stores its error in any case. Attempts that will be retried are
    counted separately from final failures, on which alerts depend.
    """

    def __init__(self) -> None:
        self._second = 0
        self._counts: dict[tuple[str, bool], int] = {}

    def may_log(self, task: str, is_final: bool = True) -> bool:
        """Count a failed attempt; return whether to log it. Any thread may call."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._counts = second, {}
        key = task, is_final
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == MOST_LOGGED + 1:
            log.warning(
                "%s: more than %d attempts failed within a second; the other errors of this second "
                "are kept with their jobs, and not logged",
                task,
                MOST_LOGGED,
            )
        return count <= MOST_LOGGED


_floods: Final = LogLimiter()


def completed(run: RunningJob, result: object) -> RunOutcome:
    """Return the outcome of a run that returned: it fails if its result cannot be stored."""
    try:
        data = encode_result(run.task_name, result, run.codec)
        if run.codec == "pickle":
            data = run.queue_state.seal.sign("result", run.claimed.id, data) if data else data
    except PayloadError as error:
        if _floods.may_log(run.task_name):
            log.error("%s (job %s) failed: %s", run.task_name, short_id(run.claimed.id), error)
        begin_in_application(error)
        return failed(run, error)
    ended = Ended("complete", data=data, keep=kept(run))
    return RunOutcome(ended, run.policy.on_success, result)


def failed(run: RunningJob, error: BaseException) -> RunOutcome:
    """Return the outcome of a run that failed and is not retried."""
    ended = Ended("fail", data=encode_error(error), keep=kept(run))
    return RunOutcome(ended, run.policy.on_failure, error)


def raised(
    run: RunningJob, error: BaseException, served: TaskRegistry, *, in_run: bool = False
) -> RunOutcome:
    """Return the outcome of a run that raised: a retry, or the end of the job.

    If deciding this raises itself (a backoff function may raise anything), the job fails with that
    error.

    Args:
        run: the run.
        error: the error that was raised.
        served: the tasks, among which a backoff function is looked up.
        in_run: whether the function or a middleware around it raised the error, and not a step
            before the call.
    """
    try:
        begin_in_application(error)
        outcome = _raised(run, error, served, in_run)
    except BaseException as broken:
        _log_failure(run.task_name, f"{run.task_name} (job {short_id(run.claimed.id)})", broken)
        return failed(run, broken)
    if in_run and outcome.value is error:
        return msgspec.structs.replace(outcome, raised=True)
    return outcome


def _raised(
    run: RunningJob, error: BaseException, served: TaskRegistry, in_run: bool
) -> RunOutcome:
    if run.timed_out and not isinstance(error, JobTimeout):
        error = overrun(run)
    what = f"{run.task_name} (job {short_id(run.claimed.id)}) attempt {run.claimed.attempt}"
    if isinstance(error, PayloadTooNew) and not in_run:
        log.warning("job %s is released: %s", short_id(run.claimed.id), error)
        return RunOutcome(Ended("snooze", due=_LEAVE_FOR), None, None)
    if run.missing and isinstance(error, TaskNotFound | PayloadError):
        if run.waited() < PATIENCE:
            return _wait_for_worker(run, error)
        if run.missing == "task":
            error = TaskNotFound(
                f"{error} No worker that took this job in {describe(PATIENCE)} has it."
            )
    if isinstance(error, Snooze):
        log.info("%s was snoozed", what)
        return RunOutcome(Ended("snooze", due=check_when(error.when)), None, None)
    if isinstance(error, PauseQueue):
        log.info("%s paused queue %s: %s", what, run.queue_state.queue, error)
        return RunOutcome(Ended("hold", due=check_when(f"+{error.delay_us}")), None, None)
    if _is_cancelled(run, error):
        log.info("%s was cancelled while it ran", what)
        return RunOutcome(CANCELLED, None, None)
    delay = _delay(run, error, served)
    if delay is None:
        if not run.ended:
            _log_failure(run.task_name, what, error)
        return failed(run, error)
    if not run.ended and _floods.may_log(run.task_name, is_final=False):
        log.warning("%s raised %r; again in %.3g s", what, error, delay)
    ended = Ended("retry", due=f"+{round(delay * 1e6)}", data=encode_error(error))
    return RunOutcome(ended, None, error, delay)


def _wait_for_worker(run: RunningJob, error: TaskNotFound | PayloadError) -> RunOutcome:
    """Leave a job for a worker that can run it, which may be about to be deployed.

    `UnknownTasks`, which sees all jobs of the worker, decides when to retry, and logs the job.
    """
    since_us = run.claimed.missing_us or run.claimed.token
    until = from_us(since_us + round(PATIENCE * 1e6))
    kind, does = (TaskNotFound, "has") if run.missing == "task" else (PayloadError, "takes")
    why = kind(f"{error} It waits for a worker that {does} it until {until:%F %T} UTC.")
    return RunOutcome(Ended("snooze", due=_LEAVE_FOR, data=encode_error(why)), None, None)


def died(run: RunningJob, how: str) -> RunOutcome:
    """Return the outcome of a run whose process died while it ran no other job.

    The server counts how often that may happen. This function only recognises the last time.
    """
    if run.policy.on_crash == "fail":
        error = WorkerCrashed(f"{how} on_crash='fail' forbids to run the job again.")
        return failed(run, error)
    error = WorkerCrashed(how)
    ended = Ended("crash", data=encode_error(error), keep=kept(run))
    if run.claimed.crashes + 1 >= CRASHES:
        return RunOutcome(ended, run.policy.on_failure, error)
    return RunOutcome(ended, None, error, retry_in=0.0)


def lost(run: RunningJob, how: str, has_failed: bool) -> RunOutcome:
    """Return the outcome of an attempt whose worker died; the server has recorded it already.

    If the job must not run again, that is decided at its next claim.
    """
    error = WorkerCrashed(how)
    if has_failed:
        return RunOutcome(Ended("fail"), run.policy.on_failure, error)
    if run.policy.on_crash == "fail":
        return RunOutcome(UNBEGUN, None, error)
    return RunOutcome(Ended("crash"), None, error, retry_in=0.0)


def crashed() -> WorkerCrashed:
    """Return the error of a job that must not be repeated and whose worker died under it."""
    return WorkerCrashed(
        "Its worker died or stopped while it held this job, which on_crash='fail' forbids to "
        "repeat; whether it had begun is not known."
    )


def overrun(run: RunningJob) -> JobTimeout:
    """Return the error of a run that exceeded its time-out."""
    return JobTimeout(f"{run.task_name} ran longer than its time-out of {run.policy.timeout:g} s.")


def kept(run: RunningJob) -> str:
    """Return how long the finished job is kept, if it or its task has the option."""
    keep = run.policy.keep
    return "" if keep is None else f"+{round(min(max(keep, 0), LONGEST_US / 1e6) * 1e6)}"


def _log_failure(task: str, what: str, error: BaseException) -> None:
    """Log an error, with its traceback unless it is an error of bide with a full sentence.

    A `UsageError` has one too, because a line of the application is wrong. Formatting an exception
    of the application may raise.
    """
    if not _floods.may_log(task):
        return
    try:
        is_ours = isinstance(error, BideError) and not isinstance(error, UsageError)
        traced = None if is_ours else error
        log.error("%s failed: %r", what, error, exc_info=traced)
    except BaseException:  # a log handler may pass on errors of the formatting
        log.error("%s failed: %s, which cannot be shown", what, type(error).__name__)


def _is_cancelled(run: RunningJob, error: BaseException) -> bool:
    """Whether a run ends as cancelled: it raised `JobCancelled`, or a request cancelled it."""
    if isinstance(error, JobCancelled):
        return error.job_id is None
    return run.cancel_requested and isinstance(error, asyncio.CancelledError)


def _delay(run: RunningJob, error: BaseException, served: TaskRegistry) -> float | None:
    """Return the seconds until the next attempt; None if there is none."""
    if isinstance(error, Fail | WorkerCrashed):
        return None
    attempt, elapsed, retry = run.claimed.attempt, run.elapsed(), run.policy.retry
    if isinstance(error, RetryLater):
        if not run.policy.has_retry:
            retry = _RETRY_LATER
        delay = None if error.delay_us is None else error.delay_us / 1e6
        return retry.decide(attempt, error, elapsed, served.function, asked=True, delay=delay)
    return retry.decide(attempt, error, elapsed, served.function)
