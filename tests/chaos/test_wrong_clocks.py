"""Producers and workers an hour off: jobs run when they are due by the server's clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import redis

from bide import Queue
from tests.support.cpu_waits import now_us
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.worker_pool import JOBS, ROOT, WorkerPool

pytestmark = pytest.mark.slow

HOUR = 3600.0
DELAY_US = 600_000
LATE_US = 1_000_000
"""Later than this is late, beside what workers wait for a processor."""


def enqueue(worker_pool: WorkerPool, url: str, id: str, skew: float, *options: str) -> None:
    """Add a job from a process whose clock is `skew` seconds off."""
    command = [sys.executable, "-m", "bide", "enqueue", f"{JOBS}:quick", "-q", "mail", "-u", url]
    made = subprocess.run(
        [*command, "--id", id, "--json", *options],
        cwd=ROOT,
        env=worker_pool.env(skew),
        capture_output=True,
        check=True,
    )
    assert json.loads(made.stdout)["created"] is True


@pytest.mark.parametrize("producer", [-HOUR, HOUR])
@pytest.mark.parametrize("worker", [-HOUR, 0.0, HOUR])
def test_a_delay_is_kept_by_the_servers_clock(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool, producer: float, worker: float
) -> None:
    process = worker_pool.worker(one_url, "-q", "mail", skew=worker)
    process.says(" serves ")
    before = now_us()
    enqueue(worker_pool, one_url, "later", producer, "--in", f"{DELAY_US}us")
    enqueue(worker_pool, one_url, "now", producer)
    after = now_us()
    worker_pool.ledger.wait("done", 2)
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 2)

    (later,) = worker_pool.ledger.lines("begun", "later")
    (now,) = worker_pool.ledger.lines("begun", "now")
    assert abs(later.clock_us - later.real_us - worker * 1e6) < 60e6, "the skew must have worked"
    assert before + DELAY_US <= later.due_us <= after + DELAY_US
    assert before <= now.due_us <= after
    for line in (later, now):
        assert line.due_us <= line.token <= line.real_us
        assert worker_pool.late_us(line) < LATE_US
    process.terminate()
    assert process.wait() == 0


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_moment_is_a_moment_whatever_the_producers_clock_says(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool, skew: float
) -> None:
    process = worker_pool.worker(one_url, "-q", "mail", skew=-skew)
    process.says(" serves ")
    at = now_us() // 1_000_000 + 3600  # a process may take long to enqueue it
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    enqueue(worker_pool, one_url, "job", skew, "--at", moment)
    assert assert_legal(direct, "mail").due == {"job": at * 1_000_000}
    with closing(Queue("mail", url=one_url)) as queue:
        queue.fetch("job").reschedule(at=datetime.now(UTC) + timedelta(seconds=1))
    worker_pool.ledger.wait("done", 1)
    (line,) = worker_pool.ledger.lines("begun")
    assert line.token >= line.due_us
    assert worker_pool.late_us(line) < LATE_US
    process.terminate()
    assert process.wait() == 0


def test_leases_do_not_depend_on_the_workers_clocks(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Two workers, two hours apart: the one takes what the other held, and not before its time."""
    options = ("-q", "mail", "--lease", "3s")
    early = worker_pool.worker(one_url, *options, skew=-HOUR)
    early.says(" serves ")
    enqueue(worker_pool, one_url, "job", HOUR)
    eventually(lambda: worker_pool.ledger.lines("done"))
    command = [sys.executable, "-m", "bide", "enqueue", f"{JOBS}:held", "gate", "-q", "mail"]
    subprocess.run(
        [*command, "-u", one_url, "--id", "held"], cwd=ROOT, env=worker_pool.env(), check=True
    )
    worker_pool.ledger.wait("begun", 2)
    late = worker_pool.worker(one_url, *options, skew=HOUR)
    late.says(" serves ")
    early.kill()
    ends = assert_legal(direct, "mail").sets["active"]["held"]
    again = worker_pool.ledger.wait("begun", 3)[-1]
    assert again.pid == late.pid
    assert again.token >= ends
    assert worker_pool.late_us(again._replace(due_us=ends)) < LATE_US
    worker_pool.open_gate("gate")
    eventually(lambda: assert_legal(direct, "mail").where("held") == "completed")
    late.terminate()
    assert late.wait() == 0
