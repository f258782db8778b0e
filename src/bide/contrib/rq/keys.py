"""The names of a queue's keys, RQ's and ours; `bide.contrib.rq_sets` has those of no queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import rq
from rq.registry import CanceledJobRegistry, ScheduledJobRegistry

from bide.contrib.rq_sets import DELAYED, GATE
from bide.errors import UsageError

HINTS: Final = "rq:delay_hint:"
"""A channel for each queue: when the job is due that has just become its earliest."""


@dataclass(frozen=True)
class Keys:
    """What belongs to one queue.

    Attributes:
        name: The queue's name.
        delayed: The sorted set of its delayed jobs.
        other_set: The same where the queue names a key of its own; else empty.
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
    other_set: str
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
            UsageError: its name is that of the gate, or its `delay_key` is not the name of a key.
        """
        if queue.name == GATE:
            raise UsageError(
                f"{GATE!r} is where delayed jobs with dependencies pass; call the queue otherwise."
            )
        usual = f"{DELAYED}{queue.name}"
        delayed = getattr(queue, "delay_key", usual)
        if not isinstance(delayed, str) or not delayed:
            raise UsageError(f"delay_key must be the name of a key, as text, not {delayed!r}.")
        return cls(
            name=queue.name,
            delayed=delayed,
            other_set="" if delayed == usual else delayed,
            hints=f"{HINTS}{queue.name}",
            list=queue.key,
            gate=f"{queue.redis_queue_namespace_prefix}{GATE}",
            scheduled=ScheduledJobRegistry.key_template.format(queue.name),
            cancelled=CanceledJobRegistry.key_template.format(queue.name),
            queues=queue.redis_queues_keys,
            jobs=queue.job_class.key_for(""),
        )
