"""What the workers under test run: each job writes into the ledger that it begins, and how it ends.

A line is one write to a file opened for appending, so that lines of several processes never mix,
and what was written stays written when its writer is killed.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from bide import current_job
from tests.support.eventually import PATIENCE

LEDGER = "BIDE_TEST_LEDGER"
GATES = "BIDE_TEST_GATES"


def note(what: str) -> int:
    """Write a line about the current job; returns the job's token."""
    job = current_job()
    line = {
        "what": what,
        "id": job.id,
        "attempt": job.attempt,
        "token": job.token,
        "due_us": job._claimed.due_us,
        "worker": job.worker,
        "pid": os.getpid(),
        "clock_us": time.time_ns() // 1000,  # this process's, which a test may have shifted
        "real_us": time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000,
    }
    fd = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)
    return job.token


def gate(name: str) -> Path:
    return Path(os.environ[GATES]) / name


async def quick() -> int:
    note("begun")
    return note("done")


async def batched(items: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What was batched, after a while in which a worker may be killed."""
    note("begun")
    await asyncio.sleep(0.05)
    note("done")
    return items


async def held(name: str) -> int:
    """Run until the test opens the gate."""
    note("begun")
    while not gate(name).exists():  # noqa: ASYNC110 - the test is another process
        await asyncio.sleep(0.005)
    return note("done")


def held_in_thread(name: str) -> int:
    """The same in a thread."""
    note("begun")
    while not gate(name).exists():
        time.sleep(0.005)
    return note("done")


def forks() -> int | None:
    """Fork a process, and end it by SIGTERM; its exit code, or None if it lives on."""
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    with warnings.catch_warnings(action="ignore"):  # the process has threads
        child.start()
    child.terminate()
    child.join(PATIENCE)
    code = child.exitcode
    child.kill()
    return code


async def stubborn(name: str) -> int:
    """The same, deaf to being cancelled."""
    note("begun")
    while not gate(name).exists():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note("cancelled")
    return note("done")


async def fails_until(attempt: int) -> int:
    note("begun")
    if current_job().attempt < attempt:
        note("raised")
        raise RuntimeError("not yet")
    return note("done")


async def fails_then_held(name: str) -> int:
    """Raise in the first attempt; in the others run until the test opens the gate."""
    if current_job().attempt == 1:
        note("begun")
        raise RuntimeError("not yet")
    return await held(name)


class Listed(NamedTuple):
    due_us: int
    id: str
    attempt: int
    producer: int
    number: int


listed_runs: list[Listed] = []
"""What `listed` ran, in the order in which it began; for workers of the test's own process."""


async def listed(raises: bool, producer: int, number: int) -> None:
    job = current_job()
    listed_runs.append(Listed(job._claimed.due_us, job.id, job.attempt, producer, number))
    if raises and job.attempt == 1:
        raise RuntimeError("not yet")


async def padded(padding: str) -> int:
    """One whose arguments take room, and whose result takes some too."""
    note("begun")
    return note("done")


async def padded_fails(padding: str) -> None:
    raise RuntimeError(f"{len(padding)} characters")


async def talks(padding: str) -> None:
    """One that says much of itself."""
    for i in range(20):
        current_job().log(f"{i} {padding}")
    current_job().progress(0.5, "half")
