"""How a run ended: from what a task returned or raised to the outcome that is settled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bide.clock import LONGEST_US, describe, from_us
from bide.errors import (
    BideError,
    JobCancelled,
    JobTimeout,
    PayloadError,
    PayloadTooNew,
    TaskNotFound,
    WorkerCrashed,
)
from bide.ids import short_id
from bide.logs import Log
from bide.ops.produce import check_when
from bide.outcomes import Fail, RetryLater, Snooze
from bide.payload.codec import encode_error, encode_result
from bide.retry import Retry
from bide.task import Function, Served
from bide.worker.frames import begin_in_application
from bide.worker.run import UNBEGUN, Ended

if TYPE_CHECKING:
    from bide.worker.run import Run

log = Log("bide.worker")


class Judged(NamedTuple):
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


class Floods:
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


_floods: Final = Floods()


def completed(run: Run, result: object) -> Judged:
    """What a run that returned came to: its end, or that its result cannot be stored."""
    try:
        data = encode_result(run.task_name, result, run.codec)
        if run.codec == "pickle":
            data = run.station.seal.sign("result", run.claimed.id, data) if data else data
    except PayloadError as error:
        if _floods.may_log(run.task_name):
            log.error("%s (job %s) failed: %s", run.task_name, short_id(run.claimed.id), error)
        return failed(run, error)
    return Judged(("complete", kept(run), data), run.policy.on_success, result)


def failed(run: Run, error: BaseException) -> Judged:
    """Return what a run came to that failed for good."""
    return Judged(("fail", kept(run), encode_error(error)), run.policy.on_failure, error)


def raised(run: Run, error: BaseException, served: Served, *, in_run: bool = False) -> Judged:
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


def _raised(run: Run, error: BaseException, served: Served, in_run: bool) -> Judged:
    if run.timed_out and not isinstance(error, JobTimeout):
        error = overrun(run)
    what = f"{run.task_name} (job {short_id(run.claimed.id)}) attempt {run.claimed.attempt}"
    if isinstance(error, PayloadTooNew) and not in_run:
        log.warning("job %s is given back: %s", short_id(run.claimed.id), error)
        return Judged(("snooze", _LEAVE_FOR, b""), None, None)
    if run.missing and isinstance(error, TaskNotFound):
        if run.waited() < PATIENCE:
            return _waits(run, error)
        error = TaskNotFound(
            f"{error} No worker that took this job in {describe(PATIENCE)} has it."
        )
    if isinstance(error, Snooze):
        log.info("%s was snoozed", what)
        return Judged(("snooze", check_when(error.when), b""), None, None)
    if isinstance(error, RetryLater) and error.queue:
        log.info("%s holds queue %s: %s", what, run.station.queue, error)
        return Judged(("hold", check_when(f"+{error.delay_us}"), b""), None, None)
    if _is_cancelled(run, error):
        log.info("%s was cancelled while it ran", what)
        return Judged(("cancel", "", b""), None, None)
    delay = _delay(run, error, served)
    if delay is None:
        if not run.ended:
            _log_failure(run.task_name, what, error)
        return failed(run, error)
    if not run.ended and _floods.may_log(run.task_name, is_final=False):
        log.warning("%s raised %r; again in %.3g s", what, error, delay)
    return Judged(("retry", f"+{round(delay * 1e6)}", encode_error(error)), None, error, delay)


def _waits(run: Run, error: TaskNotFound) -> Judged:
    """Leave a job for a worker that serves its task; a deployment may be about to bring one.

    `unserved`, which sees all jobs of the worker, says when it is looked at again, and logs it.
    """
    since_us = run.claimed.missing_us or run.claimed.token
    until = from_us(since_us + round(PATIENCE * 1e6))
    why = TaskNotFound(f"{error} It waits for a worker that has it until {until:%F %T} UTC.")
    return Judged(("snooze", _LEAVE_FOR, encode_error(why)), None, None)


def died(run: Run, how: str) -> Judged:
    """What a run came to whose process died under it, and under no other job.

    How often that may happen is for the server to say; this only knows when it is the last time.
    """
    if run.policy.on_crash == "fail":
        error = WorkerCrashed(f"{how} on_crash='fail' forbids to run the job again.")
        return failed(run, error)
    error = WorkerCrashed(how)
    ended: Ended = ("crash", kept(run), encode_error(error))
    if run.claimed.crashes + 1 >= CRASHES:
        return Judged(ended, run.policy.on_failure, error)
    return Judged(ended, None, error, retry_in=0.0)


def lost(run: Run, how: str, has_failed: bool) -> Judged:
    """Return what an attempt came to whose worker has died; the server has decided that already.

    Of a job that must not run again after that, its next claim says so.
    """
    error = WorkerCrashed(how)
    if has_failed:
        return Judged(("fail", "", b""), run.policy.on_failure, error)
    if run.policy.on_crash == "fail":
        return Judged(UNBEGUN, None, error)
    return Judged(("crash", "", b""), None, error, retry_in=0.0)


def crashed() -> WorkerCrashed:
    """The error of a job that must not be repeated, and whose worker died under it."""
    return WorkerCrashed(
        "Its worker died or stopped while it held this job, which on_crash='fail' forbids to "
        "repeat; whether it had begun is not known."
    )


def overrun(run: Run) -> JobTimeout:
    """The error of a run that took too long."""
    return JobTimeout(f"{run.task_name} ran longer than its time-out of {run.policy.timeout:g} s.")


def kept(run: Run) -> str:
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


def _is_cancelled(run: Run, error: BaseException) -> bool:
    """Whether a run ends as cancelled: it says so itself, or was asked to end and obeyed."""
    if isinstance(error, JobCancelled):
        return error.job_id is None
    return run.asked and isinstance(error, asyncio.CancelledError)


def _delay(run: Run, error: BaseException, served: Served) -> float | None:
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
