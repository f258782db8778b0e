"""What the files of the peers share: where the server is, the marks, the producer.

A job marks that it ran by writing the time into its own eight bytes of a file that all processes
have mapped: no system call, no lock, nothing for the server to do. It costs every peer alike.

    python -m benchmarks.peers.common rq

is the producer: it says what there is to know of the peer, and then, for each line that it reads,
enqueues jobs and says so. A line is `[worker, first, count]` for jobs that only mark, or
`[null, first, count, seconds, delay, step]` for jobs that take some time, and are due after a
delay, each so much later than the one before.

Jobs that take time write into a ledger when they begin and end: a line each, appended in one go.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import mmap
import os
import sys
import time
from typing import Any

URL = os.environ["BENCH_URL"]
"""The server: a `unix://` or `redis://` URL."""

QUEUE = "bench"


def _map() -> memoryview:
    fd = os.open(os.environ["BENCH_MARKS"], os.O_RDWR)
    try:
        return memoryview(mmap.mmap(fd, 0)).cast("q")
    finally:
        os.close(fd)


_marks = _map()


def mark(number: int) -> None:
    """Note that a job runs now, on a clock that all processes share."""
    _marks[number] = time.monotonic_ns()


def note(what: str, number: int, at: int | None = None) -> None:
    """Write into the ledger that a job begins, ends, or is due now, or at another moment."""
    line = f"{what} {number} {at or time.monotonic_ns()} {os.getpid()}\n".encode()
    fd = os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def take(number: int, seconds: float) -> None:
    """Be a job that takes so long."""
    note("begin", number)
    time.sleep(seconds)
    note("end", number)


async def take_async(number: int, seconds: float) -> None:
    """Be a coroutine of a job that takes so long."""
    note("begin", number)
    await asyncio.sleep(seconds)
    note("end", number)


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    """Enqueue what is asked for, until there is nobody to ask."""
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    version = importlib.metadata.version(peer.ABOUT["package"])
    workers = {**peer.WORKERS, "faults": peer.FAULTS}
    _say({**peer.ABOUT, "version": version, "workers": workers})
    for line in sys.stdin:
        worker, first, count, *held = json.loads(line)
        if worker is None:
            seconds, delay, step = held
            delays = {first + i: delay + i * step for i in range(count)}
            now = time.monotonic_ns()
            for number, later in delays.items():
                note("due", number, now + round(later * 1e9))
            peer.hold(delays, seconds)
        else:
            peer.enqueue(range(first, first + count), worker)
        _say(count)


if __name__ == "__main__":
    main(sys.argv[1])
