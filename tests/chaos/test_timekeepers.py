"""The few that keep the time for all: whichever of them dies or freezes, every job still runs.

A timekeeper claims when the next job is due, a backup a moment later in case the first does not,
and all others sleep.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.cpu_waits import now_us
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.ledger import Line
from tests.support.server_state import members, scores, size
from tests.support.worker_pool import JOBS, WorkerPool, WorkerProcess

pytestmark = pytest.mark.slow

KEEP = keys_of("mail")["keep"]
PARK = keys_of("mail")["park"]
DELAY = 2.5
"""Seconds until a job is due: until then its timekeepers are found, and lost."""

ENOUGH_US = 1_000_000
"""Of that, to lose them."""

ONE_GONE_US = 1_000_000
"""Later than this without one timekeeper is too late: 50 ms, and much for the way."""
TWO_GONE_US = 4_000_000
"""Without both: 2 s, and as much."""

FATES = ("kill", "freeze")


@pytest.fixture
def idle(one_url: str, worker_pool: WorkerPool, direct: redis.Redis) -> list[WorkerProcess]:
    """Four workers with nothing to do: two keep the time, two sleep."""
    workers = worker_pool.workers_at_work(4, one_url, "-q", "mail", "--lease", "10m")
    eventually(lambda: size(direct, KEEP) == size(direct, PARK) == 2)
    return workers


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def enqueue(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool, id: str
) -> tuple[int, list[WorkerProcess]]:
    """Add a job that is due soon; when it is, the timekeeper, and the backup.

    Where a busy machine leaves too little time to lose these, the job is due later.
    """
    job = queue.enqueue(f"{JOBS}:quick", job_id=id, delay=DELAY)

    def armed() -> tuple[int, list[str]] | None:
        due_us = round(job.due.timestamp() * 1e6)
        deadlines = scores(direct, KEEP)
        names = [name for name, at in deadlines.items() if due_us <= at <= due_us + 100_000]
        if now_us() > due_us - ENOUGH_US:
            job.reschedule(delay=2 * DELAY)
            job.refresh()
            return None
        return (due_us, names) if len(names) == 2 else None

    due_us, names = eventually(armed)  # type: ignore[misc]
    return due_us, [worker_pool.by_name(name) for name in names]


def run_of(worker_pool: WorkerPool, id: str) -> Line:
    return eventually(lambda: worker_pool.ledger.lines("begun", id))[0]


def all_ran_in_time(
    worker_pool: WorkerPool, direct: redis.Redis, runs: list[Line], limit_us: int
) -> None:
    """Never early, not too late, and once, also after everyone who was frozen has woken up.

    What they waited for a processor does not count as late.
    """
    lates = [run.token - run.due_us for run in runs]
    print(f"{', '.join(f'{late / 1e3:.1f}' for late in lates)} ms late")
    assert min(lates) >= 0
    assert max(worker_pool.late_us(run) for run in runs) <= limit_us
    for worker in worker_pool.workers:
        if not worker.ended:
            worker.thaw()
    eventually(lambda: len(assert_legal(direct, "mail").sets["completed"]) == len(lates))
    alive = [worker for worker in worker_pool.workers if not worker.ended]
    for worker in alive:
        worker.terminate()
    assert [worker.wait() for worker in alive] == [0] * len(alive)
    assert set(worker_pool.ledger.count("begun").values()) == {1}
    assert len(worker_pool.ledger.lines("begun")) == len(lates)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("fate", FATES)
def test_a_timekeeper_that_is_gone_has_a_backup(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool, fate: str
) -> None:
    due_us, (timekeeper, backup) = enqueue(queue, direct, worker_pool, "job")
    getattr(timekeeper, fate)()
    line = run_of(worker_pool, "job")
    assert line.pid == backup.pid or line.token - due_us > 100_000
    all_ran_in_time(worker_pool, direct, [line], ONE_GONE_US)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("fate", FATES)
def test_both_timekeepers_gone_at_once_strand_nothing(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool, fate: str
) -> None:
    _, timekeepers = enqueue(queue, direct, worker_pool, "job")
    for timekeeper in timekeepers:
        getattr(timekeeper, fate)()
    all_ran_in_time(worker_pool, direct, [run_of(worker_pool, "job")], TWO_GONE_US)


@pytest.mark.usefixtures("idle")
def test_one_timekeeper_after_another_killed_until_one_worker_is_left(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    runs = []
    for i in range(3):
        _, (timekeeper, _) = enqueue(queue, direct, worker_pool, f"job-{i}")
        timekeeper.kill()
        runs.append(run_of(worker_pool, f"job-{i}"))
    all_ran_in_time(worker_pool, direct, runs, ONE_GONE_US)


@pytest.mark.usefixtures("idle")
def test_one_timekeeper_after_another_frozen_until_one_worker_is_left(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Each still swallows a message, as the server cannot know: that is the cost of a lost one."""
    runs, awake = [], {worker.name for worker in worker_pool.workers}
    for i in range(3):
        queue.enqueue(f"{JOBS}:quick", job_id=f"job-{i}", delay=DELAY)
        deadlines = [worker_pool.by_name(name).name for name in members(direct, KEEP)]
        timekeeper = next(name for name in [*deadlines, *awake] if name in awake)
        worker_pool.by_name(timekeeper).freeze()
        awake.remove(timekeeper)
        runs.append(run_of(worker_pool, f"job-{i}"))
    all_ran_in_time(worker_pool, direct, runs, TWO_GONE_US)


@pytest.mark.usefixtures("idle")
def test_a_wakeup_that_a_frozen_sleeper_swallows_costs_a_bounded_wait(
    queue: Queue, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """Sleepers and timekeepers listen alike; who gets the message may be one that cannot act."""
    names = [*members(direct, KEEP), *members(direct, PARK)]
    frozen = [worker_pool.by_name(name) for name in names[1:]]
    for worker in frozen:
        worker.freeze()
    queue.enqueue(f"{JOBS}:quick", job_id="job")
    all_ran_in_time(worker_pool, direct, [run_of(worker_pool, "job")], TWO_GONE_US)
