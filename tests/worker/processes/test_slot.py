"""One place for children, as the worker sees it: who is asked to stop, who is counted on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from bide.worker.processes.ipc import JobTable
from bide.worker.processes.pool import Slot


@pytest.fixture
def slot() -> Iterator[Slot]:
    fd = JobTable.create(1)
    table = JobTable(fd)
    yield Slot(0, table.row(0))
    table.close()
    os.close(fd)


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield sleepers
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


def test_a_job_is_asked_again_where_it_runs_now(
    slot: Slot, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    """The child that was here has gone, and that another has its job was not known yet."""
    one, two = sleepers
    slot.on_spawned(one.pid)
    slot.row.begin(5, 0.0)
    slot.request_cancel(5, 0.0)
    assert one.wait(60) == -signal.SIGUSR1
    slot.request_cancel(5, 1.0)  # nobody hears that
    slot.on_spawned(two.pid)
    assert slot.row.cancel_requested == 0
    slot.request_cancel(5, 9.0)
    assert two.wait(60) == -signal.SIGUSR1
    assert not slot.killed, "its grace began when it was asked itself"


def test_it_is_asked_again_as_long_as_it_goes_on(
    slot: Slot, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    slot.row.begin(5, 0.0)
    slot.row.request_cancel(5)
    slot.pid = sleepers[0].pid  # which could not hear, the first time
    slot.request_cancel(5, 0.0)
    assert sleepers[0].wait(60) == -signal.SIGUSR1


def test_a_child_that_leaves_is_not_counted_on_whenever_it_is_known(slot: Slot) -> None:
    me = os.getpid()
    slot.is_ready(me)
    slot.on_leaving(me)
    assert not slot.on_spawned(me)
    assert not slot.takes_jobs
    slot.check()
    assert not slot.takes_jobs
    assert slot.is_unsettled


def test_another_of_the_same_number_is(slot: Slot) -> None:
    me = os.getpid()
    slot.on_spawned(me)
    slot.is_ready(me)
    slot.on_leaving(me)
    assert not slot.is_free
    slot.is_ready(me)
    slot.on_spawned(me)
    slot.check()
    assert slot.is_free
