"""Jobs due at one instant run in the order of their ids, which is the order of their making."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time

import pytest
import redis

from bide import Queue, Worker
from bide.client.config import override
from bide.protocol.keys import DUE_SETS, keys_of
from bide.protocol.scripts import TEST_CLOCK
from tests.support import ledger_jobs as jobs
from tests.support.server_state import members
from tests.support.worker_pool import JOBS, ROOT

KEYS = keys_of("mail")
HOUR = 3600


def due_at_once(url: str, direct: redis.Redis, count: int) -> dict[str, int]:
    """Two processes add `count` jobs due in an hour; an hour passes. id -> priority."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    at_us = (int(time.time()) + HOUR) * 1_000_000
    command = [sys.executable, "-m", "tests.chaos.produce", url, str(at_us), str(count // 2)]
    producers = [subprocess.Popen([*command, str(seed + i)], cwd=ROOT) for i in range(2)]
    assert [producer.wait(300) for producer in producers] == [0, 0]
    direct.hset(KEYS["meta"], "test_offset_us", (HOUR + 1) * 1_000_000)
    priorities = {
        id: int(p)
        for p, key in zip(DUE_SETS, KEYS.names["due"], strict=True)
        for id in members(direct, key)
    }
    assert len(priorities) == count
    return priorities


@pytest.mark.slow
@pytest.mark.parametrize(("count", "concurrency"), [(100_000, 500), (2_000, 1)])
def test_one_worker_runs_them_by_due_time_and_id_within_a_priority(
    one_url: str,
    direct: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    count: int,
    concurrency: int,
) -> None:
    caplog.set_level(logging.ERROR, "bide.worker")  # a thousand lines that a job raised
    priorities = due_at_once(one_url, direct, count)
    jobs.listed_runs.clear()
    with override(clock=TEST_CLOCK):
        queue = Queue("mail", url=one_url)
        worker = Worker([queue], modules=[JOBS], concurrency=concurrency, lease=60)
        executed = worker.run(burst=True)
        queue.close()
    runs = list(jobs.listed_runs)
    assert len(runs) == executed
    again = sum(run.attempt == 2 for run in runs)
    assert again > 0
    assert executed == count + again

    firsts = [run for run in runs if run.attempt == 1]
    assert [priorities[run.id] for run in firsts] == sorted(priorities.values(), reverse=True)
    for priority in (9, 5, 0):
        mine = [run for run in runs if priorities[run.id] == priority]
        assert mine == sorted(mine), "by due time, then by id"
        for producer in {run.producer for run in mine}:
            made = [run.number for run in mine if run.producer == producer and run.attempt == 1]
            assert made == sorted(made), "as they were made"
