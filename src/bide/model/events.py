"""Events: what became of jobs, as listeners read it (`lua/include/event.lua`).

An event's id is `<opened>-<n>`: the time when the stream was opened, and the number of the event
since then. So two ids show whether events between them are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.history import Progress
from bide.model.job import EVENTS
from bide.model.payload.body import ErrorInfo

GAP: Final = "gap"
"""The kind of event that reports lost events."""

OF_QUEUE: Final = frozenset({"drained", "purged", "paused", "resumed", GAP})
"""The kinds that are about the queue, not about a job."""

_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,15}")
_JSON_TEXT: Final = r'"((?:[^"\\]|\\.)*)'
_ERROR: Final = re.compile(rf'\{{"type":{_JSON_TEXT}(?:","message":{_JSON_TEXT})?')
_PROGRESS: Final = re.compile(rf"\[([0-9.eE+-]+),{_JSON_TEXT}")


class Event(msgspec.Struct, frozen=True):
    """An event of a queue."""

    id: str
    """Its position: `queue.events(after=event.id)` continues after it."""
    kind: str
    """The kind of event: one of `bide.model.job.EVENTS`."""
    verb: str = ""
    """The cause, such as `claim`, `snooze` or `promote`."""
    at: datetime | None = None
    """When, on the server's clock; None for a gap."""
    job_id: str | None = None
    """The job's id; None for events about the queue: `drained`, `purged`, `paused`, `resumed`,
    `gap`."""
    worker: str | None = None
    """The worker that ran the job, if it was claimed."""
    attempt: int = 0
    """The number of that attempt; 0 if the job was not claimed."""
    due: datetime | None = None
    """When the job is due, or was due if it was claimed."""
    error: ErrorInfo | None = None
    """The error: type and message, cut to 300 bytes; without traceback."""
    progress: Progress | None = None
    """The progress that the job reported; its text is cut to 300 bytes."""
    count: int = 0
    """For `purged`, the number of removed jobs; for `gap`, the number of lost events, if known."""


def read_event(id: str, line: bytes) -> Event:
    """Parse an entry of the stream; raise `ValueError` if it is not one of bide's."""
    kind, verb, at_us, job_id, worker, attempt, due_us, data = line.decode("utf-8", "ignore").split(
        " ", 7
    )
    if len(at_us) > 16 or len(due_us) > 16:
        raise ValueError(f"{at_us!r} or {due_us!r} is not a time")
    at = from_us(int(at_us))
    due = from_us(int(due_us)) if int(due_us) else None
    return Event(
        id=id,
        kind=kind,
        verb=verb,
        at=at,
        job_id=None if kind in OF_QUEUE else job_id,
        worker=None if worker == "-" else worker,
        attempt=int(attempt),
        due=due,
        error=_error(data) if data.startswith("{") else None,
        progress=_progress(data, at) if data.startswith("[") else None,
        count=int(data) if data.isdigit() else 0,
    )


def gap(last: str, after: str) -> Event:
    """Return a gap event: events after `last` were lost, up to the event `after`."""
    (opened, n), (opened_after, n_after) = _parts(last), _parts(after)
    return Event(id=after, kind=GAP, count=max(0, n_after - n) if opened == opened_after else 0)


def before(id: str) -> str:
    """The id before this one, whether an event has it or not."""
    opened, n = _parts(id)
    return f"{opened}-{n - 1}"


def follows(id: str, last: str) -> bool:
    """Whether no event can have been between these two."""
    return before(id) == last


def check_after(after: str | None) -> str:
    """Check the id to read after; return `-` for new events only."""
    if after is None:
        return "-"
    if not isinstance(after, str) or not _ID.fullmatch(after):
        raise UsageError(
            f"after={after!r} is not the id of an event; give the event.id of one, or leave it "
            "out to begin with what happens next."
        )
    return after


def check_kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    """The kinds of events that are wanted; None for all."""
    if kinds is None:
        return None
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(found, key=str):
        if kind not in EVENTS:
            from difflib import get_close_matches  # only for this error

            near = get_close_matches(str(kind), EVENTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}."
            raise UsageError(f"There is no event {kind!r}; {hint}")
    if not found:
        raise UsageError("kinds names no event; leave it out for all of them.")
    return found


def _parts(id: str) -> tuple[str, int]:
    opened, _, n = id.partition("-")
    return opened, int(n)


def _error(data: str) -> ErrorInfo:
    match = _ERROR.match(data)
    kind, message = match.groups() if match else (data, "")
    return ErrorInfo(_text(kind), _text(message or ""))


def _progress(data: str, at: datetime) -> Progress | None:
    match = _PROGRESS.match(data)
    return Progress(float(match[1]), _text(match[2]), at) if match else None


def _text(part: str) -> str:
    """JSON text without its end, which may have been cut."""
    for end in range(len(part), max(len(part) - 12, -1), -1):
        try:
            value: Any = msgspec.json.decode(f'"{part[:end]}"', type=str)
        except msgspec.MsgspecError:  # the cut went through an escape
            continue
        return str(value)
    return part
