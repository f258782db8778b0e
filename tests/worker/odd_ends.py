"""Tasks and callbacks that end as they should not."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import bide
from bide import Fail, JobCancelled, RetryLater, current_job
from bide.model.context import CurrentJob
from tests.support.jobs import gate, note

queue = bide.Queue("registers-only", url="redis://127.0.0.1:1")


def stay_for_a_while(job: CurrentJob, value: object) -> None:
    note("called back", value)
    gate.wait(90)


async def stay_for_a_while_async(job: CurrentJob, value: object) -> None:
    note("called back", value)
    await asyncio.sleep(3600)


def told(job: CurrentJob, value: object) -> None:
    note("told", type(value).__name__)


@queue.task
async def told_by_task(job: Any, value: Any) -> None:
    note("told", value)


@queue.task(on_success=told_by_task)
def tells() -> int:
    return 5


@queue.task(on_success=told_by_task)
async def tells_async() -> int:
    return 5


def leave(job: CurrentJob, value: object) -> None:
    sys.exit(3)


async def leave_async(job: CurrentJob, value: object) -> None:
    sys.exit(3)


def child_was_cancelled() -> None:
    error = JobCancelled("Job other was cancelled.")
    error.job_id = "other"
    raise error


def later(delay: float) -> None:
    raise RetryLater(delay=delay)


def misfit() -> object:
    return object()


async def misfit_async() -> object:
    return object()


def breaks_off(attempt: int, error: BaseException) -> float:
    raise asyncio.CancelledError


def leaves(attempt: int, error: BaseException) -> float:
    sys.exit(3)


def fail() -> None:
    raise ValueError("no")


def gives_up() -> None:
    raise Fail("no use")


async def fail_async() -> None:
    raise ValueError("no")


async def overrun() -> None:
    await asyncio.sleep(3600)


async def deaf() -> None:
    """Goes on though it is cancelled, until the gate opens."""
    note("begun")
    while not gate.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    note("over")


def looks() -> None:
    """A plain function that sees that its time is over."""
    until = time.monotonic() + 20
    while not current_job().should_stop:
        if time.monotonic() > until:
            return
        gate.wait(0.005)
    note("saw it")
