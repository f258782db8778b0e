"""How a run ended: from what a task returned or raised to the outcome that is settled."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bide.errors import JobCancelled, JobTimeout, PayloadError, WorkerCrashed
from bide.ops.consume import Outcome
from bide.outcomes import Fail, RetryLater, Snooze
from bide.payload.codec import encode_error, encode_result
from bide.retry import Retry
from bide.task import Served

if TYPE_CHECKING:
    from bide.worker.running import Run

log = logging.getLogger("bide.worker")

Ended = tuple[Outcome, str, bytes]
"""Outcome, when, data: as `ops.consume.Settle` has them."""

_ASKED_FOR = Retry()
"""What bounds `RetryLater` in a job that has no policy."""


def completed(run: Run, result: object) -> Ended:
    """The outcome of a run that returned."""
    try:
        return "complete", kept(run), encode_result(run.task_name, result, run.codec)
    except PayloadError as error:
        log.error("%s", error)
        return "fail", kept(run), encode_error(error)


def meant(run: Run, error: BaseException) -> BaseException:
    """What a run's error stands for: whatever it raised when its time was over, its time-out."""
    return overrun(run) if run.timed_out and not isinstance(error, JobTimeout) else error


def raised(run: Run, error: BaseException, served: Served) -> Ended:
    """The outcome of a run that raised what `meant` made of it: another attempt, or the end."""
    what = f"{run.task_name} (job {run.claimed.id}) attempt {run.claimed.attempt}"
    if isinstance(error, Snooze):
        log.info("%s was snoozed", what)
        return "snooze", error.when, b""
    if isinstance(error, JobCancelled) or (
        run.asked and isinstance(error, asyncio.CancelledError) and not run.timed_out
    ):
        log.info("%s was cancelled while it ran", what)
        return "cancel", "", b""
    delay = _delay(run, error, served)
    data = encode_error(error)
    if delay is None:
        if not run.ended:
            log.error("%s failed: %r", what, error)
        return "fail", kept(run), data
    if not run.ended:
        log.warning("%s raised %r; again in %.3g s", what, error, delay)
    return "retry", f"+{round(delay * 1e6)}", data


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
    return "" if run.policy.keep is None else f"+{round(run.policy.keep * 1e6)}"


def _delay(run: Run, error: BaseException, served: Served) -> float | None:
    """Seconds until the next attempt; None where there is to be none."""
    if isinstance(error, Fail | WorkerCrashed):
        return None
    asks = isinstance(error, RetryLater)
    retry = _ASKED_FOR if asks and not run.policy.has_retry else run.policy.retry
    delay = retry.decide(run.claimed.attempt, error, run.elapsed(), served.function)
    if delay is not None and isinstance(error, RetryLater) and error.delay_us is not None:
        return error.delay_us / 1e6
    return delay
