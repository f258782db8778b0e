"""A job as a test looks at it: a value, without verbs, the same in blocking and in awaited code."""

from __future__ import annotations

from typing import Any, Final

from bide.errors import JobFailed, PayloadError
from bide.job import Snapshot
from bide.payload.codec import Body
from bide.payload.signing import Seal
from bide.queue.view import JobView


class JobSeen(JobView[Any]):
    """A job as it was when the test bed looked: `status`, `args`, `result`, `error` and so on."""

    def __init__(
        self, seal: Seal, snapshot: Snapshot, exception: BaseException | None = None
    ) -> None:
        super().__init__(snapshot.id, snapshot=snapshot, seal=seal)
        self.queue: Final = seal.keys.queue or ""
        """The queue's name."""
        self.exception: Final = exception
        """What the run that this tells of raised; None where it returned, or has not been."""

    def __repr__(self) -> str:
        return f"<JobSeen {self.call} {self.status} on {self.queue}>"

    @property
    def call(self) -> str:
        """The task and its arguments, as Python writes a call."""
        try:
            return write_call(self._body())
        except PayloadError:
            return "an unreadable job"

    @property
    def due_us(self) -> int:
        """`due`, in microseconds since 1970."""
        return self._seen().due_us

    @property
    def awaits(self) -> int:
        """How many jobs a blocked job waits for."""
        return self._seen().awaits

    def failure(self) -> JobFailed:
        """The error for a job that has failed."""
        error = self.error
        what = f": {error.type}: {error.message}" if error else "."
        failed = JobFailed(f"{self.call} failed, in attempt {self.attempt}{what}")
        failed.error = error
        failed.__cause__ = self.exception
        return failed


def write_call(body: Body) -> str:
    """A body as Python writes a call."""
    named = [f"{name}={value!r}" for name, value in body.kwargs.items()]
    return f"{body.task}({', '.join([*map(repr, body.args), *named])})"
