"""Jobs of every kind in one queue at once, and one among a thousand that kills its process."""

from __future__ import annotations

from typing import Any

import pytest

from bide import State
from tests.chaos.processes import hostile
from tests.support import process_tasks as tasks
from tests.support.invariants import assert_legal
from tests.support.process_bench import ProcessBench
from tests.support.workers import eventually

KINDS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (hostile.ran, (), {}),
    (hostile.ran_async, (), {}),
    (tasks.add, (1,), {"priority": 9}),
    (tasks.add_async, (1,), {"priority": 1}),
    (tasks.give_back, ("x" * 100,), {}),
    (tasks.give_back, ("x" * 100_000,), {}),
    (tasks.say, (2,), {}),
    (tasks.later_once, (), {}),
    (tasks.see_tenant, ("a",), {"timeout": 60}),
    (tasks.see_tenant_async, ("a",), {"on_success": tasks.told}),
]


@pytest.mark.slow
def test_all_but_one_run_and_one_fails_with_evidence(bench: ProcessBench) -> None:
    count, bad = (1000, 500) if bench.executor == "process" else (300, 150)
    queue = bench.queue
    prepared = []
    for i in range(count):
        task, args, options = (hostile.segfault, (), {}) if i == bad else KINDS[i % len(KINDS)]
        prepared.append(queue.prepare(task, args, **options))
    jobs = queue.enqueue_many(prepared)
    assert queue.counts().waiting == count, "all of it is there before anybody works"
    with bench.at_work(), bench.at_work():
        eventually(
            lambda: not (c := queue.counts()).waiting and not c.active and not c.delayed, 600
        )
    poison = jobs[bad].refresh()
    assert poison.state is State.FAILED
    assert poison.error is not None
    assert "SIGSEGV" in poison.error.message
    assert len(poison.logs) == len(bench.notes("begun", poison.id)) == 3
    for i, job in enumerate(jobs):
        if i == bad:
            continue
        assert job.refresh().state is State.COMPLETED
        again = KINDS[i % len(KINDS)][0] is tasks.later_once
        assert (job.attempt, len(job.attempts)) == ((2, 1) if again else (1, 0))
        assert not any(attempt.crashed for attempt in job.attempts)
    counted = [note.id for what in ("ran", "add") for note in bench.notes(what)]
    assert len(counted) == len(set(counted)) == count * 4 // 10 - 1
    assert_legal(queue._client._redis, "work")
