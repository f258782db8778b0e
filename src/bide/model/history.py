"""The notes of a job: errors, crashes, log lines, progress, moves (`lua/include/history.lua`).

A note is one line of text. Scripts add lines, and drop the oldest of each kind. After its times, a
line contains JSON that only clients read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from bide.model.durations import from_us
from bide.model.payload.body import ErrorInfo, decode_error

LONGEST_LOG: Final = 2_000
"""Maximum characters of a log line; the rest is cut."""

MAX_LINES: Final = 100
"""Maximum log lines of a job."""

LONGEST_PROGRESS: Final = 500
"""Maximum characters of the text of a progress."""

LOG: Final = "L"
PROGRESS: Final = "P"

_CRASHES: Final = ("WorkerCrashed", "bide.WorkerCrashed")


class Attempt(NamedTuple):
    """A run of a job that failed."""

    number: int
    """1 for the first; a crashed run does not count, so the next run has the same number."""
    started: datetime
    """When it started, on the server's clock."""
    ended: datetime
    """When it ended, on the server's clock."""
    worker: str
    """The name of the worker."""
    error: ErrorInfo | None
    """The task's error, or how its process died; None if its lease ended for an unknown reason."""

    @property
    def crashed(self) -> bool:
        """Whether its process died, or its lease ended without an outcome."""
        return self.error is None or self.error.type in _CRASHES


class LogLine(NamedTuple):
    """A line that the job logged with `current_job().log`."""

    at: datetime
    text: str


class Progress(NamedTuple):
    """The progress that a job reported."""

    fraction: float
    """From 0 to 1."""
    text: str
    at: datetime


class Move(NamedTuple):
    """The job was rescheduled."""

    at: datetime
    was: datetime
    """When it was due."""
    due: datetime
    """When it was due since."""


class History(NamedTuple):
    """All notes of a job, each kind oldest first."""

    attempts: tuple[Attempt, ...] = ()
    logs: tuple[LogLine, ...] = ()
    progress: Progress | None = None
    moves: tuple[Move, ...] = ()

    @property
    def error(self) -> ErrorInfo | None:
        """The last error."""
        return next((a.error for a in reversed(self.attempts) if a.error is not None), None)


def encode_log(text: str) -> bytes:
    """Encode a log line, cut to its maximum length."""
    return msgspec.json.encode(_clean(text, LONGEST_LOG))


def encode_progress(fraction: float, text: str) -> bytes:
    """Encode a progress."""
    return msgspec.json.encode((fraction, _clean(text, LONGEST_PROGRESS)))


def read_history(raw: bytes | None) -> History:
    """Parse stored notes; skip notes that cannot be read."""
    if not raw:
        return History()
    attempts: list[Attempt] = []
    logs: list[LogLine] = []
    moves: list[Move] = []
    progress: Progress | None = None
    for line in raw.split(b"\n"):
        kind, _, rest = line.partition(b" ")
        try:
            if kind in (b"E", b"C"):
                attempts.append(_attempt(rest))
            elif kind == b"L":
                at, text = rest.split(b" ", 1)
                logs.append(LogLine(from_us(int(at)), msgspec.json.decode(text, type=str)))
            elif kind == b"P":
                at, text = rest.split(b" ", 1)
                fraction, said = msgspec.json.decode(text, type=tuple[float, str])
                progress = Progress(fraction, said, from_us(int(at)))
            elif kind == b"R":
                moved, was, due = (from_us(int(number)) for number in rest.split(b" "))
                moves.append(Move(moved, was, due))
        except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            continue
    return History(tuple(attempts), tuple(logs), progress, tuple(moves))


def _attempt(text: bytes) -> Attempt:
    number, started, ended, worker, *error = text.split(b" ", 4)
    return Attempt(
        number=int(number),
        started=from_us(int(started)),
        ended=from_us(int(ended)),
        worker=worker.decode(),
        error=decode_error(error[0]) if error else None,
    )


def _clean(text: str, longest: int) -> str:
    """Cut a text, and remove lone surrogates, which JSON cannot contain."""
    return text[:longest].encode("utf-8", "replace").decode()
