"""What a worker counts, where somebody wants to know: claims, outcomes, lateness, run times.

Only where setproctitle is installed (the extra `title`), and only for a process that is a worker
and nothing else: `Worker.run` inside somebody's program leaves that program's title alone.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

import msgspec

from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Claim, Settle, Verdict
from bide.protocol.keys import Keys

LATENESS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 3600)
"""Seconds from due to claimed: the upper ends of the histogram's buckets."""

RUN_TIME: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
"""Seconds that a job ran."""


class Histogram(msgspec.Struct, array_like=True):
    """How often what was measured fell into each bucket; the last has no upper end."""

    counts: list[int]
    total: float = 0.0

    def add(self, bounds: Sequence[float], seconds: float) -> None:
        """Count one; a bound belongs to the bucket below it."""
        self.counts[bisect_left(bounds, seconds)] += 1
        self.total += seconds


def _lateness() -> Histogram:
    return Histogram([0] * (len(LATENESS) + 1))


def _run_time() -> Histogram:
    return Histogram([0] * (len(RUN_TIME) + 1))


class WorkerMetrics(msgspec.Struct, array_like=True):
    """What has been counted of one queue since the worker started; it only grows."""

    claims: int = 0
    """How often jobs were asked for, and the server answered."""
    claimed: int = 0
    """Jobs that came of it."""
    settled: dict[str, int] = {}
    """Outcomes that the server has taken, by name."""
    refused: int = 0
    """Outcomes that came too late: another worker had the job."""
    lateness: Histogram = msgspec.field(default_factory=_lateness)
    run_time: Histogram = msgspec.field(default_factory=_run_time)

    def note_claim(self, reply: Claim) -> None:
        """A claim was answered."""
        self.claims += 1
        self.claimed += len(reply.jobs)
        for job in reply.jobs:
            self.lateness.add(LATENESS, max(0, reply.now_us - job.due_us) / 1e6)

    def note_run(self, seconds: float) -> None:
        """A job has run, whatever it came to."""
        self.run_time.add(RUN_TIME, seconds)

    def note_settles(self, settles: Sequence[Settle], verdicts: Sequence[Verdict]) -> None:
        """The server has answered to outcomes."""
        for settle, verdict in zip(settles, verdicts, strict=True):
            if verdict == "lost":
                self.refused += 1
            else:
                self.settled[settle.outcome] = self.settled.get(settle.outcome, 0) + 1

    def add(self, other: WorkerMetrics) -> None:
        """Add what another has counted."""
        self.claims += other.claims
        self.claimed += other.claimed
        self.refused += other.refused
        for outcome, count in other.settled.items():
            self.settled[outcome] = self.settled.get(outcome, 0) + count
        for ours, theirs in (
            (self.lateness, other.lateness),
            (self.run_time, other.run_time),
        ):
            ours.counts = [a + b for a, b in zip(ours.counts, theirs.counts, strict=True)]
            ours.total += theirs.total


ByQueue = dict[str, WorkerMetrics]


def add_all(to: ByQueue, more: ByQueue) -> None:
    """Add the figures of each queue."""
    for queue, figures in more.items():
        to.setdefault(queue, WorkerMetrics()).add(figures)


def metrics_of(keys: Keys, counted: ByQueue | None) -> WorkerMetrics | None:
    """Where a queue's are counted; None where nobody asks for any."""
    return None if counted is None else counted.setdefault(keys.queue or "", WorkerMetrics())


EVERY: Final = 1.0
"""Seconds."""

_NAMES: Final = 3
_NO_ENVIRONMENT: Final = "SPT_NOENV"


def title(queues: Sequence[str], running: Iterable[str]) -> str:
    """`bide worker mail, low: 3 shop:send, shop:bill`; or `… : idle`.

    Args:
        queues: those that are served.
        running: the task of each job that runs.
    """
    names = Counter(running).most_common()
    shown = [f"{count} {name}" if count > 1 else name for name, count in names[:_NAMES]]
    if len(names) > _NAMES:
        shown.append(f"{sum(count for _, count in names[_NAMES:])} more")
    return f"bide worker {', '.join(queues)}: {', '.join(shown) or 'idle'}"


def set_title(text: str) -> None:
    """Say what this process does, where setproctitle is installed."""
    if (process := _process()) is not None:
        process.setproctitle(text)


@contextmanager
def titled(text: str) -> Iterator[None]:
    """Say what this process does, for as long as the context lasts."""
    process = _process()
    if process is None:
        yield
        return
    before: str = process.getproctitle()
    process.setproctitle(text)
    try:
        yield
    finally:
        process.setproctitle(before)


async def keep(queues: Sequence[str], doing: Callable[[], Iterable[RunningTask]]) -> None:
    """Keep this process's title true, to a second, until cancelled; then it is as it was."""
    if _process() is None:
        return
    said = title(queues, ())
    with titled(said):
        while True:
            if (now := title(queues, [job.task for job in doing()])) != said:
                set_title(said := now)
            await asyncio.sleep(EVERY)


@cache
def _process() -> Any:
    """The library, which reads this variable once: a title is not written over the environment.

    So it may be as long as the command line was, and what others read there stays true.
    """
    before = os.environ.get(_NO_ENVIRONMENT)
    os.environ[_NO_ENVIRONMENT] = "1"
    try:
        process = import_module("setproctitle")
        process.getproctitle()
        return process
    except ImportError:
        return None
    finally:
        if before is None:
            del os.environ[_NO_ENVIRONMENT]
