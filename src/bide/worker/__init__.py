"""The worker: claims jobs, runs them, settles them, and sleeps until the next is due.

- `worker`: the public class.
- `loop`: decides what to send and how long to wait.
- `queue_state`: one queue as the worker sees it.
- `executors`: take a job from its claim to its outcome, in this process or in child processes.
- `running_job`, `invoke`, `outcome`: one run of a job: its state, its call and its outcome.
- `processes`: the child processes of an executor.
- `lifespan`: opens and closes resources, and runs event loops.
- `heartbeat`: renews leases, reports that the worker is alive, and refills schedules.
- `startup`: registers queues, sets schedules, and logs warnings.
- `relay`: sends outcomes to other queues, and the rows of an outbox.
- `metrics`: the metrics of a worker, and the process title.
- `supervisor`: runs several workers as one unit.
"""

from bide.worker.worker import Worker

__all__ = ["Worker"]
