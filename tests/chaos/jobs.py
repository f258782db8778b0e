"""What the workers run under load: each job writes into the ledger that it begins, and how it ends.

What a job returns is its token, so that the result on the server names the run that it is from.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import warnings

from bide import Queue, current_job
from tests.support.ledger_jobs import note

QUEUE = "chaos"
"""The queue of the suite."""


async def brief(seconds: float) -> int:
    """A coroutine function."""
    note("begun")
    await asyncio.sleep(seconds)
    return note("done")


def plain(seconds: float) -> int:
    """A plain function: in a thread, or in a process."""
    note("begun")
    time.sleep(seconds)
    return note("done")


async def flaky(seconds: float) -> int:
    """One that fails the first time."""
    note("begun")
    await asyncio.sleep(seconds)
    if current_job().attempt == 1:
        note("raised")
        raise RuntimeError("not yet")
    return note("done")


async def batched(items: list[tuple[str, int]]) -> int:
    """One that gets the items of many calls, and says which."""
    note("begun")
    await asyncio.sleep(0.02)
    note(f"items {json.dumps(items)}")
    return note("done")


def fails() -> None:
    """One that fails."""
    note("begun")
    note("raised")
    raise RuntimeError("never")


def typed(number: int) -> int:
    """One that wants a number."""
    note("begun")
    return note("done")


def deadly() -> None:
    """One that kills its process each time."""
    note("begun")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)


async def block_the_loop(seconds: float) -> int:
    """Stops all that its process does on the event loop."""
    note("begun")
    time.sleep(seconds)  # noqa: ASYNC251 - the point of it
    return note("done")


def hold_the_lock(seconds: float) -> int:
    """Holds the interpreter's lock for about so long, in one call that never lets go of it."""
    note("begun")
    count, took = 10_000_000, 0.0
    while took < seconds:  # the last call takes most of it
        started = time.monotonic()
        sum(range(count))
        took = time.monotonic() - started
        count = max(count + 1, min(count * 8, round(count * 1.1 * seconds / max(took, 1e-3))))
    return note("done")


def leaves_processes(hangs: bool) -> int:
    """Starts what outlives it: a child, a session of its own, a grandchild."""
    note("begun")
    _left.append(subprocess.Popen(["sleep", "1000"]))
    _left.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
    subprocess.run(["sh", "-c", "sleep 1000 & :"], check=True)
    if hangs:
        time.sleep(1000)
    return note("done")


_left: list[subprocess.Popen[bytes]] = []


def forks(url: str) -> int:
    """Forks with open connections: parent and child both go on using them."""
    note("begun")
    queue = _shared_queue(url)
    id = current_job().id
    queue.enqueue(brief, 0, job_id=f"{id}-before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on: a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            queue.enqueue(brief, 0, job_id=f"{id}-child")
            code = 0
        finally:
            os._exit(locals().get("code", 1))
    queue.enqueue(brief, 0, job_id=f"{id}-parent")
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the child ended with {status}")
    return note("done")


_queues: dict[str, Queue] = {}


def _shared_queue(url: str) -> Queue:
    if url not in _queues:
        _queues[url] = Queue(QUEUE, url=url)
    return _queues[url]


def talkative(lines: int) -> int:
    """Says more than is kept."""
    note("begun")
    for i in range(lines):
        current_job().log(f"{i} {'x' * 300}")
    current_job().progress(0.5, "half")
    return note("done")


async def all_fail_once() -> int:
    """Fails at once the first time, as a crowd does whose server is down."""
    if current_job().attempt == 1:
        raise RuntimeError("the server of all of us is down")
    note("begun")
    return note("done")
