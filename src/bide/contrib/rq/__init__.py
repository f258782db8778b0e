"""Delay for stock RQ: a queue that takes `delay=`, and a Timer that moves what is due.

`DelayQueue` is an `rq.Queue`. A job enqueued with `delay=` waits in a sorted set of its queue,
`rq:delay_queue:<name>`, by its due time; a `Timer` moves it, when it is due by the server's clock,
to the list that RQ's own workers read. Neither the workers nor the jobs know of it.

What makes it hold:

- Everything that changes a job is one script: it happens whole, or not at all.
- A job is moved only if it is as it was when it was delayed. RQ's own verbs (`job.cancel()`,
  `job.delete()`, an enqueue of the same id) do not know the sorted set; what they have touched is
  dropped from it, not moved.
- Jobs that delay-rq delayed in the same sorted set are moved, too, and its Timers may move ours.
  Members that neither of the two put there stay, and hold up no other.
- A job that waits for other jobs has the *gate* as its `origin`, a queue that no worker reads.
  RQ's worker pushes it there when the others are done. A Timer gives it back its own origin, and
  its delay begins.
- Timers sleep until the next due time. A job that becomes the earliest is published as a wake-up
  message; a lost message costs ten seconds at most. While delay-rq adds jobs, which publishes
  nothing, they poll.
- A Timer's heartbeat is a record among RQ's workers; `bide health` reads it.

RQ's keys have no hash tag, so this needs one server or a Sentinel, and no cluster.
"""

from bide.contrib import needed

with needed("RQ", "rq"):
    import rq as _rq  # noqa: F401

from bide.contrib.rq.queue import DelayQueue
from bide.contrib.rq.timer import Timer

__all__ = ["DelayQueue", "Timer"]
