"""What jobs leave running: gone with the child that ran them, and in no case later than the worker.

That no process of the worker's is left at the end is looked at after each test (`ProcessBench`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes import hostile
from tests.support.process_bench import ProcessBench, Shared
from tests.support.workers import eventually

pytestmark = pytest.mark.slow


def is_there(pid: object) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("task", [hostile.leave_processes, hostile.daemonize])
def test_what_jobs_leave_running_is_gone_at_the_end(bench: ProcessBench, task: Any) -> None:
    args = () if task is hostile.leave_processes else ("",)
    jobs = [bench.queue.enqueue(task, *args) for _ in range(4)]
    with bench.at_work():
        pids = [job.wait(60) for job in jobs]
        if bench.executor == "fork":  # with the process of its job
            eventually(lambda: not any(map(is_there, pids)))
        else:
            assert all(map(is_there, pids))
    assert not any(map(is_there, pids))


def test_what_a_dead_child_leaves_is_swept_and_a_living_ones_is_left_alone(
    shared: Shared,
) -> None:
    """A daemon belongs to the child that it came from, though it has left its session."""
    name = f"{shared.executor}-look"
    mine = shared.queue.enqueue(hostile.with_a_daemon, name)
    shared.wait("daemon", id=mine.id)
    dead = shared.queue.enqueue_call(hostile.daemon_and_die, on_crash="fail")
    (note,) = shared.wait("daemon", id=dead.id)
    eventually(lambda: not is_there(note.what[1]))
    shared.open(name)
    assert mine.wait(60), "it lives"


def test_children_reap_what_they_adopt(bench: ProcessBench) -> None:
    for _ in range(3):
        bench.queue.enqueue(hostile.many_daemons, 20)
    for _ in range(130):
        bench.queue.enqueue(hostile.ran)
    job = bench.queue.enqueue(hostile.zombies)
    bench.burst(concurrency=1)
    assert job.refresh().result == 0
