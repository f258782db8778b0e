"""The job that the calling code runs in, across awaits and in threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Protocol

from bide.errors import BideError, JobCancelled, UsageError
from bide.model.durations import Duration, at_to_us, delay_to_us, from_us
from bide.model.history import LOG, PROGRESS, encode_log, encode_progress
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import Body
from bide.model.schedule import time_of


class RunSide(Protocol):
    """The worker's side of a running job."""

    @property
    def unwanted(self) -> bool:
        """Whether the outcome of this run is not needed any more."""
        ...

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, by the retry policy."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        ...

    @property
    def lateness(self) -> float:
        """Seconds from the due time to the first statement."""
        ...

    def arguments(self) -> Body:
        """Return the body with its arguments; raise `PayloadError` if they cannot be read."""
        ...

    def add_note(self, kind: str, text: bytes) -> None:
        """Add a note to the job, with the next round trip."""


class CurrentJob:
    """The job of the running task."""

    __slots__ = (
        *("_claimed", "_run", "id", "meta", "parents", "queue", "schedule", "task", "worker"),
    )

    def __init__(
        self,
        queue: str,
        worker: str,
        task: str,
        claimed: Claimed,
        run: RunSide,
        meta: Mapping[str, Any] | None = None,
        schedule: str | None = None,
        parents: Sequence[str] = (),
    ) -> None:
        self.id: Final = claimed.id
        """The job's id."""
        self.queue: Final = queue
        """The name of its queue."""
        self.worker: Final = worker
        """The name of the worker."""
        self.task: Final = task
        """The task's name."""
        self.meta: Final[Mapping[str, Any]] = meta or {}
        """The notes that the producer gave with `meta=`."""
        self.parents: Final = tuple(parents)
        """The ids of its parents, in the order given; a parent in another queue is
        `{queue}id`. `queue.parents()` reads them, with their results."""
        self.schedule: Final = schedule
        """The name of the schedule that created it; None for a job that was enqueued."""
        self._claimed = claimed
        self._run = run

    def __repr__(self) -> str:
        return f"<CurrentJob {short_id(self.id)} {self.task} attempt {self.attempt}>"

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they are stored: plain values.

        Raises:
            PayloadError: they cannot be read; only in a hook or a callback.
        """
        return tuple(self._run.arguments().args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they are stored: plain values; raises as `args` does."""
        return dict(self._run.arguments().kwargs)

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self._claimed.attempt

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, by the retry policy; 1 without a policy."""
        return self._run.max_attempts

    @property
    def token(self) -> int:
        """The fencing token, for your own `WHERE token < ...`: it grows with every claim."""
        return self._claimed.token

    @property
    def redelivered(self) -> bool:
        """Whether a worker died or stopped during this attempt: the work may be half done."""
        return self._claimed.reclaims > 0

    @property
    def due(self) -> datetime:
        """The due time of this run, as an aware datetime."""
        return from_us(self._claimed.due_us)

    @property
    def lateness(self) -> float:
        """Seconds from `due` to the first statement of this run, by the server's clock.

        In a child process it includes the time that the claim took to reach the server.
        """
        return self._run.lateness

    @property
    def first_due(self) -> datetime:
        """When the job was first due, before any retry."""
        return from_us(self._claimed.first_us)

    @property
    def schedule_time(self) -> datetime | None:
        """The time of its schedule, without jitter, however late the job runs.

        None for a job that was enqueued, or that `run` created.
        """
        return time_of(self.id, self.schedule)

    @property
    def should_stop(self) -> bool:
        """Whether this run should end; a plain function must check this itself.

        It is true if the job was cancelled, if its time-out has passed, if its worker has returned
        it to the queue, or if another worker has its lease.
        """
        return self._run.unwanted

    def raise_if_cancelled(self) -> None:
        """End this run here if `should_stop` is true.

        Raises:
            JobCancelled: the run should end; do not catch it, so that a cancelled job ends as
                cancelled.
        """
        if self._run.unwanted:
            raise JobCancelled(
                "The job was cancelled, ran too long, or now belongs to another worker."
            )

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the job's progress, for `job.progress`; sent with the next round trip.

        Args:
            fraction: from 0 to 1.
            text: a description; cut after 500 characters.

        Raises:
            UsageError: the fraction is not a number from 0 to 1.
        """
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise UsageError(f"progress must be a number from 0 to 1, not {fraction!r}.")
        self._run.add_note(PROGRESS, encode_progress(float(fraction), str(text)))

    def log(self, text: str) -> None:
        """Add a line to the job's own log, for `job.logs`; sent with the next round trip.

        The latest 100 lines are kept, each cut after 2,000 characters, 32 KB in all.
        """
        self._run.add_note(LOG, encode_log(str(text)))


_current: ContextVar[CurrentJob] = ContextVar("bide_current_job")


def current_job() -> CurrentJob:
    """Return the job that the calling code runs in.

        current_job().progress(0.5, "500 of 1,000 rows")

    Raises:
        UsageError: the code does not run in a job.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError(
            "current_job() was called outside of a job; call it in a task while a worker runs it."
        ) from None


def enter(job: CurrentJob) -> None:
    """Make `job` the current one of this context."""
    _current.set(job)


@contextmanager
def within(job: CurrentJob) -> Iterator[None]:
    """Make `job` the current one for a while."""
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)


class RetryLater(BideError):
    """Raise this in a job to end this attempt, and to run the job again later.

    It uses an attempt, so the job's `retry` policy limits the retries. A job without a policy is
    retried three times, as with `Retry()`.
    """

    def __init__(self, delay: Duration | None = None, message: str = "") -> None:
        """Set the delay.

        Args:
            delay: from now; None for the delay of the job's retry policy.
            message: why, for the job's errors.

        Raises:
            UsageError: the delay is not a duration.
        """
        super().__init__(message or "The job asked to run again later.")
        self.delay_us = None if delay is None else delay_to_us(delay)


class PauseQueue(BideError):
    """Raise this in a job to start no job of its queue for some time, and then run this job again.

    Use it, for example, if a service reports that it is overloaded. It uses no attempt.
    """

    def __init__(self, delay: Duration, message: str = "") -> None:
        """Set the length of the pause.

        Args:
            delay: from now.
            message: why, for the log.

        Raises:
            UsageError: the delay is not a duration.
        """
        super().__init__(message or "The job paused its queue.")
        self.delay_us = delay_to_us(delay)


class Snooze(BideError):
    """Raise this in a job to run it again later, without using an attempt.

    For example, `raise Snooze("10m")`.
    """

    def __init__(self, delay: Duration | None = None, *, at: datetime | None = None) -> None:
        """Set the delay, or the moment.

        Args:
            delay: from now.
            at: an aware `datetime`, instead.

        Raises:
            UsageError: neither or both are given, or the value is invalid.
        """
        if (delay is None) == (at is None):
            raise UsageError("Snooze needs either a delay or at=, for example Snooze('10m').")
        self.when = f"={at_to_us(at)}" if at is not None else f"+{delay_to_us(delay or 0)}"
        super().__init__("The job was snoozed.")


class Fail(BideError):
    """Raise this in a job to fail it for good, whatever its retry policy is."""

    def __init__(self, message: str = "The job has raised Fail.") -> None:
        super().__init__(message)
