"""The metrics of a worker (claims, outcomes, lateness, run times), and the process title.

The title is set only if setproctitle is installed (the extra `title`), and only in a process that
is nothing but a worker. `Worker.run` inside your own program does not change that program's title.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Claim, Outcome, Settle, Verdict
from bide.protocol.keys import Keys

if TYPE_CHECKING:
    from bide.worker.running_job import RunningJob

LATENESS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 3600)
"""Upper bounds of the lateness buckets: seconds from due to the first statement."""

_LATENESS_US: Final = tuple(bound * 1e6 for bound in LATENESS)

RUN_TIME: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
"""Upper bounds of the run time buckets: seconds that a job ran."""


class BucketCounts(msgspec.Struct, array_like=True):
    """How many measurements fell into each bucket; the last bucket has no upper bound."""

    counts: list[int]
    total: float = 0.0

    def add_all(self, bounds: Sequence[float], values: list[float], unit: float = 1.0) -> None:
        """Count measurements, and sort them; a value on a bound belongs to the bucket below it.

        The total is in seconds; `unit` is how many of them the unit of bounds and values is.
        """
        start, end = 0, len(values)
        self.total += sum(values) * unit
        if values and max(values) <= bounds[0]:  # as the run times of quick jobs
            self.counts[0] += end
            return
        values.sort()
        while start < end:
            bucket = bisect_left(bounds, values[start])
            stop = bisect_right(values, bounds[bucket], start) if bucket < len(bounds) else end
            self.counts[bucket] += stop - start
            start = stop

    def add(self, other: BucketCounts) -> None:
        """Add the counts of another with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class TaskMetrics(msgspec.Struct, array_like=True):
    """The counters of one task in one queue."""

    settled: dict[str, int] = {}
    """Outcomes that the server recorded, by name."""
    lateness: BucketCounts = msgspec.field(
        default_factory=lambda: BucketCounts([0] * (len(LATENESS) + 1))
    )
    """The lateness of starts: from due to the first statement."""
    run_time: BucketCounts = msgspec.field(
        default_factory=lambda: BucketCounts([0] * (len(RUN_TIME) + 1))
    )
    """The durations of runs, with any outcome."""

    def add(self, other: TaskMetrics) -> None:
        """Add the counters of another."""
        for outcome, count in other.settled.items():
            self.settled[outcome] = self.settled.get(outcome, 0) + count
        self.lateness.add(other.lateness)
        self.run_time.add(other.run_time)


MOST_TASKS: Final = 100
"""Tasks of a queue that have counters of their own; all others share the counters of `OTHER`. A
label with more values would burden Prometheus."""

OTHER: Final = "other"
"""Also for jobs whose task cannot be read, or is not served here: producers choose such names."""


class WorkerMetrics(msgspec.Struct, array_like=True):
    """The counters of one queue since the worker started; they only grow."""

    claims: int = 0
    """Claims that the server answered."""
    claimed: int = 0
    """Jobs in the replies to those claims."""
    refused: int = 0
    """Outcomes that came too late: another worker had the job."""
    tasks: dict[str, TaskMetrics] = msgspec.field(default_factory=lambda: {OTHER: TaskMetrics()})

    def note_claim(self, reply: Claim) -> None:
        """Count the reply to a claim."""
        self.claims += 1
        self.claimed += len(reply.jobs)

    def note_start(self, run: RunningJob) -> None:
        """Count how late a job has started that has not ended, unless it is counted already."""
        if late_us := _uncounted_us([run]):
            self.of(run.metric_label).lateness.add_all(_LATENESS_US, late_us, 1e-6)
            run.is_late_counted = True

    def note_settles(
        self,
        settles: Sequence[Settle],
        verdicts: Sequence[Verdict],
        runs: Sequence[RunningJob | None],
    ) -> None:
        """Count ended jobs, by the server's verdicts on their outcomes.

        A worker may end tens of thousands of jobs in a second, a few dozen at a time. To count them
        together costs a fraction of what it costs to count each.
        """
        outcomes: set[Outcome] = {settle.outcome for settle in settles}
        tasks = {OTHER if run is None or run.missing else run.task_name for run in runs}
        if len(outcomes) == len(tasks) == 1 and "?" not in tasks and "lost" not in verdicts:
            self._note_ended(tasks.pop(), outcomes.pop(), runs)
            return
        ended: defaultdict[tuple[str, Outcome | None], list[RunningJob | None]] = defaultdict(list)
        for settle, verdict, run in zip(settles, verdicts, runs, strict=True):
            task = OTHER if run is None else run.metric_label
            ended[task, None if verdict == "lost" else settle.outcome].append(run)
        for (task, outcome), together in ended.items():
            self._note_ended(task, outcome, together)

    def _note_ended(
        self, task: str, outcome: Outcome | None, runs: Sequence[RunningJob | None]
    ) -> None:
        """Count ended jobs of one task with the same outcome; None for a refused one."""
        counters = self.of(task)
        if outcome is None:
            self.refused += len(runs)
        else:
            counters.settled[outcome] = counters.settled.get(outcome, 0) + len(runs)
        counters.lateness.add_all(_LATENESS_US, _uncounted_us(runs), 1e-6)
        ran = [run.ran for run in runs if run is not None and run.ran]
        counters.run_time.add_all(RUN_TIME, ran)

    def of(self, task: str) -> TaskMetrics:
        """Return the counters of a task."""
        found = self.tasks.get(task)
        if found is None:
            name = task if len(self.tasks) <= MOST_TASKS else OTHER
            found = self.tasks.setdefault(name, TaskMetrics())
        return found

    def add(self, other: WorkerMetrics) -> None:
        """Add the counters of another."""
        self.claims += other.claims
        self.claimed += other.claimed
        self.refused += other.refused
        for task, counters in other.tasks.items():
            self.of(task).add(counters)


def _uncounted_us(runs: Sequence[RunningJob | None]) -> list[float]:
    """By how many microseconds those runs started late whose lateness is not counted yet."""
    late_us = [
        run.late_us
        for run in runs
        if run is not None and run.late_us is not None and not run.is_late_counted
    ]
    if late_us and min(late_us) < 0:  # by the estimate of the server's clock
        return [max(0.0, each) for each in late_us]
    return late_us


ByQueue = dict[str, WorkerMetrics]


def add_all(to: ByQueue, more: ByQueue) -> None:
    """Add the metrics of each queue."""
    for queue, metrics in more.items():
        to.setdefault(queue, WorkerMetrics()).add(metrics)


def add_names(to: ByQueue, more: ByQueue) -> None:
    """Give the tasks of each queue counters of their own, in which nothing is counted yet."""
    for queue, metrics in more.items():
        counters = to.setdefault(queue, WorkerMetrics())
        for task in metrics.tasks:
            counters.of(task)


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
