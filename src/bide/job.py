"""What is known of a job: pure values, read from the server's replies."""

from __future__ import annotations

from typing import Any, NamedTuple

from bide.codec import Body, ErrorInfo, decode_body, decode_error, decode_result
from bide.errors import PayloadError
from bide.states import State


class Claimed(NamedTuple):
    """A job that this worker holds under a lease."""

    id: str
    body: bytes
    token: int
    """Grows with every claim of the job; settles and extends carry it as their fence."""
    attempt: int
    """1 for the first run; runs that were given back or snoozed do not count."""
    due_us: int


class RunRecord(NamedTuple):
    """What a job has once it has been claimed (`lua/include/record.lua`)."""

    token: int
    settled: str
    priority: int
    attempt: int
    crashes: int
    strikes: int
    alone: bool
    started_us: int
    worker: str
    due_us: int

    @classmethod
    def read(cls, line: bytes | None) -> RunRecord | None:
        """Parse a stored record; None for none, and for what is not one."""
        if not line:
            return None
        try:
            head, rest = line[:34].decode(), line[35:].decode().split(" ")
            priority, attempt, crashes, strikes, alone, started, worker, due = rest
            return cls(
                token=int(head[:16]),
                settled=head[16],
                priority=int(priority),
                attempt=int(attempt),
                crashes=int(crashes),
                strikes=int(strikes),
                alone=alone == "1",
                started_us=int(started),
                worker=worker,
                due_us=int(due),
            )
        except (ValueError, IndexError):
            return None


class Snapshot(NamedTuple):
    """A job as the server had it at `now_us`."""

    id: str
    state: State
    now_us: int
    since_us: int
    """When it is due, when its lease ends, or when it finished: as its state has it."""
    priority: int | None
    """None for one that was cancelled before it was ever claimed."""
    raw_body: bytes
    run: RunRecord | None
    raw_result: bytes | None
    raw_error: bytes | None

    @property
    def due_us(self) -> int:
        """When it is due; of one that has started, when it was due."""
        if self.run is not None and self.state not in (State.DELAYED, State.WAITING):
            return self.run.due_us
        return self.since_us

    @property
    def attempt(self) -> int:
        """How many attempts have begun and counted."""
        return self.run.attempt if self.run else 0

    @property
    def lateness(self) -> float | None:
        """Seconds from due to start of the latest attempt, on the server's clock."""
        if self.run is None:
            return None
        return (self.run.started_us - self.run.due_us) / 1e6

    @property
    def body(self) -> Body:
        """Task, arguments and options.

        Raises:
            PayloadError: what is stored is not a body of bide's.
        """
        return decode_body(self.raw_body)

    @property
    def task(self) -> str:
        """The task's name, or `?` when the body cannot be read."""
        try:
            return self.body.task
        except PayloadError:
            return "?"

    @property
    def result(self) -> Any:
        """What the task returned, or None."""
        return decode_result(self.raw_result)

    @property
    def error(self) -> ErrorInfo | None:
        """The last error, also of a job that will be retried."""
        return decode_error(self.raw_error)
