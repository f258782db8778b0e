"""A job fails with an error that cannot be shown, that is long, or that belongs to another job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from bide import JobFailed, PayloadTooNew, Queue, State
from tests.support.workers import at_work

EXECUTORS = ("async", "thread", "process")
tasks = Queue("hostile", url="redis://127.0.0.1:1")


class Mute(Exception):
    """An error that ends the program when its text is wanted."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Noted(ValueError):
    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise SystemExit(3)
        return super().__getattribute__(name)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "mute": Mute,
    "noted": Noted,
    "long": lambda: ValueError("x\n" * 500_000),
    "newer": lambda: PayloadTooNew("that other job needs a newer bide"),
}


@tasks.task
def fail(kind: str) -> None:
    raise ERRORS[kind]()


@tasks.task
async def fail_async(kind: str) -> None:
    raise ERRORS[kind]()


@tasks.task(retry=1)
def fail_again(kind: str) -> None:
    raise ERRORS[kind]()


@tasks.task
def work() -> str:
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ERRORS)
def test_any_error_fails_its_job_and_frees_its_slot(
    queue: Queue, executor: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["fail_async" if executor == "async" else "fail"] * 3 + ["fail_again"]
    with at_work(queue, concurrency=2, executor="process" if executor == "process" else "auto"):
        jobs = [queue.enqueue(f"{__name__}:{name}", kind) for name in names]
        assert queue.enqueue(work).wait(60) == "done"
        for job in jobs:
            with pytest.raises(JobFailed):
                job.wait(60)
            assert job.refresh().state is State.FAILED
            assert job.error is not None
            assert "JobTimeout" not in job.error.type
            assert "WorkerCrashed" not in job.error.type
    for record in caplog.records:
        assert len(logging.Formatter().format(record)) < 50_000
