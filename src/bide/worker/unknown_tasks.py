"""The tasks of recently claimed jobs that this worker does not serve.

The log and `bide info` name these tasks. The worker retries their jobs a few at a time. Each job is
retried after as long as it has waited so far, and later if many wait. So the retries cost the
server little, however many jobs wait.
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
"""Seconds until a task is forgotten that no job needed; a waiting job is retried earlier."""

SELDOM: Final = 60.0
"""Seconds between retries of a job that has waited for longer, if few jobs of its task wait."""

GAP_US: Final = 500_000
"""Microseconds between two times at which jobs of one task are retried."""

CLAIMS: Final = 2
"""How many full claims the jobs of one such time fill."""

FURTHEST_US: Final = 300_000_000
"""Longest delay until a retry, in microseconds. A later time was chosen before the server's clock
was set back."""


class _Task:
    """One task that is not served, and when its jobs are retried."""

    def __init__(self) -> None:
        self.asked_at = 0.0
        self.moment = 0
        """The latest retry time that was assigned, in `GAP_US` since 1970 on the server's clock."""
        self.jobs = 0
        """How many jobs are assigned to that time."""


class UnknownTasks:
    """A few task names, and when a job last needed each; each is logged once, not for each job."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._others = _Task()
        """Shared by all tasks after the first `MOST_UNSERVED`."""

    def note(self, run: RunningJob) -> None:
        """Record a job whose task is not served here; its `task_name` must be known."""
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
        """Return when to retry a job, on the server's clock, in the form that a settle takes.

        Args:
            run: the job.
            batch: how many jobs one claim takes.
        """
        task = self._tasks.get(run.task_name[:LONGEST_TASK], self._others)
        delay_us = round(min(max(run.waited(), 1.0), SELDOM) * 1e6)
        now_us = run.queue_state.now_us()
        earliest = -(-(now_us + delay_us) // GAP_US)
        latest = (now_us + FURTHEST_US) // GAP_US
        moment = task.moment if earliest <= task.moment <= latest else earliest
        if moment == task.moment and task.jobs >= CLAIMS * batch:
            moment += max(1, len(self._tasks))  # all tasks share the budget for retries
        if moment > latest:  # so many jobs wait that each time takes more of them, and costs more
            moment = earliest
        if moment != task.moment:
            task.moment, task.jobs = moment, 0
        task.jobs += 1
        return f"={moment * GAP_US}"

    def names(self) -> list[str]:
        """Return the names of the recently needed tasks, sorted."""
        self._forget(time.monotonic())
        return sorted(self._tasks)

    def _forget(self, now: float) -> None:
        for name, task in list(self._tasks.items()):
            if now - task.asked_at > LATELY:
                del self._tasks[name]
