"""The task `*`: it runs the jobs whose task a worker does not have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import Queue, Retry, State, UsageError, current_job
from bide.errors import TaskNotFound
from bide.tasks import task as tasks
from tests.support import jobs
from tests.support.console import bide
from tests.support.workers import burst

MODULE = """
from bide import Queue, current_job

mail = Queue("work")

@mail.task
def known(n: int) -> int:
    return n

@mail.task(name="*", retry=2, timeout="7s")
def anything(*args, **kwargs):
    return [current_job().task, list(args), kwargs]
"""


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    tasks._registered.pop("*", None)


def caught(*args: Any, **kwargs: Any) -> list[Any]:
    """What a catch-all of these tests returns."""
    return [current_job().task, list(args), kwargs]


@pytest.mark.parametrize("executor", ["thread", "fork"])
def test_it_runs_jobs_of_unknown_tasks_and_no_others(
    queue: Queue, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "catching.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    named = queue.enqueue("send_email", "ann", subject="hello")
    path = queue.enqueue("shop.gone:send", 1)
    known = queue.enqueue("catching:known", 2)
    assert burst(queue, modules=["catching"], executor=executor) == 3
    sys.modules.pop("catching")
    assert named.refresh().result == ["send_email", ["ann"], {"subject": "hello"}]
    assert (named.task, named.attempt) == ("send_email", 1)
    assert path.refresh().result == ["shop.gone:send", [1], {}]
    assert known.refresh().result == 2


def test_its_decorator_says_how_they_run_unless_they_do(queue: Queue) -> None:
    def failing(*args: Any) -> None:
        raise RuntimeError(current_job().task)

    queue.task(name="*", retry=Retry(3, "fixed", "1h"))(failing)
    job, own = queue.enqueue("unknown"), queue.enqueue("other", retry=Retry(0))
    burst(queue, modules=())
    assert (job.refresh().state, job.attempt) == (State.DELAYED, 1)
    assert own.refresh().state is State.FAILED
    assert own.error is not None
    assert own.error.message == "other"


def test_it_is_no_callback_of_an_unknown_name(queue: Queue) -> None:
    calls = []
    queue.task(name="*")(lambda *args: calls.append(current_job().task))
    queue.enqueue(jobs.fail, "x", on_failure="nothing_here")
    burst(queue)
    assert calls == []


def test_a_function_of_a_kind_that_the_executor_does_not_run_is_not_caught(queue: Queue) -> None:
    queue.task(name="*")(caught)
    job = queue.enqueue(jobs.add_async, 1)
    assert burst(queue, executor="thread") == 0
    assert job.refresh().state is State.DELAYED


def test_there_is_one_and_no_call_enqueues_it(queue: Queue) -> None:
    task = queue.task(name="*")(caught)
    with pytest.raises(UsageError, match=r"'\*' is the name of .*caught already"):
        queue.task(name="*")(lambda: None)
    for call in (task.enqueue, lambda: queue.enqueue("*")):
        with pytest.raises(UsageError, match="is not a task's name"):
            call()
    with pytest.raises(UsageError, match="delay is an option of an enqueue"):
        queue.task(name="*", delay="5s")(caught)


def test_without_one_they_wait_as_before(queue: Queue) -> None:
    job = queue.enqueue("send_email")
    assert burst(queue) == 0
    assert job.refresh().state is State.DELAYED
    with pytest.raises(TaskNotFound):
        tasks.TaskRegistry().find_to_run("send_email")


def test_the_command_line_takes_any_name_where_there_is_one(url: str, tmp_path: Path) -> None:
    (tmp_path / "catching.py").write_text(MODULE)
    (tmp_path / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["catching"]\n')
    done = bide(tmp_path, "enqueue", "send_email", "ann", "-q", "work", url=url)
    assert (done.stderr, done.returncode) == ("", 0)
