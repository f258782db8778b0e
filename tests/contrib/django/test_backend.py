"""`django.tasks` on bide: what is enqueued, when, how it is run, and what is told of it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from bide import Queue, UsageError, Worker
from bide.contrib.django import Backend, DatabaseConnections, on_commit
from bide.contrib.django.backend import _priority
from bide.queue.binding import TaskQueue, known_task_queues
from tests.contrib.django import jobs

exceptions: Any = importlib.import_module(f"{jobs.package}.exceptions")
Refused = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
signals: Any = importlib.import_module(f"{jobs.package}.signals")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    jobs.seen.clear()


def work(*queues: str, prefix: str | None = None) -> None:
    Worker(queues or ["default", "mail"], prefix=prefix).run(burst=True)


def counts(name: str = "default") -> tuple[int, int]:
    queue = Queue(name)
    found = queue.counts()
    queue.close()
    return found.waiting, found.delayed


def test_a_task_runs_and_its_result_is_read() -> None:
    result = jobs.add.enqueue(2, b=3)
    assert (result.status, result.args, result.kwargs) == ("READY", [2], {"b": 3})
    assert result.enqueued_at is not None
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 5, 1)
    assert result.started_at <= result.finished_at
    again = jobs.add.get_result(result.id)
    assert (again.id, again.task.func, again.return_value) == (result.id, jobs.add.func, 5)


def test_run_after_is_when_it_is_due() -> None:
    at = timezone.now() + timedelta(minutes=30)
    result = jobs.add.using(run_after=at).enqueue(1)
    assert counts() == (0, 1)
    work()
    result.refresh()
    assert result.status == "READY"
    queue = Queue("default")
    job = queue.fetch(result.id.rpartition(":")[2])
    assert abs((job.due - at).total_seconds()) < 0.001
    job.promote()
    queue.close()
    work()
    result.refresh()
    assert result.return_value == 2


def test_without_time_zones_a_moment_is_local() -> None:
    with override_settings(USE_TZ=False):
        _enqueue_and_read_naive()


def _enqueue_and_read_naive() -> None:
    result = jobs.add.using(run_after=datetime.now() + timedelta(hours=1)).enqueue(1)
    queue = Queue("default")
    job = queue.fetch(result.id.rpartition(":")[2])
    assert 3590 < (job.due - timezone.now().astimezone()).total_seconds() <= 3600
    job.promote()
    queue.close()
    work()
    result.refresh()
    assert result.finished_at.tzinfo is None


def test_it_waits_for_the_commit_also_with_run_after() -> None:
    with transaction.atomic():
        jobs.add.enqueue(1)
        jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        assert counts() == (0, 0)
    assert counts() == (1, 1)


def test_a_worker_knows_all_queues_that_a_task_may_be_enqueued_on() -> None:
    """Without a queue it serves them, and it says so if it is told to serve others."""
    add, fails = "tests.contrib.django.jobs:add", "tests.contrib.django.jobs:fails"
    task_queues = known_task_queues()
    assert {task_queue for task_queue, tasks in task_queues.items() if add in tasks} == {
        TaskQueue("default", None, None),
        TaskQueue("mail", None, None),
    }
    assert [task_queue for task_queue, tasks in task_queues.items() if fails in tasks] == [
        TaskQueue("default", None, "other")
    ]


def test_a_rollback_takes_it_back() -> None:
    with transaction.atomic():
        jobs.add.enqueue(1)
        on_commit(jobs.remind).enqueue(7)
        transaction.set_rollback(True)
    assert (counts(), counts("mail")) == ((0, 0), (0, 0))


def test_on_commit_can_be_switched_off_and_other_options_hold() -> None:
    with transaction.atomic():
        result = jobs.fails.enqueue("no")
        queue = Queue("default", prefix="other")
        assert queue.counts().waiting == 1
    with heard("task_finished") as finished:
        work("default", prefix="other")
        job = queue.fetch(result.id.rpartition(":")[2])
        assert (job.attempt, job.state) == (1, "delayed")
        assert finished == []
        job.promote()
        work("default", prefix="other")
    queue.close()
    assert jobs.seen == ["no", "no"]
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 2)
    assert [error.exception_class for error in result.errors] == [ValueError] * 2
    assert "ValueError: no" in result.errors[0].traceback
    assert jobs.__file__ in result.errors[0].traceback.splitlines()[1], "it begins in the task"
    assert [(found.id, found.status) for found in finished] == [(result.id, "FAILED")]
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


@pytest.mark.parametrize("backend", ["now", "once"])
def test_options_are_those_of_the_backend_that_enqueues(backend: str) -> None:
    result = jobs.fails.using(backend=backend).enqueue("no")
    prefix = "other" if backend == "now" else None
    queue = Queue("default", prefix=prefix)
    job = queue.fetch(result.id.rpartition(":")[2])
    work("default", prefix=prefix)
    away = (job.refresh().due - timezone.now()).total_seconds()
    queue.close()
    assert job.state == "delayed"
    assert (away > 3000) == (backend == "now"), "when it is tried again"


def test_a_backend_may_be_made_of_this_one() -> None:
    result = jobs.add.using(backend="once").enqueue(2)
    work()
    assert jobs.add.using(backend="once").get_result(result.id).return_value == 3
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.add.using(backend="once").get_result("default:nothing")


def test_a_delay_of_a_task_of_a_queue_counts_from_the_commit() -> None:
    with transaction.atomic():
        job_id = on_commit(jobs.remind.later("30m").options(priority=9)).enqueue(7)
        assert counts("mail") == (0, 0)
    job = jobs.plain.fetch(job_id)
    assert (job.args, job.priority, job.state) == ((7,), 9, "delayed")
    on_commit(jobs.remind).enqueue(8)
    assert counts("mail") == (1, 1)


def test_on_commit_wants_a_task_of_a_queue() -> None:
    with pytest.raises(UsageError, match="needs a task of"):
        on_commit(print)  # type: ignore[arg-type]


def test_arguments_become_what_annotations_say() -> None:
    jobs.on.enqueue("2030-01-31")
    work()
    assert jobs.seen == [date(2030, 1, 31)]


def test_coroutines_run_and_can_be_enqueued_from_one() -> None:
    result = asyncio.run(jobs.count.aenqueue())
    work()
    found = asyncio.run(jobs.count.aget_result(result.id))
    assert found.return_value == 0


def test_a_thread_lets_go_of_its_connection() -> None:
    jobs.count_in_thread.enqueue()
    work()
    (used,) = jobs.seen
    with pytest.raises(Exception, match="closed"):
        used.cursor()


def test_tasks_of_queues_have_it_by_a_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    from bide.tasks import middleware

    monkeypatch.setattr(middleware, "in_use", [DatabaseConnections()])
    jobs.plain.enqueue(jobs.rows)
    Worker("mail", modules=jobs.__name__).run(burst=True)
    (used,) = jobs.seen
    with pytest.raises(Exception, match="closed"):
        used.cursor()


def test_a_task_is_told_its_context() -> None:
    result = jobs.knows.enqueue("2030-01-31")
    work()
    result.refresh()
    assert result.return_value == {"id": result.id, "attempt": 1, "year": 2030}


def test_a_task_of_another_queue_is_told_where_it_is() -> None:
    with heard("task_started") as began, heard("task_finished") as finished:
        result = jobs.knows.using(queue_name="mail").enqueue("2030-01-31")
        work()
    assert result.id.startswith("mail:")
    told = jobs.knows.get_result(result.id).return_value["id"]
    assert [told, *(found.id for found in (*began, *finished))] == [result.id] * 3
    assert {found.task.queue_name for found in (*began, *finished)} == {"mail"}


def test_a_job_in_a_queue_that_is_not_the_backend_s_runs() -> None:
    queue = Queue("elsewhere")
    job = queue.enqueue(jobs.add.func, 1)
    work("elsewhere")
    assert job.refresh().result == 2
    queue.close()


@contextmanager
def heard(name: str) -> Iterator[list[Any]]:
    found: list[Any] = []

    def hear(sender: Any, task_result: Any, **_: Any) -> None:
        assert issubclass(sender, Backend)
        found.append(task_result)

    getattr(signals, name).connect(hear)
    try:
        yield found
    finally:
        getattr(signals, name).disconnect(hear)


def test_signals_tell_of_each_step() -> None:
    with (
        heard("task_enqueued") as enqueued,
        heard("task_started") as began,
        heard("task_finished") as finished,
    ):
        result = jobs.add.enqueue(1)
        work()
    assert [found.id for found in (*enqueued, *began, *finished)] == [result.id] * 3
    assert [found.status for found in (*began, *finished)] == ["RUNNING", "SUCCESSFUL"]
    assert finished[0].return_value == 2


@pytest.mark.parametrize("id", ["", "x", "default:nothing", "elsewhere:x", "{:x", "default:"])
def test_a_result_that_is_not_there(id: str) -> None:
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.add.get_result(id)


def test_a_result_of_a_queue_that_is_not_the_backend_s_is_not_there() -> None:
    queue = Queue("elsewhere")
    job = queue.enqueue(jobs.add.func, 1)
    queue.close()
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.add.get_result(f"elsewhere:{job.id}")


def test_a_task_that_this_process_has_not_is_not_imported() -> None:
    queue = Queue("default")
    job = queue.enqueue("antigravity:fly")
    queue.close()
    with pytest.raises(exceptions.TaskResultDoesNotExist, match="import its module first"):
        jobs.add.get_result(f"default:{job.id}")


def test_what_cannot_be_run_or_stored_is_refused() -> None:
    with pytest.raises(Refused, match="elsewhere"):
        jobs.add.using(queue_name="elsewhere")
    with pytest.raises(TypeError):
        jobs.add.enqueue(object())
    with pytest.raises(UsageError, match=r":add needs its argument"):
        jobs.add.enqueue()
    with pytest.raises(UsageError, match=r":add takes no argument 'delay' \(it takes: b\)\.$"):
        jobs.add.enqueue(1, delay="5m")
    with pytest.raises(UsageError, match=r":knows takes no argument 'at' \(it takes: day\)\.$"):
        jobs.knows.enqueue(at=date(2030, 1, 1))
    assert counts() == (0, 0)


def test_an_option_that_is_not_known_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="'retries', which is none of url, prefix"):
        Backend("default", {"OPTIONS": {"retries": 3}})
    with pytest.raises(ImproperlyConfigured, match="must be a list of names, not 'mail'"):
        Backend("default", {"QUEUES": "mail"})
    with pytest.raises(ImproperlyConfigured, match=r"'nope', which is none of .* in DATABASES"):
        Backend("default", {"OPTIONS": {"on_commit": "nope"}})
    with pytest.raises(ImproperlyConfigured, match=r"TASKS\['default'\]: .*timeout"):
        Backend("default", {"OPTIONS": {"timeout": -1}})


def test_a_url_that_cannot_be_meant_is_found_by_the_check() -> None:
    assert list(Backend("default", {}).check()) == []
    (found,) = Backend("default", {"OPTIONS": {"prefix": "{"}}).check()
    assert (found.id, "prefix" in found.msg) == ("bide.E001", True)


def test_priorities_keep_their_order() -> None:
    found = [_priority(priority) for priority in range(-100, 101)]
    assert (found[0], found[100], found[-1]) == (0, 5, 9)
    assert found == sorted(found)
    assert _priority(-1) < _priority(0) < _priority(1)


def test_what_no_worker_could_find_is_refused() -> None:
    def elsewhere() -> None: ...

    elsewhere.__qualname__, elsewhere.__module__ = "elsewhere", "__main__"
    with pytest.raises(Refused, match="__main__"):
        jobs.tasks.task(elsewhere)
