"""Delay for plain RQ: a queue that takes `delay=`, and a Timer that moves due jobs.

`DelayQueue` is an `rq.Queue`. A job enqueued with `delay=` waits in a sorted set of its queue,
`rq:delay_queue:<name>`, by its due time; a `Timer` moves it, when it is due by the server's clock,
to the list that RQ's own workers read. Neither the workers nor the jobs know of it.

The design:

- Every change of a job is one script, so it is atomic.
- A job is moved only if it has not changed since it was delayed. RQ's own methods (`job.cancel()`,
  `job.delete()`, an enqueue of the same id) do not know the sorted set. A job that they have
  changed is removed from it, and not moved.
- Jobs that delay-rq delayed in the same sorted set are moved, too, and its Timers may move ours.
  Other members stay, and do not block jobs.
- A job that waits for other jobs has the *gate* as its `origin`, a queue that no worker reads. RQ's
  worker pushes it there when the other jobs have finished. A Timer restores its own origin, and its
  delay starts.
- Timers sleep until the next due time. A job that becomes the earliest is published as a wake-up
  message; a lost message costs ten seconds at most. While delay-rq adds jobs, which publishes
  nothing, they poll.
- A Timer's heartbeat is a record among RQ's workers, which `bide health` reads.

RQ's keys have no hash tag, so this needs one server or a Sentinel, and no cluster.
"""

from bide.contrib import needed

with needed("RQ", "rq"):
    import rq as _rq  # noqa: F401

from bide.contrib.rq.queue import DelayQueue
from bide.contrib.rq.timer import Timer

__all__ = ["DelayQueue", "Timer"]
