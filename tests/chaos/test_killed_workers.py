"""A worker that is killed or frozen: its jobs run elsewhere, in time, and nothing counts twice."""

from __future__ import annotations

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.ledger import Line
from tests.support.server_state import end_leases
from tests.support.worker_pool import JOBS, WorkerPool, WorkerProcess

KEYS = keys_of("mail")
OPTIONS = ("-q", "mail", "--lease", "2s")
LONG = ("-q", "mail", "--lease", "10m")
"""Of workers that are to keep what they hold, however busy the machine is."""
MARGIN_US = 1_000_000
"""How long after its lease a job may be taken again, beside what workers wait for a processor."""

HELD = 100


def test_what_a_killed_worker_held_runs_again_when_its_lease_ends(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    before = [queue.enqueue(f"{JOBS}:quick", job_id=f"before-{i}") for i in range(20)]
    doomed = worker_pool.worker(one_url, "-q", "mail", "--lease", "4s", "-c", str(HELD))
    worker_pool.ledger.wait("done", 20)
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 20)
    held = [queue.enqueue(f"{JOBS}:held", "gate", job_id=f"held-{i:03}") for i in range(HELD)]
    worker_pool.ledger.wait("begun", 20 + HELD)
    worker_pool.workers_at_work(2, one_url, *LONG, "-c", str(HELD))

    doomed.kill()
    ends = assert_legal(direct, "mail").sets["active"]
    assert ends.keys() == {job.id for job in held}
    after = [queue.enqueue(f"{JOBS}:quick", job_id=f"after-{i}") for i in range(20)]

    lines = worker_pool.ledger.wait("begun", 20 + 2 * HELD + 20)
    worker_pool.open_gate("gate")
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 20 + HELD + 20)
    queue.close()

    again = [line for line in lines if line.id in ends and line.pid != doomed.pid]
    lateness = [line.token - ends[line.id] for line in again]
    print(f"taken {min(lateness) / 1e3:.1f} to {max(lateness) / 1e3:.1f} ms after the lease's end")
    assert min(lateness) >= 0
    latest = max(again, key=lambda line: line.token)
    waited = worker_pool.witness.waited_us(ends[latest.id], latest.token)
    assert max(lateness) - waited <= MARGIN_US
    runs = worker_pool.ledger.count("begun")
    assert runs == {job.id: 1 for job in (*before, *after)} | {job.id: 2 for job in held}
    assert worker_pool.ledger.count("done") == {job.id: 1 for job in (*before, *held, *after)}
    assert {line.attempt for line in again} == {1}, "a crash uses no attempt"
    _tokens_grow(worker_pool)


@pytest.mark.slow
def test_a_frozen_worker_that_wakes_past_its_lease_settles_nothing(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    (frozen,) = worker_pool.workers_at_work(1, one_url, *OPTIONS)
    jobs = [
        queue.enqueue(f"{JOBS}:{kind}", "gate", job_id=f"{kind}-{i}")
        for i in range(5)
        for kind in ("held", "held_in_thread")
    ]
    worker_pool.ledger.wait("begun", 10)
    frozen.freeze()
    (other,) = worker_pool.workers_at_work(1, one_url, *LONG)
    worker_pool.ledger.wait("begun", 20)
    assert len(assert_legal(direct, "mail").sets["active"]) == 10

    # The other worker finishes; the frozen one does not know of it yet.
    worker_pool.open_gate("gate")
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 10)
    frozen.thaw()
    worker_pool.ledger.wait("done", 20)
    for job in jobs:
        frozen.says(f"job {job.id}: the outcome (complete) came after its lease had passed")
        (run,) = [
            line for line in worker_pool.ledger.lines("done", job.id) if line.pid == other.pid
        ]
        assert job.refresh().result == run.token
    holding = assert_legal(direct, "mail")
    assert holding.total("completed") == 10
    queue.close()
    _tokens_grow(worker_pool)
    _all_stop(frozen, other)


@pytest.mark.slow
def test_a_frozen_worker_that_wakes_while_another_runs_its_job_does_not_end_it(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    (frozen,) = worker_pool.workers_at_work(1, one_url, *OPTIONS)
    job = queue.enqueue(f"{JOBS}:held", "gate")
    worker_pool.ledger.wait("begun", 1)
    frozen.freeze()
    (other,) = worker_pool.workers_at_work(1, one_url, *LONG)
    _, second = worker_pool.ledger.wait("begun", 2)
    other.freeze()
    frozen.thaw()  # its renewals find the lease gone
    frozen.says(f"job {job.id}: its lease has passed to another worker")
    assert assert_legal(direct, "mail").records[job.id].token == second.token
    worker_pool.open_gate("gate")
    frozen.says("was refused")
    other.thaw()
    eventually(lambda: assert_legal(direct, "mail").where(job.id) == "completed")
    assert assert_legal(direct, "mail").total("completed") == 1
    queue.close()
    _tokens_grow(worker_pool)
    _all_stop(frozen, other)


@pytest.mark.slow
def test_a_worker_that_outlives_its_lease_by_renewing_keeps_its_jobs(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Three leases and a half, beside a worker that would take them: nothing is taken from it.

    Unless the machine does not run the holder, or the server, for most of a lease.
    """
    queue = Queue("mail", url=one_url)
    holder, other = worker_pool.workers_at_work(2, one_url, "-q", "mail", "--lease", "1s")
    job = queue.enqueue(f"{JOBS}:held", "gate")
    (line,) = worker_pool.ledger.wait("begun", 1)
    ends = line.token + 3_500_000
    eventually(lambda: assert_legal(direct, "mail").sets["active"][job.id] > ends)
    worker_pool.open_gate("gate")
    eventually(lambda: assert_legal(direct, "mail").where(job.id) == "completed")
    again = worker_pool.ledger.count("begun")[job.id] - 1
    assert again <= len(worker_pool.witness.starved(1.0))
    queue.close()
    _all_stop(holder, other)


@pytest.mark.slow
def test_a_killed_worker_may_come_back_under_its_name(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Its claims begin anew, while the lease of what it held goes on."""
    queue = Queue("mail", url=one_url)
    for i in range(30):
        queue.enqueue(f"{JOBS}:quick", job_id=f"before-{i}")
    first = worker_pool.worker(one_url, *LONG, "-c", "1", "--name", "same")
    worker_pool.ledger.wait("done", 30)
    queue.enqueue(f"{JOBS}:held", "gate", job_id="held")
    worker_pool.ledger.wait("begun", 31)
    first.kill()
    second = worker_pool.worker(one_url, *LONG, "-c", "1", "--name", "same")
    queue.enqueue(f"{JOBS}:quick", job_id="after")
    worker_pool.ledger.wait("done", 31)
    assert assert_legal(direct, "mail").where("held") == "active"
    end_leases(direct, KEYS)
    queue.enqueue(f"{JOBS}:quick", job_id="wakes")
    worker_pool.open_gate("gate")
    worker_pool.ledger.wait("done", 33)
    one, two = worker_pool.ledger.lines("begun", "held")
    assert two.token > one.token
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == 33)
    assert assert_legal(direct, "mail").total("reclaimed") == 1
    queue.close()
    _all_stop(second)


def _tokens_grow(worker_pool: WorkerPool) -> None:
    """The tokens of one job only grow."""
    last: dict[str, Line] = {}
    for line in worker_pool.ledger.lines("begun"):
        if line.id in last:
            assert line.token > last[line.id].token
        last[line.id] = line


def _all_stop(*workers: WorkerProcess) -> None:
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0] * len(workers)
