"""The other way to run jobs in processes: children that claim for themselves (see `feeding.py`).

    python -m benchmarks.selfish URL CHILDREN AT_ONCE

Each child is a worker of its own that runs jobs one after another: one round trip settles what it
has run and claims the next. The least that works: nobody renews leases while a job runs, nobody
sees a child die, nothing has a time-out, and what is claimed ahead cannot be given back meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import redis

from benchmarks.lab import QUEUE
from bide.client import blocking
from bide.model.job import Claimed
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.tasks.task import TaskRegistry
from bide.worker import outcome as judging
from bide.worker.invoke import prepare, read
from bide.worker.lifespan import Lifespan
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob

LEASE_US = 10_000_000


def live(url: str, at_once: int, served: TaskRegistry) -> None:
    """Claim, run and settle, for as long as nobody ends the process."""
    client, listener = blocking.Client(url), redis.Redis.from_url(url)
    name = f"selfish.{os.getpid()}"
    queue_state = QueueState(keys_of(QUEUE), name, LEASE_US)
    lifespan = Lifespan()
    client.attempt_many([queue_state.settle([])])  # refused; but now the server knows the script
    while True:
        settles = queue_state.take_settles()
        commands: list[Any] = [queue_state.settle(settles)] if settles else []
        sent = time.monotonic()
        reply = client.run_many([*commands, queue_state.claim(at_once, 0)])[-1]
        queue_state.claimed(reply, sent, time.monotonic())
        for claimed in reply.jobs:
            queue_state.settles.append(_run(queue_state, claimed, sent, served, lifespan))
        while not queue_state.settles and not queue_state.is_due(time.monotonic()):
            # Redis reads 0 as for ever.
            seconds = max(0.001, min(queue_state.until - time.monotonic(), 10.0))
            heard: Any = listener.blpop([queue_state.keys["wake"]], seconds)
            if heard is not None:
                queue_state.on_wakeup(heard[1].decode())


def _run(
    queue_state: QueueState, claimed: Claimed, sent: float, served: TaskRegistry, lifespan: Lifespan
) -> Settle:
    """Run a job as `bide.worker.processes.child` does."""
    run = RunningJob(queue_state, claimed, sent, lambda: None)
    target = read(run, served, allow_pickle=False)
    call = prepare(run, target, lifespan)
    return judging.completed(run, call.run(_no_coroutines)).ended.settle(claimed)


def _no_coroutines(coroutine: object) -> None:
    raise NotImplementedError


def main() -> None:
    """Fork the children, and wait."""
    url, children, at_once = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    served = TaskRegistry(["benchmarks.peers.bide"])
    for _ in range(children):
        if os.fork() == 0:
            live(url, at_once, served)
    os.wait()


if __name__ == "__main__":
    main()
