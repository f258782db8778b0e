"""Every name on the server, RQ's and ours; only here are they made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import rq
from rq.registry import CanceledJobRegistry, ScheduledJobRegistry

from bide.errors import UsageError

DELAYED: Final = "rq:delay_queue:"
"""A sorted set for each queue: job id by due time, in seconds with fractions."""

HINTS: Final = "rq:delay_hint:"
"""A channel for each queue: when the job is due that has just become its earliest."""

GATE: Final = "delay_gate"
"""The queue that is the origin of delayed jobs for as long as they wait for other jobs.

One serves all queues: a blocking command that takes nothing off its list waits on one list only.
"""


@dataclass(frozen=True)
class Keys:
    """What belongs to one queue.

    Attributes:
        name: The queue's name.
        delayed: The sorted set of its delayed jobs.
        hints: The channel of its hints.
        list: RQ's list, which workers read.
        gate: RQ's list of the gate.
        scheduled: RQ's registry of jobs that wait for RQ's own scheduler.
        cancelled: RQ's registry of cancelled jobs.
        queues: RQ's set of all queues.
        jobs: What the key of a job begins with.
    """

    name: str
    delayed: str
    hints: str
    list: str
    gate: str
    scheduled: str
    cancelled: str
    queues: str
    jobs: str

    @classmethod
    def of(cls, queue: rq.Queue) -> Keys:
        """The keys of a queue; a subclass may have RQ's prefixes changed.

        Raises:
            UsageError: its name is that of the gate.
        """
        if queue.name == GATE:
            raise UsageError(
                f"{GATE!r} is where delayed jobs with dependencies pass; call the queue otherwise."
            )
        return cls(
            name=queue.name,
            delayed=f"{DELAYED}{queue.name}",
            hints=f"{HINTS}{queue.name}",
            list=queue.key,
            gate=f"{queue.redis_queue_namespace_prefix}{GATE}",
            scheduled=ScheduledJobRegistry.key_template.format(queue.name),
            cancelled=CanceledJobRegistry.key_template.format(queue.name),
            queues=queue.redis_queues_keys,
            jobs=queue.job_class.key_for(""),
        )
