"""Names of RQ's delayed jobs on the server that belong to no single queue."""

from __future__ import annotations

from typing import Final

DELAYED: Final = "rq:delay_queue:"
"""A sorted set for each queue: job id by due time, in seconds with fractions. A queue's class, or
the queue itself, may name another key."""

OTHER_SETS: Final = "rq:delay_queues"
"""A set: the keys that queues name instead."""

GATE: Final = "delay_gate"
"""The queue that is the origin of delayed jobs for as long as they wait for other jobs.

One serves all queues: a blocking command that takes nothing off its list waits on one list only.
"""
