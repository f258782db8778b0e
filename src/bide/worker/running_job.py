"""A claimed job while a worker holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

import msgspec

from bide.errors import BideError
from bide.logs import Log
from bide.model.context import CurrentJob, within
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import DEFAULT_TIMEOUT, Body, decode_envelope, open_envelope
from bide.model.payload.serializers import Codec
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Ended, JobNote, Outcome
from bide.tasks.task import Policy
from bide.worker.metrics import OTHER
from bide.worker.queue_state import QueueState

log = Log("bide.worker")

UNBEGUN: Final = Ended("release")
"""Releases a job that has not started; its token of the queue's rate limit is returned too."""

BEGUN: Final = Ended("release", has_started=True)
"""Releases a job that has started, or may have."""

CANCELLED: Final = Ended("cancel")

UNCOUNTED: Final = ("release", "snooze", "hold")
"""Outcomes that do not count as an executed job."""

_DEFAULT: Final = Policy()

_EXACT_US: Final = 1000
"""Microseconds to which the start of a job is exact in its record."""

_deciding: Final = Lock()


class Death(NamedTuple):
    """How the child process of a job died."""

    how: str
    overran: bool
    """The worker killed it, because the job ran too long."""


Missing = Literal["", "task", "arguments"]
"""The cause why a worker cannot run a job: none, its task is missing, or the task has no such
argument. Another worker may have it, during a deployment."""


class RunningJob(msgspec.Struct, eq=False, weakref=True):
    """One job while this worker holds it."""

    queue_state: QueueState
    claimed: Claimed
    claimed_at: float
    """When its lease and wait count from (`time.monotonic()`): when the claim was sent, or for a
    job that was claimed ahead, when it is due."""
    send_notes_soon: Callable[[], None]
    number: int = 0
    """Identifies the job in its executor, because two queues may share an id."""
    begun_at: float = 0.0
    """When the job got a slot (`time.monotonic()`); 0 while it waits for one."""
    started_at: float = 0.0
    """When the job's first statement ran (`time.monotonic()`); 0 while that is not known."""
    late_us: float | None = None
    """By how many microseconds it started late, by the server's clock; None until it has."""
    started_us: int = 0
    """When its first statement ran, in microseconds on the server's clock.

    It is 0 if that is not known, or if it is as good as the time that the server has: to a
    millisecond, or to a fiftieth of the lateness. So most outcomes do without it.
    """
    is_late_counted: bool = False
    """Metrics have counted its lateness."""
    ran: float = 0.0
    """For how many seconds the job ran; 0 while that is not known."""
    deadline: float = 0.0
    policy: Policy = _DEFAULT
    codec: Codec = "json"
    task_name: str = "?"
    task: asyncio.Task[None] | None = None
    job: CurrentJob | None = None
    body: Body | None = None
    """The body with its arguments; None until it has been read."""
    is_unreadable: bool = False
    """The body cannot be decoded."""
    decided: Ended | None = None
    """The outcome. It is final, even if the callback that runs now fails."""
    ended: bool = False
    lost: bool = False
    missing: Missing = ""
    """The cause why this worker cannot run it, although another may: see `Missing`."""
    cancel_requested: bool = False
    """A request to cancel the job has arrived."""
    timed_out: bool = False
    death: Death | None = None
    """How the child died that ran the job, if another child decides the outcome."""

    def __post_init__(self) -> None:
        self.deadline = self.claimed_at + DEFAULT_TIMEOUT

    @property
    def unwanted(self) -> bool:
        """Whether the result of this run will be discarded; a plain function must check this."""
        return self.cancel_requested or self.ended or self.lost

    def decide(self, ended: Ended) -> bool:
        """Set the outcome, unless it is set already; any thread may call.

        A thread may return just when its time-out expires or its job is released. The first caller
        decides, and only the callback for that outcome is called.

        Returns:
            Whether this call has set the outcome.
        """
        with _deciding:
            if self.decided is not None:
                return False
            self.decided = ended
            return True

    def note_start(self, at: float) -> None:
        """Record when the job's first statement ran; any thread may call."""
        if not self.started_at:
            self.started_at = at
            claimed, (server_us, claimed_at) = self.claimed, self.queue_state.clock
            started_us = server_us + (at - claimed_at) * 1e6
            self.late_us = late_us = started_us - claimed.due_us
            self.queue_state.lateness.add(late_us)
            later_us = started_us - claimed.token
            if later_us > _EXACT_US and later_us > late_us / 50:
                self.started_us = round(started_us)

    @property
    def metric_label(self) -> str:
        """The name of its task in metrics."""
        return OTHER if self.missing or task_of(self) == "?" else self.task_name

    def add_note(self, kind: str, text: bytes) -> None:
        """Buffer a note for the next round trip; any thread may call."""
        if self.queue_state.notes.add(JobNote(self.claimed.id, self.claimed.token, kind, text)):
            self.send_notes_soon()

    @property
    def lateness(self) -> float:
        """Seconds from the due time to the first statement, by the server's clock."""
        if self.late_us is not None:
            return max(0.0, self.late_us / 1e6)
        claimed, at = self.claimed, self.started_at or time.monotonic()
        return max(0.0, (claimed.token - claimed.due_us) / 1e6 + at - self.claimed_at)

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, by the retry policy."""
        return self.policy.retry.max + 1

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        return self.queue_state.seal.keys.prefix

    def arguments(self) -> Body:
        """Return the body with its arguments.

        If a process died while it ran the job, the body has not been read here. Pickled arguments
        are not read then: reading them runs code that may have killed the process.

        Raises:
            BideError: the arguments cannot be read.
        """
        if self.body is None:
            self.queue_state.seal.check("job", self.claimed.id, self.claimed.body)
            self.body = open_envelope(decode_envelope(self.claimed.body))
        return self.body

    def learn(self, head: Body) -> None:
        """Record the task that the body names."""
        self.task_name = head.task if head.task.isprintable() else repr(head.task)

    def as_job(
        self,
        meta: Mapping[str, Any] | None = None,
        schedule: str | None = None,
        parents: Sequence[str] = (),
    ) -> CurrentJob:
        """Return the job as its own code sees it."""
        queue_state = self.queue_state
        return CurrentJob(
            queue_state.queue,
            queue_state.worker,
            self.task_name if self.task_name != "?" else task_of(self),
            self.claimed,
            self,
            meta,
            schedule,
            parents,
        )

    @property
    def lacks(self) -> str:
        """What is missing, for people; its `task_name` must be known."""
        return self.task_name + (" (other arguments)" if self.missing == "arguments" else "")

    def named(self) -> AbstractContextManager[None]:
        """Return a context that adds the fields of this job to each record logged inside it."""
        return within(self.job or self.as_job())

    def snapshot(self) -> RunningTask:
        """Return the entry for this job in the worker's report."""
        return RunningTask(
            self.queue_state.queue, self.claimed.id, self.task_name, self.claimed.token
        )

    def elapsed(self) -> float:
        """Return the seconds since the job was first due."""
        claimed = self.claimed
        return (claimed.token - claimed.first_us) / 1e6 + time.monotonic() - self.claimed_at

    def waited(self) -> float:
        """Return the seconds for which no worker that claimed the job has served its task."""
        claimed = self.claimed
        since_us = claimed.missing_us or claimed.token
        return (claimed.token - since_us) / 1e6 + time.monotonic() - self.claimed_at


def log_end(run: RunningJob, outcome: Outcome) -> None:
    """Log the end of a job, if every job is logged (`--verbose`)."""
    if log.logger.isEnabledFor(logging.DEBUG):  # as `log.isEnabledFor`, in half the time
        with run.named():
            log.debug("%s (job %s): %s", task_of(run), short_id(run.claimed.id), outcome)


def task_of(run: RunningJob) -> str:
    """Return the task of a job, and read it from the body if necessary; `?` if unreadable."""
    if run.task_name == "?" and not run.is_unreadable:
        with suppress(BideError):
            run.learn(decode_envelope(run.claimed.body).body)
    return run.task_name
