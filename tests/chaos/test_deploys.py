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
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from tests.chaos import other_release
from tests.chaos.other_release import MARK
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import assert_legal, hold
from tests.support.users import as_role
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

    def bide(self, *words: str) -> str:
        """Run the command line; what it says."""
        done = self._run("-m", "bide", *words)
        return done.stdout + done.stderr

    def python(self, code: str) -> str:
        """Run a program that has `queue`, `KEYS`, `run`, `upgrade` and `work`; what it prints."""
        done = self._run("-c", _PRELUDE + code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


_PRELUDE = f"""
import os
from bide import Queue
from bide.protocol.commands import jobs, worker
from bide.protocol.commands.worker import Settle
queue = Queue("mail")
KEYS, run, seq = queue.keys, queue._run, iter(range(1, 10**6))
def upgrade(target, cursor="0"):
    return run(jobs.upgrade(KEYS, target, cursor)).cursor
def work():
    queue.enqueue("{QUICK}")
    (job,) = run(worker.claim(KEYS, f"w{{os.getpid()}}", next(seq), 1, 10**7, 0)).jobs
    run(worker.settle(KEYS, [Settle(job.id, job.token, "complete", "", b"42")]))
"""


@pytest.fixture
def program(worker_pool: WorkerPool, later: Path, one_url: str) -> Later:
    return Later(worker_pool, later, one_url)


def have_results(queue: Queue, count: int) -> list[str]:
    """So many completed jobs with a result, by this release."""
    jobs = queue.enqueue_many([queue.prepare(QUICK) for _ in range(count)])
    claimed = []
    for seq in range(1, 100):
        claimed += queue._run(worker_commands.claim(KEYS, "w0", seq, 250, 10_000_000, 0)).jobs
        if len(claimed) == count:
            break
    for i in range(0, count, 100):
        settles = [Settle(c.id, c.token, "complete", "", b"42") for c in claimed[i : i + 100]]
        queue._run(worker_commands.settle(KEYS, settles))
    return [job.id for job in jobs]


def results(direct: redis.Redis) -> list[Any]:
    return direct.hvals(KEYS["results"])


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
    worker_pool: WorkerPool, queue: Queue, direct: redis.Redis, one_url: str, program: Later
) -> None:
    have_results(queue, 3)
    told = program.bide("queues", "upgrade", "mail")
    assert told == "mail is stored in schema 2; 3 values were changed.\n"
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


@pytest.mark.slow
def test_an_operator_has_the_permissions_for_an_upgrade(
    worker_pool: WorkerPool, later: Path, queue: Queue, direct: redis.Redis, one_url: str
) -> None:
    have_results(queue, 3)
    program = Later(worker_pool, later, as_role(one_url, direct, "operator", "mail"))
    assert "in schema 2; 3 values were changed" in program.bide("queues", "upgrade", "mail")
    back = program.bide("queues", "upgrade", "mail", "--to", "1")
    assert "in schema 1; 3 values were changed" in back


def hold_raw(direct: redis.Redis) -> dict[Any, Any]:
    return {key: direct.dump(key) for key in direct.scan_iter("bide:{mail}*")}


@pytest.mark.slow
def test_a_worker_that_holds_a_job_meanwhile_loses_it_to_a_newer_one(
    worker_pool: WorkerPool, later: Path, queue: Queue, one_url: str, program: Later
) -> None:
    job = queue.enqueue(f"{JOBS}:held", "gate")
    old = worker_pool.worker(one_url, "-q", "mail", "--lease", "1s", "--grace", "1s")
    worker_pool.ledger.wait("begun", 1)
    assert "The worker w1." in program.bide("queues", "upgrade", "mail")
    assert queue.counts().schema == 1, "it was refused, because that worker lives"
    assert "schema 2" in program.bide("queues", "upgrade", "mail", "--force")
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


# -- there and back


def test_stored_data_go_to_the_next_schema_and_back_in_pieces_under_work(
    queue: Queue, direct: redis.Redis, program: Later
) -> None:
    have_results(queue, 700)
    steps = program.python("""
steps, cursor = 0, None
while cursor != "0":
    cursor = upgrade(2, cursor or "0")
    work()
    steps += 1
print(steps)
""")
    assert int(steps) > 2
    assert all(value.startswith(MARK) for value in results(direct))
    assert len(results(direct)) == 700 + int(steps)
    program.python("""
cursor = None
while cursor != "0":
    for _ in range(8):  # one at least comes to lie where the scan has been
        work()
    cursor = upgrade(1, cursor or "0")
work()
""")
    assert not any(value.startswith(MARK) for value in results(direct))
    jobs = queue.jobs("completed", count=500)
    assert {job.result for job in jobs} == {42}
    assert queue.counts().schema == 1
    assert_legal(direct, "mail")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["there", "back"])
def test_what_was_interrupted_is_begun_again(
    queue: Queue, direct: redis.Redis, program: Later, way: str
) -> None:
    have_results(queue, 700)
    program.python("assert upgrade(2) != '0'")  # and it was killed
    with pytest.raises(ClientTooOld):
        queue.counts()
    assert "schema 2" in program.bide("queues", "upgrade", "mail")
    assert all(value.startswith(MARK) for value in results(direct))
    if way == "back":
        program.python("assert upgrade(1) != '0'; work()")
        with pytest.raises(ClientTooOld):
            queue.counts()
        assert "schema 1" in program.bide("queues", "upgrade", "mail", "--to", "1")
        assert not any(value.startswith(MARK) for value in results(direct))
        assert queue.counts().completed == 701


@pytest.mark.slow
def test_a_way_back_that_was_given_up_is_undone(
    queue: Queue, direct: redis.Redis, program: Later
) -> None:
    have_results(queue, 700)
    program.bide("queues", "upgrade", "mail")
    program.python("assert upgrade(1) != '0'; work()")
    program.bide("queues", "upgrade", "mail")
    program.python("work()")
    assert all(value.startswith(MARK) for value in results(direct))
    assert hold(direct, "mail").meta.get("writes") is None


def test_a_schema_that_nobody_knows_is_refused(program: Later, queue: Queue) -> None:
    queue.enqueue(QUICK)
    assert "1 to 2 here; 3 is none" in program.bide("queues", "upgrade", "mail", "--to", "3")
    assert queue.counts().schema == 1


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
