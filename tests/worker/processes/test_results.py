"""What goes into a job in a process, and what comes out of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from bide import JobFailed, Queue, State
from bide.tasks.registry import task_name
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ProcessBench, Shared

PID = os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
def test_functions_of_both_kinds_run_in_another_process(shared: Shared, task: Any) -> None:
    job = shared.queue.enqueue(task, 40, b=2)
    assert job.wait(90) == 42
    (note,) = shared.notes(id=job.id)
    assert note.what == ["add", 40, 2]
    assert note.pid != PID


def test_in_its_main_thread_and_knows_its_job(shared: Shared) -> None:
    job = shared.queue.enqueue(tasks.who, meta={"tenant": 7})
    seen = job.wait(90)
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
    assert job.wait(90) == {"type": "Order", "id": str(UUID(int=7)), "later": True}


@pytest.mark.parametrize("size", [10, 65_000, 66_000, 900_000])
def test_arguments_and_results_may_be_large(shared: Shared, size: int) -> None:
    data = "x" * size
    job = shared.queue.enqueue(tasks.give_back, data)
    assert job.wait(90) == data


@pytest.mark.parametrize(
    ("task", "args", "kind"),
    [
        (tasks.raise_it, ("no",), "ValueError"),
        (tasks.raise_async, ("no",), "ValueError"),
        (tasks.leave, (3,), "SystemExit"),
        (tasks.unfit, (), "bide.PayloadError"),
        (tasks.add, ("one",), "bide.PayloadError"),
        (tasks.add, (), "bide.PayloadError"),
        (tasks.give_up, (), "bide.Fail"),
    ],
)
def test_what_goes_wrong_in_a_job_is_its_error(
    shared: Shared, task: Any, args: tuple[Any, ...], kind: str
) -> None:
    name = task if isinstance(task, str) else task_name(task)  # arguments are not looked at here
    job = shared.queue.enqueue_call(name, args=args)
    with pytest.raises(JobFailed):
        job.wait(90)
    job.refresh()
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.type == kind
    assert job.attempt == 1
    if kind == "ValueError":
        assert "raise ValueError(message)" in job.error.traceback
        first = job.error.traceback.splitlines()[1]
        assert tasks.__file__ in first, "it begins in the task"


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_results_travel_as_the_queue_says(shared: Shared, serializer: Any) -> None:
    queue = Queue("work", url=shared.queue.url, serializer=serializer)
    assert queue.enqueue(tasks.pair).wait(90) == [1, 2]
    queue.close()


@pytest.mark.slow
@PROCESS
@pytest.mark.usefixtures("signing")
def test_pickles_are_read_only_where_that_is_allowed(bench: ProcessBench) -> None:
    pickled = Queue("work", url=bench.queue.url, serializer="pickle")
    refused = pickled.enqueue(tasks.give_back, "a")
    assert bench.burst() == 1
    assert refused.refresh().error is not None
    assert "pickle" in str(refused.error)
    allowed = [pickled.enqueue(tasks.pair) for _ in range(2)]
    bench.worker(pickled).run(burst=True)
    assert allowed[0].refresh().result == (1, 2)
    bench.burst(allow_pickle=True)
    pickled.close()
