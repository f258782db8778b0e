"""Two releases on one queue: this one, and a later one in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import ClientTooOld, Queue
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import keys_of
from tests.chaos import other_release
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import assert_legal
from tests.support.worker_pool import JOBS, ROOT, WorkerPool

KEYS = keys_of("mail")
QUICK = f"{JOBS}:quick"


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_release.build(tmp_path_factory.mktemp("later"))


@pytest.fixture
def queue(one_url: str, direct: redis.Redis) -> Queue:
    return Queue("mail", url=one_url)


class Later:
    """Programs of the later release."""

    def __init__(self, worker_pool: WorkerPool, release: Path, url: str) -> None:
        self._env = worker_pool.env(release=release) | {"BIDE_URL": url, "PYTHONWARNINGS": "ignore"}

    def python(self, code: str) -> str:
        """Run a program that has `queue`; what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", f"from bide import Queue; queue = Queue('mail'); {code}"],
            cwd=ROOT,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def program(worker_pool: WorkerPool, later: Path, one_url: str) -> Later:
    return Later(worker_pool, later, one_url)


# -- side by side


def test_both_releases_run_jobs_of_one_queue(
    worker_pool: WorkerPool,
    later: Path,
    queue: Queue,
    direct: redis.Redis,
    one_url: str,
    program: Later,
) -> None:
    held = queue.enqueue_many([queue.prepare(f"{JOBS}:held", ("gate",)) for _ in range(2)])
    options = ("-q", "mail", "-c", "1")
    workers = [
        worker_pool.worker(one_url, *options),
        worker_pool.worker(one_url, *options, release=later),
    ]
    begun = worker_pool.ledger.wait("begun", 2)
    assert {line.worker.partition(".")[0] for line in begun} == {"w1", "w2"}
    quick = [job.id for job in queue.enqueue_many([queue.prepare(QUICK) for _ in range(20)])]
    quick += program.python(f"print(*[queue.enqueue('{QUICK}').id for _ in range(20)])").split()
    worker_pool.open_gate("gate")
    worker_pool.ledger.wait("done", 42)
    eventually(lambda: queue.counts().active == 0)
    for worker in workers:
        worker.terminate()
        assert worker.wait() == 0
    ids = {*quick, *(job.id for job in held)}
    assert worker_pool.ledger.count("done") == dict.fromkeys(ids, 1)
    assert assert_legal(direct, "mail").sets["completed"].keys() == ids


# -- a schema that this release does not know


def test_a_program_that_is_too_old_says_so_and_touches_nothing(
    worker_pool: WorkerPool, queue: Queue, direct: redis.Redis, one_url: str
) -> None:
    queue.enqueue(QUICK)
    direct.hset(KEYS["meta"], "schema", 2)
    before = hold_raw(direct)
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue(QUICK),
        queue.counts,
        queue.pause,
        lambda: queue.fetch("x"),
    ]
    for call in calls:
        with pytest.raises(
            ClientTooOld, match=r"bide:\{mail\} at .* schema 2, and bide .* knows 1"
        ):
            call()
    worker = worker_pool.worker(one_url, "-q", "mail")
    assert worker.wait() == 1
    worker.says("has schema 2")
    assert hold_raw(direct) == before


def hold_raw(direct: redis.Redis) -> dict[Any, Any]:
    return {key: direct.dump(key) for key in direct.scan_iter("bide:{mail}*")}


@pytest.mark.slow
def test_a_worker_that_holds_a_job_meanwhile_loses_it_to_a_newer_one(
    worker_pool: WorkerPool,
    later: Path,
    queue: Queue,
    direct: redis.Redis,
    one_url: str,
    program: Later,
) -> None:
    job = queue.enqueue(f"{JOBS}:held", "gate")
    old = worker_pool.worker(one_url, "-q", "mail", "--lease", "1s", "--grace", "1s")
    worker_pool.ledger.wait("begun", 1)
    direct.hset(KEYS["meta"], "schema", 2)
    old.says("has schema 2")
    worker_pool.open_gate("gate")
    worker_pool.ledger.wait("done", 1)
    new = worker_pool.worker(one_url, "-q", "mail", release=later)
    eventually(lambda: any(line.pid == new.pid for line in worker_pool.ledger.lines("done")))
    old.terminate()
    old.wait()
    new.terminate()
    assert new.wait() == 0
    state = program.python(f"print(queue.fetch('{job.id}').state)")
    assert state == "completed"


# -- jobs of a later release


def test_a_job_that_needs_a_newer_worker_is_left_to_one(
    worker_pool: WorkerPool, later: Path, queue: Queue, one_url: str
) -> None:
    body = f'{{"task":"{QUICK}","mode":"bold","needs":2}}'.encode()
    (job,) = queue.enqueue_many([Prepared("a", "+0", 5, body)])
    old = worker_pool.worker(one_url, "-q", "mail")
    old.says("job a is released: This job needs a newer bide")
    eventually(lambda: job.refresh().state == "delayed")
    assert job.attempt == 0
    assert worker_pool.ledger.lines() == []
    new = worker_pool.worker(one_url, "-q", "mail", release=later)
    new.says(" serves ")
    old.terminate()
    assert old.wait() == 0
    queue.promote_many([job.id])  # it may have come to the new one by itself
    worker_pool.ledger.wait("done", 1)
    new.terminate()
    assert new.wait() == 0
    assert queue.counts().completed == 1


def test_a_field_that_may_be_passed_over_is(
    worker_pool: WorkerPool, queue: Queue, one_url: str
) -> None:
    body = f'{{"task":"{QUICK}","_trace":{{"id":[1,2]}}}}'.encode()
    queue.enqueue_many([Prepared("a", "+0", 5, body)])
    worker = worker_pool.worker(one_url, "-q", "mail", "--burst")
    assert worker.wait() == 0
    assert worker_pool.ledger.count("done") == {"a": 1}
