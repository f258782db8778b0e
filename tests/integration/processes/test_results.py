"""What goes into a job in a process, and what comes out of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from bide import JobFailed, State
from tests.integration.processes import tasks
from tests.integration.processes.stand import Shared

PID = os.getpid()


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
def test_functions_of_both_kinds_run_in_another_process(shared: Shared, task: Any) -> None:
    job = shared.queue.enqueue(task, 40, b=2)
    assert job.wait(20) == 42
    (note,) = shared.notes(id=job.id)
    assert note.what == ["add", 40, 2]
    assert note.pid != PID


def test_in_its_main_thread_and_knows_its_job(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.who, meta={"tenant": 7})
    seen = job.wait(20)
    assert seen["id"] == job.id
    assert (seen["queue"], seen["attempt"], seen["meta"]) == ("work", 1, {"tenant": 7})
    assert seen["task"].endswith("tasks:who")
    assert seen["worker"] == shared.working.name
    assert (seen["redelivered"], seen["cancelled"], seen["main_thread"]) == (False, False, True)
    assert seen["token"] > 0
    assert PID not in (seen["pid"], seen["ppid"])


def test_arguments_become_what_the_annotations_say(shared: Shared) -> None:
    order = tasks.Order(UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), 3)
    job = shared.queue.enqueue(tasks.typed, order, datetime(2026, 1, 3, tzinfo=UTC))
    assert job.wait(20) == {"type": "Order", "id": str(UUID(int=7)), "later": True}
