"""The load: jobs of several kinds, drawn from a seed, and a producer that hands them in.

The producer does what users are told to do: what was not acknowledged is handed in again, with the
same id, until it is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bide import Queue, Retry
from bide.errors import BideError
from bide.protocol.commands.enqueue import Prepared

MODULE = "tests.chaos.jobs"
TOGETHER = 5
"""Jobs per enqueue."""

BASE = 0.05
"""Seconds before a retry."""
LONGEST_DELAY = 0.6
"""Seconds; of the jobs of the usual load."""


class Given(NamedTuple):
    """A job of the load, and what must become of it."""

    prepared: Prepared
    delay: float = 0.0
    """Seconds that it was to wait."""
    ends: str = "completed"
    attempts: int = 1
    """How many count at its end, whatever happened to its workers."""
    runs: bool = True
    """Whether its runs stand in the ledger."""


class Asked(NamedTuple):
    """When a job was handed in for the first time, and when that was acknowledged."""

    asked_us: int
    acked_us: int


def usual(queue: Queue, dice: random.Random, count: int) -> Iterator[Given]:
    """Coroutines and plain functions, some of them delayed, some to be retried."""
    for i in range(count):
        kind = dice.choices(["brief", "plain", "flaky"], [5, 4, 1])[0]
        delay = dice.choice([0.0, 0.0, 0.0, round(dice.uniform(0.1, LONGEST_DELAY), 3)])
        options: dict[str, Any] = {"delay": delay, "job_id": f"{kind}-{i:05}"}
        if kind == "flaky":
            options["retry"] = Retry(3, "fixed", base=BASE)
        took = round(dice.choice([0.0, 0.01, 0.05, 0.2]), 3)
        job = queue.prepare(f"{MODULE}:{kind}", [took], **options)
        yield Given(job, delay, attempts=2 if kind == "flaky" else 1)


def now_us() -> int:
    return time.time_ns() // 1000


class Load(threading.Thread):
    """Hands in jobs at a steady rate until all are acknowledged."""

    def __init__(
        self,
        queue: Queue,
        jobs: Sequence[Given],
        rate: float,
        holds: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up.

        Args:
            queue: where to.
            jobs: what.
            rate: jobs per second; what was held up is not made up for.
            holds: whether to hand in nothing just now.
        """
        super().__init__(name="load", daemon=True)
        self.jobs = {job.prepared.id: job for job in jobs}
        self.asked: dict[str, Asked] = {}
        self.refusals: dict[str, int] = {}
        """Errors that the producer was told, by kind."""
        self.failure: BaseException | None = None
        self._at_first = [job.prepared for job in jobs]
        self._queue = queue
        self._pause = TOGETHER / rate
        self._holds = holds
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            jobs = self._at_first
            for start in range(0, len(jobs), TOGETHER):
                self._hand_in(jobs[start : start + TOGETHER])
                while self._ended.wait(self._pause) or self._holds():
                    if self._ended.is_set():
                        return
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        self._ended.set()

    def hand_in(self, jobs: Sequence[Given], asked_us: int = 0) -> None:
        """Hand in more than the load, now; `asked_us`: when others have tried to."""
        self.jobs |= {job.prepared.id: job for job in jobs}
        self._hand_in([job.prepared for job in jobs], asked_us)

    def again(self, since_us: int) -> int:
        """Hand in once more what was acknowledged since then; how many of them were new.

        This is what a producer does that learns that its server may have lost its latest writes.
        """
        latest = [id for id, asked in self.asked.items() if asked.acked_us >= since_us]
        news = 0
        for start in range(0, len(latest), 200):
            batch = [self.jobs[id].prepared for id in latest[start : start + 200]]
            news += sum(job.created is True for job in self._hand_in(batch))
        return news

    def _hand_in(self, batch: Sequence[Prepared], asked_us: int = 0) -> list[Any]:
        asked_us = asked_us or now_us()
        while True:
            try:
                jobs = self._queue.enqueue_many(batch)
            except BideError as error:
                kind = type(error).__name__
                self.refusals[kind] = self.refusals.get(kind, 0) + 1
                if self._ended.wait(0.1):
                    return []
                continue
            acked_us = now_us()
            for job in jobs:
                first = self.asked.get(job.id, Asked(asked_us, acked_us))
                self.asked[job.id] = Asked(first.asked_us, acked_us)
            return list(jobs)
