"""The job that the calling code runs in, across awaits and in threads."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple

from bide.clock import from_us
from bide.errors import UsageError
from bide.job import Claimed


class CurrentJob(NamedTuple):
    """What a running task may know of its own job."""

    id: str
    queue: str
    worker: str
    claimed: Claimed

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.claimed.attempt

    @property
    def token(self) -> int:
        """Grows with every claim of this job: for your own `WHERE token < ...`."""
        return self.claimed.token

    @property
    def due(self) -> datetime:
        """When the job was due, as an aware datetime."""
        return from_us(self.claimed.due_us)


_current: ContextVar[CurrentJob] = ContextVar("bide_current_job")


def current_job() -> CurrentJob:
    """The job that this code runs in.

    Raises:
        UsageError: it runs in none.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current_job() was called outside of a job.") from None


def enter(job: CurrentJob) -> None:
    """Make `job` the current one of this context."""
    _current.set(job)
