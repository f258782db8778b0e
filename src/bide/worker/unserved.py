"""The tasks that a worker was lately asked for and does not serve, for its log and `bide info`."""

from __future__ import annotations

import time
from typing import Final

from bide.ids import LONGEST_TASK
from bide.logs import Log
from bide.ops.registry import MOST_UNSERVED
from bide.payload.codec import decode_error
from bide.worker.run import Run

log = Log("bide.worker")

LATELY: Final = 120.0
"""Seconds until a task that no job has asked for is forgotten; a job that waits asks earlier."""


class Unserved:
    """A few names, and when each was last asked for; however many jobs ask, each is logged once."""

    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}

    def note(self, run: Run) -> None:
        """A job has ended, or waits, whose task is not served here; its `task_name` is known."""
        name, now = run.task_name[:LONGEST_TASK], time.monotonic()
        self._forget(now)
        if name not in self._asked_at:
            if len(self._asked_at) == MOST_UNSERVED:
                return
            if run.decided is not None and run.decided[0] == "snooze":
                why = decode_error(run.decided[2])
                log.warning(
                    "job %s waits, as may others of its task: %s",
                    run.claimed.id,
                    why.message if why else "",
                )
        self._asked_at[name] = now

    def names(self) -> list[str]:
        """What was lately asked for, sorted."""
        self._forget(time.monotonic())
        return sorted(self._asked_at)

    def _forget(self, now: float) -> None:
        for name, at in list(self._asked_at.items()):
            if now - at > LATELY:
                del self._asked_at[name]
