"""The worker: claims jobs, runs them, settles them, and sleeps until the next is due.

- `worker`: the public class.
- `loop`: decides what to send and how long to wait.
- `queue_state`: one queue as the worker sees it.
- `executors`: take a job from its claim to its outcome, in this process or in child processes.
- `run`: one run of a job: its call and its outcome.
- `processes`: the child processes of an executor.
- `threads`: runs plain functions, and fires at the next due time.
- `heartbeat`: renews leases, reports that the worker is alive, and refills schedules.
- `supervisor`: runs several workers as one unit.
"""

from bide.worker.worker import Worker

__all__ = ["Worker"]
