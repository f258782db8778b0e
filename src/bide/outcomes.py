"""What a job may raise to say how it ends: none of these is an error."""

from __future__ import annotations

from datetime import datetime

from bide.clock import Duration, at_to_us, delay_to_us
from bide.errors import BideError, UsageError


class RetryLater(BideError):
    """Raised in a job: end this attempt, and run the job again later.

    It uses an attempt, so the job's `retry` policy bounds it; a job that has no policy is retried
    three times, as `Retry()` says. With `queue=True` it is not this job that is to wait but all of
    its queue, because a service has said "not now" to whoever asks: no attempt is used, as with
    `Snooze`, and no job of the queue begins until then.
    """

    def __init__(
        self, delay: Duration | None = None, message: str = "", *, queue: bool = False
    ) -> None:
        """Say when.

        Args:
            delay: from now; None leaves it to the job's retry policy.
            message: why, for the job's errors.
            queue: whether to hold the whole queue for so long.

        Raises:
            UsageError: the delay is not a duration, or a queue is to be held and none is given.
        """
        super().__init__(message or "The job asked to be run again later.")
        if queue and delay is None:
            raise UsageError("Say for how long to hold the queue: RetryLater('30s', queue=True).")
        self.delay_us = None if delay is None else delay_to_us(delay)
        self.queue = queue


class Snooze(BideError):
    """Raised in a job: run it again later, as if this run had not been. It uses no attempt."""

    def __init__(self, delay: Duration | None = None, *, at: datetime | None = None) -> None:
        """Say until when.

        Args:
            delay: from now.
            at: an aware `datetime`, instead.

        Raises:
            UsageError: neither or both are given, or cannot be meant.
        """
        if (delay is None) == (at is None):
            raise UsageError("Snooze wants either a delay or at=, for example Snooze('10m').")
        self.when = f"={at_to_us(at)}" if at is not None else f"+{delay_to_us(delay or 0)}"
        super().__init__("The job was snoozed.")


class Fail(BideError):
    """Raised in a job: it has failed for good, whatever its retry policy says."""

    def __init__(self, message: str = "The job said that it has failed.") -> None:
        super().__init__(message)
