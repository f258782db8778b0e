"""Queues and jobs as users hold them: short methods over `bide.ops`, blocking and awaited.

`Queue` and `AsyncQueue`, `Job` and `AsyncJob` have the same methods; a test holds their signatures
equal. What both must decide is decided once, in `core`.
"""

from bide.queue.awaited import AsyncJob, AsyncQueue
from bide.queue.blocking import Job, Queue

__all__ = ["AsyncJob", "AsyncQueue", "Job", "Queue"]
