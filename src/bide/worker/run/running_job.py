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
"""Outcome, when and data, as in `bide.protocol.commands.worker.Settle`."""

UNBEGUN: Final[Ended] = ("release", "", b"")
"""Releases a job that has not started; its token of the queue's rate limit is returned too."""

BEGUN: Final[Ended] = ("release", "+0", b"")
"""Releases a job that has started, or may have."""

UNCOUNTED: Final = ("release", "snooze", "hold")
"""Outcomes that do not count as an executed job."""

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
        "queue_state",
        "say_soon",
        "task",
        "task_name",
        "timed_out",
    )

    def __init__(
        self,
        queue_state: QueueState,
        claimed: Claimed,
        claimed_at: float,
        say_soon: Callable[[], None],
    ) -> None:
        self.queue_state = queue_state
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.say_soon = say_soon
        self.begun_at = 0.0
        """When the job got a slot (`time.monotonic()`); 0 while it waits for one."""
        self.deadline = claimed_at + DEFAULT_TIMEOUT
        self.policy = _DEFAULT
        self.codec: Codec = "json"
        self.task_name = "?"
        self.task: asyncio.Task[None] | None = None
        self.job: CurrentJob | None = None
        self.body: Body | None = None
        """The body with its arguments; None until it has been read."""
        self.decided: Ended | None = None
        """The outcome. It is final, even if the callback that runs now fails."""
        self._deciding = Lock()
        self.ended = False
        self.lost = False
        self.missing = False
        """This worker does not serve its task."""
        self.asked = False
        """A request to cancel the job has arrived."""
        self.timed_out = False

    @property
    def unwanted(self) -> bool:
        """Whether the result of this run will be discarded; a plain function must check this."""
        return self.asked or self.ended or self.lost

    def decide(self, ended: Ended) -> bool:
        """Set the outcome, unless it is set already; any thread may call.

        A thread may return just when its time-out expires or its job is released. The first caller
        decides, and only the callback for that outcome is called.

        Returns:
            Whether this call has set the outcome.
        """
        with self._deciding:
            if self.decided is not None:
                return False
            self.decided = ended
            return True

    def add_note(self, kind: str, text: bytes) -> None:
        """Buffer a note for the next round trip; any thread may call."""
        if self.queue_state.said.add(JobNote(self.claimed.id, self.claimed.token, kind, text)):
            self.say_soon()

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
            task_of(self),
            self.claimed,
            self,
            meta,
            schedule,
            parents,
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the fields of this job to each record that is logged inside the context."""
        with within(self.job or self.as_job()):
            yield

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
    if log.isEnabledFor(logging.DEBUG):
        with run.named():
            log.debug("%s (job %s): %s", task_of(run), short_id(run.claimed.id), outcome)


def task_of(run: RunningJob) -> str:
    """Return the task of a job, and read it from the body if necessary; `?` if unreadable."""
    if run.task_name == "?":
        with suppress(BideError):
            run.learn(decode_envelope(run.claimed.body).body)
    return run.task_name
