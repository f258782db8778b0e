"""When a signal may end a job, and when it waits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bide.errors import JobCancelled, JobTimeout
from bide.model.job import Claimed
from bide.tasks.task import TaskRegistry
from bide.worker.processes.child import CANCEL_SIGNAL, Child, Interrupts
from bide.worker.processes.ipc import ChildRow, JobTable, pair
from bide.worker.running_job import RunningJob
from tests.worker.processes.test_lines import SETTING


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose next run is ended before anything has begun."""

    ends_by: BaseException | None = None

    def run_until_complete(self, future: Any) -> Any:
        ends_by, self.ends_by = self.ends_by, None
        if ends_by is not None:
            raise ends_by
        return super().run_until_complete(future)


@pytest.mark.parametrize(
    ("error", "is_unfit"), [(JobTimeout("late"), False), (RuntimeError("it runs already"), True)]
)
def test_a_coroutine_that_is_ended_before_it_begins_was_not_unfit_to_run(
    error: BaseException, is_unfit: bool
) -> None:
    """By a signal, that is; what else ends it then is a sign that the event loop is broken."""

    async def never() -> None:
        raise AssertionError

    (orders, far), (replies, near) = pair(), pair()
    with orders, far, replies, near:
        child = Child(orders, replies, replies.fileno(), TaskRegistry(), SETTING)
        child._loop = loop = Loop()
        loop.ends_by = error
        with pytest.raises(type(error)):
            child._wait(never())
        assert child._is_unfit is is_unfit
        loop.close()


@pytest.fixture
def row() -> Iterator[ChildRow]:
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, CANCEL_SIGNAL)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    fd = JobTable.create(1)
    table = JobTable(fd)
    yield table.row(0)
    table.close()
    os.close(fd)
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def begun(row: ChildRow) -> tuple[Interrupts, RunningJob]:
    nobody: Any = None
    run = RunningJob(nobody, Claimed("a", b"", 1, 1, 0, 5, 5), 0.0, lambda: None)
    interrupts = Interrupts()
    interrupts.listen()
    interrupts.begin(run, row, 7)
    return interrupts, run


@pytest.mark.parametrize("number", [signal.SIGALRM, CANCEL_SIGNAL])
def test_it_waits_while_something_is_said(row: ChildRow, number: signal.Signals) -> None:
    interrupts, run = begun(row)
    said = []

    def job() -> None:
        assert interrupts.hold()
        row.request_cancel(7)
        signal.raise_signal(number)
        said.append("whole")
        interrupts.release()
        said.append("too much")

    with pytest.raises(JobTimeout if number == signal.SIGALRM else JobCancelled):
        interrupts.call(run, job)
    assert said == ["whole"]
    assert run.timed_out == (number == signal.SIGALRM)
    assert run.cancel_requested == (number == CANCEL_SIGNAL)


def test_it_ends_a_job_once_and_no_other(row: ChildRow) -> None:
    interrupts, run = begun(row)

    def job() -> None:
        try:
            signal.raise_signal(signal.SIGALRM)
        finally:
            signal.raise_signal(signal.SIGALRM)
            assert not interrupts.hold(), "there is nothing left to wait"

    with pytest.raises(JobTimeout):
        interrupts.call(run, job)
    signal.raise_signal(signal.SIGALRM)
    interrupts.begin(run, row, 8)
    row.request_cancel(7)
    interrupts.call(run, signal.raise_signal, CANCEL_SIGNAL)
    assert not run.cancel_requested, "that was for another"


def test_one_that_was_asked_before_it_began_does_not(row: ChildRow) -> None:
    interrupts, run = begun(row)
    row.request_cancel(7)
    with pytest.raises(JobCancelled):
        interrupts.call(run, pytest.fail, "it ran")
