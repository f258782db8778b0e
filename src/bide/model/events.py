"""Events: what became of jobs, as listeners read it (`lua/include/event.lua`).

An event's id is `<opened>-<n>`: when the stream was opened, and the how-manyth since then it is. So
whoever knows the last id that was read sees by the next one whether any is missing between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.history import Progress
from bide.model.job import EVENTS
from bide.model.payload.body import ErrorInfo

GAP: Final = "gap"
"""The kind of event that says that others were lost."""

OF_QUEUE: Final = frozenset({"drained", "emptied", GAP})
"""The kinds that concern no one job."""

_ID: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,15}")
_JSON_TEXT: Final = r'"((?:[^"\\]|\\.)*)'
_ERROR: Final = re.compile(rf'\{{"type":{_JSON_TEXT}(?:","message":{_JSON_TEXT})?')
_PROGRESS: Final = re.compile(rf"\[([0-9.eE+-]+),{_JSON_TEXT}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a queue."""

    id: str
    """Where it stands: `queue.events(after=event.id)` goes on behind it."""
    kind: str
    """What happened: one of `bide.model.job.EVENTS`."""
    verb: str = ""
    """What made it happen, such as `claim`, `snooze` or `promote`."""
    at: datetime | None = None
    """When, on the server's clock; None of a gap."""
    job_id: str | None = None
    """The job; None of what concerns the queue: `drained`, `emptied`, `gap`."""
    worker: str | None = None
    """Who ran the job, where it was taken."""
    attempt: int = 0
    """Which attempt that was; 0 where it was not taken."""
    due: datetime | None = None
    """When the job is due, of one that is to run; when it was, of one that is taken."""
    error: ErrorInfo | None = None
    """What it raised: type and message, cut to 300 bytes; no traceback."""
    progress: Progress | None = None
    """How far the job said that it is; its text is cut to 300 bytes."""
    count: int = 0
    """Of `emptied`, how many jobs were removed; of `gap`, how many events were lost, if that is
    known."""


def read_event(id: str, line: bytes) -> Event:
    """Parse an entry of the stream.

    Raises:
        ValueError: it is not one of bide's.
    """
    kind, verb, at_us, job_id, worker, attempt, due_us, data = line.decode("utf-8", "ignore").split(
        " ", 7
    )
    if len(at_us) > 16 or len(due_us) > 16:
        raise ValueError(f"{at_us!r} or {due_us!r} is no moment")
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
    """That events were lost behind the last that was read, up to the one that `after` names."""
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
    """Where to read on, as the script takes it; `-` for what comes next.

    Raises:
        UsageError: it is not the id of an event.
    """
    if after is None:
        return "-"
    if not isinstance(after, str) or not _ID.fullmatch(after):
        raise UsageError(
            f"after={after!r} is not the id of an event; give the event.id of one, or leave it "
            "out to begin with what happens next."
        )
    return after


def check_kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    """The kinds of events that are wanted; None for all.

    Raises:
        UsageError: there is no such kind.
    """
    if kinds is None:
        return None
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(found, key=str):
        if kind not in EVENTS:
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
