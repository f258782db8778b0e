"""One job while a worker holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final

from bide.errors import BideError
from bide.logs import Log
from bide.model.context import CurrentJob, within
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import DEFAULT_TIMEOUT, Body, decode_envelope
from bide.model.payload.serializers import Codec
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import JobNote, Outcome
from bide.tasks.task import Policy
from bide.worker.queue_state import QueueState

log = Log("bide.worker")

Ended = tuple[Outcome, str, bytes]
"""Outcome, when, data: as `ops.consume.Settle` has them."""

UNBEGUN: Final[Ended] = ("release", "", b"")
"""A job is given back that has not begun: what it took of its queue's rate goes back, too."""

BEGUN: Final[Ended] = ("release", "+0", b"")
"""A job is given back that has begun, or may have."""

UNCOUNTED: Final = ("release", "snooze", "hold")
"""Outcomes after which a worker has not executed a job more."""

_DEFAULT: Final = Policy()


class RunningJob:
    """One job while this worker holds it."""

    __slots__ = (
        "_deciding",
        "asked",
        "begun_at",
        "body",
        "claimed",
        "claimed_at",
        "codec",
        "deadline",
        "decided",
        "ended",
        "job",
        "lost",
        "missing",
        "policy",
        "say_soon",
        "station",
        "task",
        "task_name",
        "timed_out",
    )

    def __init__(
        self, station: QueueState, claimed: Claimed, claimed_at: float, say_soon: Callable[[], None]
    ) -> None:
        self.station = station
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.say_soon = say_soon
        self.begun_at = 0.0
        """When it got a slot (`time.monotonic()`); 0 while it waits for one."""
        self.deadline = claimed_at + DEFAULT_TIMEOUT
        self.policy = _DEFAULT
        self.codec: Codec = "json"
        self.task_name = "?"
        self.task: asyncio.Task[None] | None = None
        self.job: CurrentJob | None = None
        self.body: Body | None = None
        """With its arguments; None while they have not been read."""
        self.decided: Ended | None = None
        """How it ended, while its callback runs: whatever becomes of that, this stands."""
        self._deciding = Lock()
        self.ended = False
        self.lost = False
        self.missing = False
        """This worker does not serve its task."""
        self.asked = False
        """Someone has asked for its end."""
        self.timed_out = False

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for what this run comes to; a plain function must look itself."""
        return self.asked or self.ended or self.lost

    def decide(self, ended: Ended) -> bool:
        """Say how it ended, unless that has been said; any thread may call.

        A thread may come to its end in the moment in which its time is over or it is given back:
        one of them decides, and only that one's callback is called.
        """
        with self._deciding:
            if self.decided is not None:
                return False
            self.decided = ended
            return True

    def add_note(self, kind: str, text: bytes) -> None:
        """Gather a note for the next round trip; any thread may call."""
        if self.station.said.add(JobNote(self.claimed.id, self.claimed.token, kind, text)):
            self.say_soon()

    def learn(self, head: Body) -> None:
        """Take note of the task that the body names."""
        self.task_name = head.task if head.task.isprintable() else repr(head.task)

    def as_job(
        self,
        meta: Mapping[str, Any] | None = None,
        schedule: str | None = None,
        parents: Sequence[str] = (),
    ) -> CurrentJob:
        """Return the job as its own code sees it."""
        station = self.station
        return CurrentJob(
            station.queue,
            station.worker,
            task_of(self),
            self.claimed,
            self,
            meta,
            schedule,
            parents,
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Have each record that is logged inside carry the fields of this job."""
        with within(self.job or self.as_job()):
            yield

    def snapshot(self) -> RunningTask:
        """What is said of it to those who look at the worker."""
        return RunningTask(self.station.queue, self.claimed.id, self.task_name, self.claimed.token)

    def elapsed(self) -> float:
        """Seconds since the job was first due."""
        claimed = self.claimed
        return (claimed.token - claimed.first_us) / 1e6 + time.monotonic() - self.claimed_at

    def waited(self) -> float:
        """Seconds for which no worker that claimed it has served its task."""
        claimed = self.claimed
        since_us = claimed.missing_us or claimed.token
        return (claimed.token - since_us) / 1e6 + time.monotonic() - self.claimed_at


def log_end(run: RunningJob, outcome: Outcome) -> None:
    """Log that a job has ended, where each job is to be logged (`--verbose`)."""
    if log.isEnabledFor(logging.DEBUG):
        with run.named():
            log.debug("%s (job %s): %s", task_of(run), short_id(run.claimed.id), outcome)


def task_of(run: RunningJob) -> str:
    """Return the task of a job, also where nothing has read its body yet; `?` if nothing can."""
    if run.task_name == "?":
        with suppress(BideError):
            run.learn(decode_envelope(run.claimed.body).body)
    return run.task_name
