"""The tasks that a worker was lately asked for and does not serve.

The log and `bide info` name them. The worker looks at their jobs again a few at a time: each job
after as long as it has waited so far, and later if many wait. So the looks cost the server little,
however many jobs wait.
"""

from __future__ import annotations

import time
from typing import Final

from bide.logs import Log
from bide.model.ids import LONGEST_TASK, short_id
from bide.model.payload.body import decode_error
from bide.protocol.commands.queues import MOST_UNSERVED
from bide.worker.run.running_job import RunningJob

log = Log("bide.worker")

LATELY: Final = 120.0
"""Seconds until a task that no job has asked for is forgotten; a job that waits asks earlier."""

SELDOM: Final = 60.0
"""Seconds between looks at a job that has waited for longer, if few of its task wait."""

GAP_US: Final = 500_000
"""Microseconds between two moments at which jobs of one task are looked at."""

CLAIMS: Final = 2
"""How many full claims the jobs of one such moment take."""

FURTHEST_US: Final = 300_000_000
"""The longest delay until a look, in microseconds. A moment that is later was given out before the
server's clock was set back."""


class _Task:
    """One task that is not served, and when its jobs are looked at again."""

    def __init__(self) -> None:
        self.asked_at = 0.0
        self.moment = 0
        """The last one that was given out, in gaps since 1970 on the server's clock."""
        self.jobs = 0
        """How many jobs it was given to."""


class UnknownTasks:
    """A few names, and when each was last asked for; however many jobs ask, each is logged once."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._others = _Task()
        """Shared by the tasks beyond the first `MOST_UNSERVED`."""

    def note(self, run: RunningJob) -> None:
        """A job has ended, or waits, whose task is not served here; its `task_name` is known."""
        name, now = run.task_name[:LONGEST_TASK], time.monotonic()
        self._forget(now)
        if name not in self._tasks:
            if len(self._tasks) == MOST_UNSERVED:
                return
            self._tasks[name] = _Task()
            if run.decided is not None and run.decided[0] == "snooze":
                why = decode_error(run.decided[2])
                with run.named():
                    log.warning(
                        "job %s waits, as may others of its task: %s",
                        short_id(run.claimed.id),
                        why.message if why else "",
                    )
        self._tasks[name].asked_at = now

    def next_look(self, run: RunningJob, batch: int) -> str:
        """When to look at a job again, as a settle has it: a moment on the server's clock.

        Args:
            run: the job.
            batch: how many jobs one claim takes.
        """
        task = self._tasks.get(run.task_name[:LONGEST_TASK], self._others)
        delay_us = round(min(max(run.waited(), 1.0), SELDOM) * 1e6)
        now_us = run.station.now_us()
        earliest = -(-(now_us + delay_us) // GAP_US)
        latest = (now_us + FURTHEST_US) // GAP_US
        moment = task.moment if earliest <= task.moment <= latest else earliest
        if moment == task.moment and task.jobs >= CLAIMS * batch:
            moment += max(1, len(self._tasks))  # the looks of all tasks share what may be spent
        if moment > latest:  # so many wait that the moments take more, and cost more
            moment = earliest
        if moment != task.moment:
            task.moment, task.jobs = moment, 0
        task.jobs += 1
        return f"={moment * GAP_US}"

    def names(self) -> list[str]:
        """What was lately asked for, sorted."""
        self._forget(time.monotonic())
        return sorted(self._tasks)

    def _forget(self, now: float) -> None:
        for name, task in list(self._tasks.items()):
            if now - task.asked_at > LATELY:
                del self._tasks[name]
