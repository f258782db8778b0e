"""The metrics of a worker (claims, outcomes, lateness, run times), and the process title.

The title is set only if setproctitle is installed (the extra `title`), and only in a process that
is nothing but a worker. `Worker.run` inside your own program does not change that program's title.
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
"""Upper bounds of the lateness buckets: seconds from due to the first statement."""

RUN_TIME: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
"""Upper bounds of the run time buckets: seconds that a job ran."""


class Histogram(msgspec.Struct, array_like=True):
    """How many measurements fell into each bucket; the last bucket has no upper bound."""

    counts: list[int]
    total: float = 0.0

    def add(self, bounds: Sequence[float], seconds: float) -> None:
        """Count one measurement; a value on a bound belongs to the bucket below it."""
        self.counts[bisect_left(bounds, seconds)] += 1
        self.total += seconds


def _empty(bounds: Sequence[float]) -> Any:
    return msgspec.field(default_factory=lambda: Histogram([0] * (len(bounds) + 1)))


class WorkerMetrics(msgspec.Struct, array_like=True):
    """The counters of one queue since the worker started; they only grow."""

    claims: int = 0
    """Claims that the server answered."""
    claimed: int = 0
    """Jobs in the replies to those claims."""
    settled: dict[str, int] = {}
    """Outcomes that the server recorded, by name."""
    refused: int = 0
    """Outcomes that came too late: another worker had the job."""
    lateness: Histogram = msgspec.field(
        default_factory=lambda: Histogram([0] * (len(LATENESS) + 1))
    )
    run_time: Histogram = msgspec.field(
        default_factory=lambda: Histogram([0] * (len(RUN_TIME) + 1))
    )

    def note_claim(self, reply: Claim) -> None:
        """Count the reply to a claim."""
        self.claims += 1
        self.claimed += len(reply.jobs)

    def note_start(self, seconds: float) -> None:
        """Count the start of a job, so long after it was due."""
        self.lateness.add(LATENESS, seconds)

    def note_run(self, seconds: float) -> None:
        """Count a run, whatever its outcome."""
        self.run_time.add(RUN_TIME, seconds)

    def note_settles(self, settles: Sequence[Settle], verdicts: Sequence[Verdict]) -> None:
        """Count outcomes by the server's verdicts."""
        for settle, verdict in zip(settles, verdicts, strict=True):
            if verdict == "lost":
                self.refused += 1
            else:
                self.settled[settle.outcome] = self.settled.get(settle.outcome, 0) + 1

    def add(self, other: WorkerMetrics) -> None:
        """Add the counters of another."""
        self.claims += other.claims
        self.claimed += other.claimed
        self.refused += other.refused
        for outcome, count in other.settled.items():
            self.settled[outcome] = self.settled.get(outcome, 0) + count
        pairs = (self.lateness, other.lateness), (self.run_time, other.run_time)
        for ours, theirs in pairs:
            ours.counts = [a + b for a, b in zip(ours.counts, theirs.counts, strict=True)]
            ours.total += theirs.total


ByQueue = dict[str, WorkerMetrics]


def add_all(to: ByQueue, more: ByQueue) -> None:
    """Add the metrics of each queue."""
    for queue, metrics in more.items():
        to.setdefault(queue, WorkerMetrics()).add(metrics)


def metrics_of(keys: Keys, counted: ByQueue | None) -> WorkerMetrics | None:
    """Return the metrics of a queue; None if the worker counts nothing."""
    return None if counted is None else counted.setdefault(keys.queue or "", WorkerMetrics())


EVERY: Final = 1.0
"""Seconds between two updates of the title."""

_NAMES: Final = 3
_NO_ENVIRONMENT: Final = "SPT_NOENV"


def title(queues: Sequence[str], running: Iterable[str]) -> str:
    """Return `bide worker mail, low: 3 shop:send, shop:bill`; or `… : idle`."""
    names = Counter(running).most_common()
    shown = [f"{count} {name}" if count > 1 else name for name, count in names[:_NAMES]]
    if len(names) > _NAMES:
        shown.append(f"{sum(count for _, count in names[_NAMES:])} more")
    return f"bide worker {', '.join(queues)}: {', '.join(shown) or 'idle'}"


def set_title(text: str) -> None:
    """Set this process's title, if setproctitle is installed."""
    if (process := _process()) is not None:
        process.setproctitle(text)


@contextmanager
def titled(text: str) -> Iterator[None]:
    """Set this process's title inside the context, and restore it at the end."""
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


async def keep(queues: Sequence[str], snapshot: Callable[[], Iterable[RunningTask]]) -> None:
    """Update this process's title every second until cancelled, and then restore it."""
    if _process() is None:
        return
    current = title(queues, ())
    with titled(current):
        while True:
            if (now := title(queues, [job.task for job in snapshot()])) != current:
                set_title(current := now)
            await asyncio.sleep(EVERY)


@cache
def _process() -> Any:
    """Return setproctitle, imported so that it does not write titles over the environment.

    It reads the variable once, at import. Without it, a long title would overwrite the environment,
    which other programs read in `/proc`. So a title is at most as long as the command line was.
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
