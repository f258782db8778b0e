"""What the files of the peers share: where the server is, the marks, the producer.

A job marks that it ran by writing the time into its own eight bytes of a file that all processes
have mapped: no system call, no lock, nothing for the server to do. It costs every peer alike.

    python -m benchmarks.peers.common rq

is the producer: it says what there is to know of the peer, and then obeys each line that it reads,
and answers with a line. A line is a JSON object: `do` is a method of `Producer`, the rest are its
arguments. Moments are told as seconds since the epoch, and answered in nanoseconds of the monotonic
clock, which all processes share.

Jobs that take time write into a ledger when they begin and end: a line each, appended in one go.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import mmap
import os
import random
import sys
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

URL = os.environ["BENCH_URL"]
"""The server: a `unix://` or `redis://` URL."""

QUEUE = "bench"
BATCH = 500
"""Jobs in one call that takes many."""

CALLERS = 100
"""Callers that await at the same time."""


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


def when(at: float | None) -> datetime | None:
    """A moment as most libraries want it; None is at once."""
    return None if at is None else datetime.fromtimestamp(at, UTC)


Call = tuple[str, tuple[Any, ...], "float | None"]
"""The name of a job's function, its arguments, when it is due (None: at once)."""


class Producer:
    """Enqueues what it is told to, by the calls that the peer's file has."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._one = getattr(peer, "one", None)
        self._many = getattr(peer, "many", None)
        self._aone = getattr(peer, "aone", None)
        self._amany = getattr(peer, "amany", None)
        self._loops = asyncio.Runner(loop_factory=_loop_factory())

    def put(
        self, job: str, first: int, count: int, at: float | None, step: float, bulk: bool
    ) -> int:
        """Put jobs, each due a step later than the last; the answer is when that began.

        They are put one by one, or else as the library does it fastest.
        """
        calls = [(job, (first + i,), at and at + i * step) for i in range(count)]
        return self._run(self._put(calls, bulk))

    def stream(
        self, job: str, first: int, count: int, rate: float, delay: float, start: float
    ) -> list[int]:
        """Put jobs at random moments from one on; when each was due, by the call's moment."""
        return self._run(self._stream(job, first, count, rate, delay, start))

    def time(self, way: str, count: int, delay: float) -> dict[str, float] | None:
        """What it takes to put jobs in some way; None if the library has no such way."""
        at = time.time() + delay if delay else None
        calls: list[Call] = [("job", (n,), at) for n in range(count)]
        ways = {
            "blocking": self._blocking if self._one else None,
            "awaited": self._awaited if self._aone else None,
            "concurrent": self._concurrent if self._aone else None,
            "many": self._batches if self._many or self._amany else None,
        }
        try:
            return self._run(self._timed(ways[way], calls)) if ways[way] else None
        except NotImplementedError:
            return None

    def hold(self, first: int, count: int, seconds: float, delay: float, step: float) -> int:
        """Put jobs that take so long, each due so much later than the last; note when."""
        now, now_ns = time.time(), time.monotonic_ns()
        calls: list[Call] = []
        for number in range(first, first + count):
            later = delay + (number - first) * step
            note("due", number, now_ns + round(later * 1e9))
            calls.append(("held", (number, seconds), now + later if later else None))
        self._run(self._put(calls, True))
        return count

    def _run(self, what: Any) -> Any:
        async def run() -> Any:
            session: Any = getattr(self._peer, "session", nullcontext)
            opened: AbstractAsyncContextManager[Any] = session()
            async with opened:
                return await what

        return self._loops.run(run())

    async def _put(self, calls: list[Call], bulk: bool) -> int:
        began = time.monotonic_ns()
        if bulk and (self._many or self._amany):
            try:
                await self._batches(calls)
                return began
            except NotImplementedError:
                pass
        await (self._blocking if self._one else self._awaited)(calls)
        return began

    async def _stream(
        self, job: str, first: int, count: int, rate: float, delay: float, start: float
    ) -> list[int]:
        between_ns = time.monotonic_ns() - time.time_ns()
        due: list[int] = []
        moment = start
        for i in range(count):
            moment += random.expovariate(rate)
            await asyncio.sleep(max(0.0, moment - time.time()))
            at = time.time() + delay
            due.append(round(at * 1e9) + between_ns)
            if self._one:
                self._one(job, (first + i,), at)
            else:
                await self._aone(job, (first + i,), at)
        return due

    async def _timed(self, way: Any, calls: list[Call]) -> dict[str, float]:
        await way(calls[:CALLERS])  # connects
        wall, cpu = time.perf_counter(), time.process_time()
        await way(calls)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"seconds": wall, "cpu_s": cpu}

    async def _blocking(self, calls: list[Call]) -> None:
        for call in calls:
            self._one(*call)

    async def _awaited(self, calls: list[Call]) -> None:
        for call in calls:
            await self._aone(*call)

    async def _concurrent(self, calls: list[Call]) -> None:
        await asyncio.gather(*(self._awaited(calls[i::CALLERS]) for i in range(CALLERS)))

    async def _batches(self, calls: list[Call]) -> None:
        for i in range(0, len(calls), BATCH):
            if self._many:
                self._many(calls[i : i + BATCH])
            else:
                await self._amany(calls[i : i + BATCH])


def _loop_factory() -> Any:
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    """Obey, until there is nobody to say anything."""
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    version = importlib.metadata.version(peer.ABOUT["package"])
    workers = {**peer.WORKERS, "faults": peer.FAULTS} if peer.WORKERS else {}
    _say({**peer.ABOUT, "version": version, "workers": workers})
    producer = Producer(peer)
    for line in sys.stdin:
        order = json.loads(line)
        _say(getattr(producer, order.pop("do"))(**order))


if __name__ == "__main__":
    main(sys.argv[1])
