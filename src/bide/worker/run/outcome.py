"""How a run ended: from what a task returned or raised to the outcome that is settled."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from bide.errors import (
    BideError,
    JobCancelled,
    JobTimeout,
    PayloadError,
    PayloadTooNew,
    TaskNotFound,
    WorkerCrashed,
)
from bide.logs import Log
from bide.model.context import Fail, RetryLater, Snooze
from bide.model.durations import LONGEST_US, describe, from_us
from bide.model.ids import short_id
from bide.model.payload.body import encode_error, encode_result
from bide.model.retry import Retry
from bide.protocol.commands.enqueue import check_when
from bide.tasks.task import Function, TaskRegistry
from bide.worker.run.running_job import UNBEGUN, Ended

if TYPE_CHECKING:
    from bide.worker.run.running_job import RunningJob

_OURS: Final = ("bide", "importlib")
"""Packages whose frames a traceback does not begin with."""

_BETWEEN: Final = ("asyncio", "concurrent", "contextlib", "threading", "uvloop")
"""Packages by which bide calls itself and the application. They may hold a task, too: their frames
are dropped only where others follow that are dropped, or the application's."""

_TASKS: Final = "bide.cli.demo"
"""The package of bide that holds tasks: it counts as an application."""


def begin_in_application(error: BaseException) -> None:
    """Drop the frames of bide that the tracebacks of an error and of its causes begin with.

    A traceback that has no other frames stays as it is: it shows a defect of bide.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = from_application(one.__traceback__)
        if trace is not None:  # not by assignment, which an exception may forbid
            BaseException.with_traceback(one, trace)
        chain += (one.__cause__, one.__context__)


def from_application(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the application's first frame on; None if it has no such frame."""
    left = trace
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package in _OURS and not module.startswith(_TASKS):
            left = trace.tb_next
        elif package not in _BETWEEN:
            return trace
        trace = trace.tb_next
    return left


log = Log("bide.worker")


class RunOutcome(NamedTuple):
    """What a run came to."""

    ended: Ended
    callback: Function | str | None
    """What is to be called now."""
    value: object
    """What the callback is told: the result, or the error."""
    retry_in: float | None = None
    """Seconds until the next attempt, after one that failed; None if there is none."""
    raised: bool = False
    """The error came out of the run itself."""

    @property
    def is_failure(self) -> bool:
        """Whether the attempt failed, finally or not."""
        return self.ended[0] in ("retry", "fail", "crash")


CRASHES: Final = 3
"""Crashes alone at which a job has failed: as `settle.lua` counts them."""

_LEAVE_FOR: Final = "+10000000"
"""When a job that a newer worker must run is looked at again, if none has come for it: a claim each
ten seconds, however many old workers there are."""

PATIENCE: Final = 600.0
"""Seconds for which a job waits for a worker that serves its task: time to deploy one."""

MOST_LOGGED: Final = 100
"""Failed attempts of one task that a process logs in a second."""

_ASKED_FOR: Final = Retry()
"""What bounds `RetryLater` in a job that has no policy."""


class LogLimiter:
    """Limits how many failed attempts of a task this process logs in a second.

    To log an error takes longer than to run a job that raises at once, so logging all of them would
    delay the jobs behind. Each job keeps its error in any case. Attempts that will be retried count
    apart from final failures, on which alerts depend.
    """

    def __init__(self) -> None:
        self._second = 0
        self._counts: dict[tuple[str, bool], int] = {}

    def may_log(self, task: str, is_final: bool = True) -> bool:
        """Count a failed attempt; whether to log it. Any thread may call."""
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
    """What a run that returned came to: its end, or that its result cannot be stored."""
    try:
        data = encode_result(run.task_name, result, run.codec)
        if run.codec == "pickle":
            data = run.station.seal.sign("result", run.claimed.id, data) if data else data
    except PayloadError as error:
        if _floods.may_log(run.task_name):
            log.error("%s (job %s) failed: %s", run.task_name, short_id(run.claimed.id), error)
        return failed(run, error)
    return RunOutcome(("complete", kept(run), data), run.policy.on_success, result)


def failed(run: RunningJob, error: BaseException) -> RunOutcome:
    """Return what a run came to that failed for good."""
    return RunOutcome(("fail", kept(run), encode_error(error)), run.policy.on_failure, error)


def raised(
    run: RunningJob, error: BaseException, served: TaskRegistry, *, in_run: bool = False
) -> RunOutcome:
    """What a run that raised came to: another attempt, or the end.

    Whatever goes wrong while that is found out (a backoff function may raise anything) ends the
    job, and is its error.

    Args:
        run: the run.
        error: what was raised.
        served: the tasks, where a backoff function is found.
        in_run: it was raised by the function or by what surrounds it, and not before or instead.
    """
    try:
        begin_in_application(error)
        judged = _raised(run, error, served, in_run)
    except BaseException as broken:
        _log_failure(run.task_name, f"{run.task_name} (job {short_id(run.claimed.id)})", broken)
        return failed(run, broken)
    return judged._replace(raised=in_run and judged.value is error)


def _raised(
    run: RunningJob, error: BaseException, served: TaskRegistry, in_run: bool
) -> RunOutcome:
    if run.timed_out and not isinstance(error, JobTimeout):
        error = overrun(run)
    what = f"{run.task_name} (job {short_id(run.claimed.id)}) attempt {run.claimed.attempt}"
    if isinstance(error, PayloadTooNew) and not in_run:
        log.warning("job %s is given back: %s", short_id(run.claimed.id), error)
        return RunOutcome(("snooze", _LEAVE_FOR, b""), None, None)
    if run.missing and isinstance(error, TaskNotFound):
        if run.waited() < PATIENCE:
            return _wait_for_task(run, error)
        error = TaskNotFound(
            f"{error} No worker that took this job in {describe(PATIENCE)} has it."
        )
    if isinstance(error, Snooze):
        log.info("%s was snoozed", what)
        return RunOutcome(("snooze", check_when(error.when), b""), None, None)
    if isinstance(error, RetryLater) and error.queue:
        log.info("%s holds queue %s: %s", what, run.station.queue, error)
        return RunOutcome(("hold", check_when(f"+{error.delay_us}"), b""), None, None)
    if _is_cancelled(run, error):
        log.info("%s was cancelled while it ran", what)
        return RunOutcome(("cancel", "", b""), None, None)
    delay = _delay(run, error, served)
    if delay is None:
        if not run.ended:
            _log_failure(run.task_name, what, error)
        return failed(run, error)
    if not run.ended and _floods.may_log(run.task_name, is_final=False):
        log.warning("%s raised %r; again in %.3g s", what, error, delay)
    return RunOutcome(("retry", f"+{round(delay * 1e6)}", encode_error(error)), None, error, delay)


def _wait_for_task(run: RunningJob, error: TaskNotFound) -> RunOutcome:
    """Leave a job for a worker that serves its task; a deployment may be about to bring one.

    `unserved`, which sees all jobs of the worker, says when it is looked at again, and logs it.
    """
    since_us = run.claimed.missing_us or run.claimed.token
    until = from_us(since_us + round(PATIENCE * 1e6))
    why = TaskNotFound(f"{error} It waits for a worker that has it until {until:%F %T} UTC.")
    return RunOutcome(("snooze", _LEAVE_FOR, encode_error(why)), None, None)


def died(run: RunningJob, how: str) -> RunOutcome:
    """What a run came to whose process died under it, and under no other job.

    How often that may happen is for the server to say; this only knows when it is the last time.
    """
    if run.policy.on_crash == "fail":
        error = WorkerCrashed(f"{how} on_crash='fail' forbids to run the job again.")
        return failed(run, error)
    error = WorkerCrashed(how)
    ended: Ended = ("crash", kept(run), encode_error(error))
    if run.claimed.crashes + 1 >= CRASHES:
        return RunOutcome(ended, run.policy.on_failure, error)
    return RunOutcome(ended, None, error, retry_in=0.0)


def lost(run: RunningJob, how: str, has_failed: bool) -> RunOutcome:
    """Return what an attempt came to whose worker has died; the server has decided that already.

    Of a job that must not run again after that, its next claim says so.
    """
    error = WorkerCrashed(how)
    if has_failed:
        return RunOutcome(("fail", "", b""), run.policy.on_failure, error)
    if run.policy.on_crash == "fail":
        return RunOutcome(UNBEGUN, None, error)
    return RunOutcome(("crash", "", b""), None, error, retry_in=0.0)


def crashed() -> WorkerCrashed:
    """The error of a job that must not be repeated, and whose worker died under it."""
    return WorkerCrashed(
        "Its worker died or stopped while it held this job, which on_crash='fail' forbids to "
        "repeat; whether it had begun is not known."
    )


def overrun(run: RunningJob) -> JobTimeout:
    """The error of a run that took too long."""
    return JobTimeout(f"{run.task_name} ran longer than its time-out of {run.policy.timeout:g} s.")


def kept(run: RunningJob) -> str:
    """How long the finished job is kept, where it or its task says so."""
    keep = run.policy.keep
    return "" if keep is None else f"+{round(min(max(keep, 0), LONGEST_US / 1e6) * 1e6)}"


def _log_failure(task: str, what: str, error: BaseException) -> None:
    """Log an error, with its traceback unless its sentence says all there is to say.

    Some exceptions make it impossible to show them.
    """
    if not _floods.may_log(task):
        return
    try:
        told = None if isinstance(error, BideError) else error
        log.error("%s failed: %r", what, error, exc_info=told)
    except BaseException:  # a handler that does not swallow what formatting raised
        log.error("%s failed: %s, which cannot be shown", what, type(error).__name__)


def _is_cancelled(run: RunningJob, error: BaseException) -> bool:
    """Whether a run ends as cancelled: it says so itself, or was asked to end and obeyed."""
    if isinstance(error, JobCancelled):
        return error.job_id is None
    return run.asked and isinstance(error, asyncio.CancelledError)


def _delay(run: RunningJob, error: BaseException, served: TaskRegistry) -> float | None:
    """Seconds until the next attempt; None where there is to be none."""
    if isinstance(error, Fail | WorkerCrashed):
        return None
    attempt, elapsed, retry = run.claimed.attempt, run.elapsed(), run.policy.retry
    if isinstance(error, RetryLater):
        if not run.policy.has_retry:
            retry = _ASKED_FOR
        delay = None if error.delay_us is None else error.delay_us / 1e6
        return retry.decide(attempt, error, elapsed, served.function, asked=True, delay=delay)
    return retry.decide(attempt, error, elapsed, served.function)
