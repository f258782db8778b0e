"""`once`: a job's effect on the database happens once, however often the job runs.

The row of the job in `bide_done` is written in the job's own transaction. So it is there if, and
only if, the effect is. Two runs at the same moment: the second waits at the primary key until the
first has committed or rolled back.
"""

from __future__ import annotations

from typing import Any, Final

from bide.errors import BideError, PayloadError, UsageError
from bide.model.context import current_job
from bide.model.payload.serializers import pack, reason, unpack

LONGEST_STEP: Final = 64
"""Characters of a step of `once`."""


class Fenced(BideError):
    """A later run of the job has committed its effect already, so this run must stop.

    The worker of this run was paused for longer than its lease, and another worker has the job.
    """


class OnceBase:
    """The part of `once` that does not depend on the database library."""

    first: bool
    """Whether this is the first run: do the work, and set `result`."""
    result: Any
    """The result: set it in the first run, and read it in each other run, as plain values."""

    def __init__(self, step: str) -> None:
        if not isinstance(step, str) or len(step) > LONGEST_STEP:
            raise UsageError(
                f"step must be text of {LONGEST_STEP} characters at most, not {step!r}."
            )
        job = current_job()
        self._of: Final = {"queue": job.queue, "job_id": job.id, "step": step}
        self._token: Final = job.token
        self.result = None

    def _repeat(self, token: int, result: Any) -> None:
        """Take the result of an earlier run; raise Fenced if it was a later one."""
        if token > self._token:
            raise Fenced(
                f"A later run of the job {self._of['job_id']} has committed, so this run must not; "
                "let the error end it. Its worker was paused for longer than its lease."
            )
        self.result = None if result is None else unpack(bytes(result), "json")

    def _packed(self) -> bytes:
        """Return the result as it is stored."""
        try:
            return pack(self.result, "json")
        except Exception as error:
            raise PayloadError(f"The result of once: {reason(error, 'json')}.") from None
