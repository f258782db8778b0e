"""Children and fork servers that are replaced: one child a slot, none missing or without end."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from contextlib import closing
from typing import Any

import pytest

from bide import Queue, State
from bide.worker.executors.processes import LOOK_EVERY
from bide.worker.processes import ipc, pool
from tests.chaos.processes import hostile
from tests.chaos.processes.test_killed import children, pool_of
from tests.support.process_bench import PROCESS, ProcessBench, forked_by
from tests.support.worker_pool import JOBS, WorkerPool
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


def successor(worker: Any, child: int) -> int:
    """The child that waits for jobs in the place of one that was there."""
    (slot,) = pool_of(worker).slots
    eventually(lambda: slot.pid != child and slot.is_free)
    pid: int = slot.pid
    return pid


def of_fork_server(worker: Any) -> list[int]:
    """All that a fork server has forked."""
    return sorted(forked_by(pool_of(worker)._fork_server.pid))


def test_a_fork_server_makes_one_child_a_slot_however_often_it_is_told(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1) as worker:
        (child,) = children(worker)
        request = ipc.encode(ipc.Spawn(0))
        for _ in range(3):
            worker._event_loop.call_soon_threadsafe(pool_of(worker)._fork_server.send, request)  # type: ignore[union-attr]
        # That it has read: the child that comes now was asked for behind them.
        worker._event_loop.call_soon_threadsafe(os.kill, child, signal.SIGKILL)  # type: ignore[union-attr]
        assert [successor(worker, child)] == of_fork_server(worker)


def test_a_child_that_is_slow_to_end_holds_up_nobody_and_is_killed(
    bench: ProcessBench, caplog: pytest.LogCaptureFixture
) -> None:
    limit = {"max_jobs": 1} if bench.executor == "process" else {}
    with bench.at_work(concurrency=1, **limit):
        job = bench.queue.enqueue(hostile.end_slowly)
        after = bench.queue.enqueue(hostile.ran)
        assert job.wait(60) == "ended"
        assert after.wait(60) == "ran"
        (note,) = bench.notes("begun", job.id)
        eventually(lambda: not os.path.exists(f"/proc/{note.pid}"))
    assert "to close" not in caplog.text, "its place was waited for"


@PROCESS
def test_a_fork_server_that_dies_again_and_again(bench: ProcessBench) -> None:
    with bench.at_work(concurrency=1) as worker:
        (slot,) = pool_of(worker).slots
        (child,) = children(worker)
        for _ in range(4):
            assert slot.spawning is None, "another child would come"
            assert of_fork_server(worker) == [child]
            os.kill(pool_of(worker)._fork_server.pid, signal.SIGKILL)
            child = successor(worker, child)
        assert slot.failures > 2, "it did not come at once any more"
        assert of_fork_server(worker) == [child]


@PROCESS
def test_a_fork_server_that_cannot_be_told_what_it_needs_is_tried_again(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bytes] = []

    def fail(line: Any, message: bytes) -> None:
        tries.append(message)
        if len(tries) <= 2:
            raise OSError(errno.EMFILE, "no descriptor for a large message")
        ipc.send(line, message)

    with bench.at_work() as worker:
        children(worker)
        monkeypatch.setattr(pool, "send", fail)
        os.kill(pool_of(worker)._fork_server.pid, signal.SIGKILL)
        eventually(lambda: len(tries) > 2)
        assert bench.queue.enqueue(hostile.ran).wait(60) == "ran"


def test_a_worker_that_cannot_fork_leaves_jobs_to_others(
    one_url: str, worker_pool: WorkerPool
) -> None:
    """The child that has handed its place over is not counted on, though no other comes."""
    forks = worker_pool.worker(one_url, "-q", "mail", "-x", "fork", "-c", "1")
    forks.says(" serves ")
    (fork_server,) = forked_by(forks.pid)
    files = resource.RLIMIT_NOFILE
    before = resource.prlimit(fork_server, files, (0, resource.getrlimit(files)[1]))
    worker_pool.open_gate("gate")
    with closing(Queue("mail", url=one_url)) as queue:
        queue.enqueue(f"{JOBS}:held_in_thread", "gate").wait(60)
        forks.says("no process can be started")
        other = worker_pool.worker(one_url, "-q", "mail", "-x", "thread", "-c", "1")
        other.says(" serves ")
        for job in [queue.enqueue(f"{JOBS}:held_in_thread", "gate") for _ in range(4)]:
            job.wait(20)
        assert [line.pid for line in worker_pool.ledger.lines("done")][1:] == [other.pid] * 4
        other.freeze()
        resource.prlimit(fork_server, files, before)
        queue.enqueue(f"{JOBS}:held_in_thread", "gate").wait(60)


@PROCESS
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("task", [hostile.asked_again, hostile.asked_again_async])
def test_a_job_hears_once_that_it_is_to_end(bench: ProcessBench, task: Any) -> None:
    """Though its child is told at each look."""
    with bench.at_work(concurrency=1) as worker:
        (child,) = children(worker)
        job = bench.queue.enqueue(task)
        bench.wait("begun")
        job.cancel()
        bench.wait("asked")
        since = time.monotonic()
        eventually(lambda: time.monotonic() - since > 4 * LOOK_EVERY)
        bench.open("asked")
        eventually(lambda: job.refresh().state == State.CANCELLED)
        assert children(worker) == [child], "it was not killed"
    assert len(bench.notes("asked")) == len(bench.notes("tidied")) == 1
