"""Workers are killed and frozen, and still each group's jobs run one at a time, in order."""

from __future__ import annotations

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.server_state import end_leases
from tests.support.worker_pool import JOBS, WorkerPool

GROUPS, EACH, SINGLES = 12, 15, 60
OPTIONS = ("-q", "mail", "--lease", "10m", "-c", "4")


@pytest.mark.slow
def test_groups_keep_their_order_whoever_dies(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    queue = Queue("mail", url=one_url)
    ids = [[f"{g:02}-{i:02}" for i in range(EACH)] for g in range(GROUPS)]
    jobs = []
    for i in range(EACH):
        for g in range(GROUPS):
            # The first waits until there has been trouble; one of each raises, and is gone then.
            task, *args = ("held", "gate") if i == 0 else ("quick",)
            jobs.append(queue.prepare(f"{JOBS}:{task}", args, job_id=ids[g][i], group=f"group-{g}"))
    queue.enqueue_many(jobs)
    doomed, frozen, third = worker_pool.workers_at_work(3, one_url, *OPTIONS)
    begun = worker_pool.ledger.wait("begun", GROUPS)
    assert len(assert_legal(direct, "mail").held) == GROUPS
    queue.enqueue_many([queue.prepare(f"{JOBS}:quick", job_id=f"s-{i}") for i in range(SINGLES)])
    doomed.kill()
    frozen.freeze()
    lost = [line.id for line in begun if line.pid in (doomed.pid, frozen.pid)]
    end_leases(direct, keys_of("mail"), lost)
    worker_pool.open_gate("gate")
    (fourth,) = worker_pool.workers_at_work(1, one_url, *OPTIONS)

    def all_done() -> bool:
        holding = assert_legal(direct, "mail")
        of = [entry.split()[0] for entry in holding.held]
        assert len(set(of)) == len(of), "two of one group run"
        return len(holding.sets["completed"]) == GROUPS * EACH + SINGLES

    eventually(all_done)
    frozen.thaw()
    frozen.says("after its lease had passed")
    queue.close()
    runs = sorted(worker_pool.ledger.lines("begun"), key=lambda line: line.token)
    for g in range(GROUPS):
        order = [line.id for line in runs if line.id in ids[g]]
        assert order == sorted(order), "each again, where its worker was lost, and none before it"
        assert set(order) == set(ids[g])
    holding = assert_legal(direct, "mail")
    assert holding.held | holding.order | holding.turns == set()
    assert holding.hashes["groups"] == {}
    for worker in (frozen, third, fourth):
        worker.terminate()
    assert [worker.wait() for worker in (frozen, third, fourth)] == [0, 0, 0]
