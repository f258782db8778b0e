"""Tracebacks of failed jobs, stored and logged: they begin in the application's code."""

from __future__ import annotations

import importlib
import json
import logging
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import Middleware, Queue, UsageError
from bide.model.context import CurrentJob
from bide.model.durations import to_us
from bide.worker.outcome import begin_in_application
from tests.support import jobs, surface
from tests.support.console import bide
from tests.support.workers import burst

pytestmark = pytest.mark.slow

FAIL = [jobs.fail, jobs.fail_async]
"""A plain function and a coroutine function."""


def functions(text: str) -> list[str]:
    """The functions that a traceback goes through, or several tracebacks one after the other."""
    return re.findall(r'^ +File ".*", line \d+, in (\w+)$', text, re.MULTILINE)


def stored(queue: Queue, task: Callable[..., Any]) -> str:
    """What is stored of a job that fails."""
    job = queue.enqueue(task, "no")
    burst(queue)
    error = job.refresh().error
    assert error is not None
    return error.traceback


@pytest.fixture
def using(monkeypatch: pytest.MonkeyPatch) -> list[Middleware]:
    """The middlewares in use."""
    used: list[Middleware] = []
    monkeypatch.setattr(importlib.import_module("bide.tasks.middleware"), "in_use", used)
    return used


@pytest.mark.parametrize("task", FAIL)
def test_what_is_stored_and_what_is_logged_begin_in_the_task(
    queue: Queue, caplog: pytest.LogCaptureFixture, task: Callable[..., Any]
) -> None:
    assert functions(stored(queue, task)) == [task.__name__]
    (record,) = (record for record in caplog.records if record.exc_info)
    assert functions(logging.Formatter().format(record)) == [task.__name__]


def test_a_usage_error_of_the_application_is_logged_with_its_line(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(surface.say_nonsense, "half")
    burst(queue)
    (record,) = (record for record in caplog.records if record.exc_info)
    assert "UsageError" in record.getMessage()
    assert functions(logging.Formatter().format(record))[0] == "say_nonsense"


class Translates(Middleware):
    """Has an error become another."""

    def __init__(self, around: Any) -> None:
        self._around = around

    def running(self, job: CurrentJob) -> Any:
        return self._around()


class Around:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException, trace: object) -> None:
        raise LookupError("not found") from error


class AroundAsync:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, error: BaseException, trace: object) -> None:
        raise LookupError("not found") from error


@pytest.mark.parametrize("task", FAIL)
@pytest.mark.parametrize(("around", "name"), [(Around, "__exit__"), (AroundAsync, "__aexit__")])
def test_a_middlewares_frames_stay_and_a_cause_begins_in_the_task(
    queue: Queue, using: list[Middleware], task: Callable[..., Any], around: Any, name: str
) -> None:
    using.append(Translates(around))
    cause, _, error = stored(queue, task).partition("direct cause")
    assert functions(cause) == [task.__name__]
    assert functions(error) == [name]


class Refuses(Middleware):
    """Lets no job begin."""

    def running(self, job: CurrentJob) -> Any:
        raise LookupError("no")


@pytest.mark.parametrize("task", FAIL)
def test_where_a_middleware_raises_it_begins_there(
    queue: Queue, using: list[Middleware], task: Callable[..., Any]
) -> None:
    using.append(Refuses())
    assert functions(stored(queue, task)) == ["running"]


@pytest.mark.parametrize("task", [jobs.add, jobs.add_async])
def test_that_of_a_callback_begins_in_the_callback(
    queue: Queue, caplog: pytest.LogCaptureFixture, task: Callable[..., Any]
) -> None:
    queue.enqueue_call(task, (1,), on_success=surface.told_badly)
    burst(queue)
    (record,) = (record for record in caplog.records if record.exc_info)
    assert functions(logging.Formatter().format(record))[0] == "told_badly"


SHOP = """
import bide


def boom():
    raise ValueError("boom")


async def boom_async():
    raise ValueError("boom")


def translated():
    boom()


async def translated_async():
    await boom_async()


def refused(): ...


async def refused_async(): ...


def called_back(job, result):
    raise RuntimeError("no")


queue = bide.Queue("mail")


class Around:
    def __enter__(self): ...

    def __exit__(self, kind, error, trace):
        raise LookupError("not found") from error


class Middleware(bide.Middleware):
    def running(self, job):
        if "refused" in job.task:
            raise LookupError("no")
        return Around() if "translated" in job.task else None


bide.add_middleware(Middleware())


@queue.task(on_success=called_back)
def with_callback(): ...
"""

FRAMES = {
    "boom": [["boom"]],
    "boom_async": [["boom_async"]],
    "translated": [["translated", "boom"], ["__exit__"]],
    "translated_async": [["translated_async", "boom_async"], ["__exit__"]],
    "refused": [["running"]],
    "refused_async": [["running"]],
}
"""The functions in the traceback of a task's error: first those of its cause."""


@pytest.mark.parametrize("executor", ["auto", "process", "fork"])
def test_they_begin_there_in_every_executor(tmp_path: Path, one_url: str, executor: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    queue = Queue("mail", url=one_url)
    made = {queue.enqueue(f"shop:{task}").id: task for task in FRAMES}
    made[queue.enqueue("shop:with_callback").id] = "with_callback"
    command = ["worker", "shop", "-q", "mail", "--burst", "-x", executor, "--log-format", "json"]
    done = bide(tmp_path, *command, url=one_url)
    records = map(json.loads, done.stderr.splitlines())
    logged = {made[each["job_id"]]: each["exc"] for each in records if "exc" in each}
    assert functions(textwrap.dedent(logged.pop("with_callback"))) == ["called_back"]
    for id, task in made.items():
        if task not in FRAMES:
            continue
        error = queue.fetch(id).error
        assert error is not None
        for text in (error.traceback, textwrap.dedent(logged[task])):
            parts = text.split("direct cause of the following")
            assert [functions(part) for part in parts] == FRAMES[task], text
    queue.close()


def test_an_error_about_the_job_itself_shows_no_frames_of_bide(
    queue: Queue, raw: redis.Redis
) -> None:
    """Its sentence says it all, and each of many thousand such jobs would store them."""
    made = [
        queue.enqueue("tests.support.jobs:add"),
        queue.enqueue("tests.support.jobs:add", 1),
        queue.enqueue("tests.support.jobs:nothing_there"),
        queue.enqueue(jobs.unfit),
    ]
    raw.hset(queue.keys["jobs"], made[1].id, b"{spoilt")
    burst(queue)
    for job, kind in zip(made, ("Payload", "Payload", "NotFound", "Payload"), strict=True):
        error = job.refresh().error
        assert error is not None
        assert kind in error.type
        (line,) = error.traceback.splitlines()
        assert line.startswith("bide.errors.")
        assert line.endswith(error.message)


def test_where_no_frame_is_the_applications_all_stay() -> None:
    """It shows a defect of bide."""
    with pytest.raises(UsageError) as raised:
        to_us(object())  # type: ignore[arg-type]
    error, trace = raised.value, raised.value.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    BaseException.with_traceback(error, trace.tb_next)
    begin_in_application(error)
    assert error.__traceback__ is trace.tb_next
