"""A pytest plugin for RQ's own tests: `Queue` in them is another class, on a server of ours.

RQ itself is left as it is; only the names in its test modules are changed. What to put there is
told by the environment: `SUITE_PORT`, the server's port on this machine, and `SUITE_DELAY`, seconds
by which every enqueue is delayed, or 0.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import rq
from rq.job import Job

from bide.contrib.rq import DelayQueue, Timer

PORT = int(os.environ["SUITE_PORT"])
DELAY = float(os.environ["SUITE_DELAY"])
DEPENDENTS = os.environ["SUITE_DEPENDENTS"] == "delayed"

SLOWER = 4
"""Jobs of `test_job_dependency` sleep as many times as long: it expects an order of two workers
that depends on a quarter of a second, and on a busy machine a fork can take that."""


class Delayed(DelayQueue):
    """Delays every enqueue, and returns when a Timer has moved the job.

    Not where the caller has a pipeline, which says when things are sent.
    """

    def enqueue_job(self, job: Job, pipeline: Any = None, *args: Any, **kwargs: Any) -> Job:
        if pipeline is not None or not self.is_async or (job._dependency_ids and not DEPENDENTS):
            return super().enqueue_job(job, pipeline, *args, **kwargs)
        job = DelayQueue.enqueue_job(self._delaying(DELAY), job, None, *args, **kwargs)
        while self.delayed_until(job) is not None:
            Timer(self).work(burst=True)
        status = self.connection.hget(job.key, "status")
        if status in (b"queued", b"rate_limited"):
            job.refresh()  # type: ignore[no-untyped-call]
        return job


def pytest_configure() -> None:
    """Have `Redis()` lead to our server: RQ's tests take the default port."""
    for kind in (redis.Redis, redis.Connection):
        init = kind.__init__

        def to_our_server(self: Any, *args: Any, init: Any = init, **kwargs: Any) -> None:
            init(self, *args, **({"port": PORT} | kwargs))

        kind.__init__ = to_our_server  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the class in the place of RQ's."""
    for item in items:
        module = getattr(item, "module", None)
        if module is not None and module.__name__.endswith("test_job_dependency"):
            slow = {"sleep": lambda seconds: time.sleep(SLOWER * seconds)}
            module.fixtures.time = SimpleNamespace(**vars(time) | slow)
        if getattr(module, "Queue", None) is rq.Queue:
            module.Queue = Delayed if DELAY else DelayQueue  # type: ignore[union-attr]
