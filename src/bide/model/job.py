"""The data of a job as pure values, parsed from the server's replies.

The table `TRANSITIONS` has all changes of states. The scripts follow it, the model test checks it,
and `docs/keys.md` shows it.

An event reports a change of a job to listeners (`lua/include/event.lua`). Its id is `<opened>-<n>`:
the time when the stream was opened, and the number of the event since then. So two ids show whether
events between them are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from bide.errors import PayloadError, UsageError
from bide.model.durations import from_us
from bide.model.history import History, Progress, read_history
from bide.model.options import Constraints
from bide.model.payload.body import (
    Body,
    ErrorInfo,
    decode_body,
    decode_envelope,
    decode_item,
    decode_result,
    is_item,
)


class State(StrEnum):
    """The state of a job, as the API and the command line print it."""

    BLOCKED = "blocked"
    """Waits for other jobs."""
    DELAYED = "delayed"
    """Due later than now."""
    WAITING = "waiting"
    """Due, and not yet claimed: derived from the due time, never stored."""
    ACTIVE = "active"
    """A worker runs it, under a lease."""
    COMPLETED = "completed"
    """Has run successfully."""
    FAILED = "failed"
    """Is not run again: its attempts are used up, or it was refused."""
    CANCELLED = "cancelled"
    """Cancelled before it ran, or asked to stop while it ran."""


LISTABLE: Final = tuple(State)
"""The states that can be listed, in the order in which they are shown."""

FINISHED: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
"""The states that a job does not leave by itself."""

_DUE: Final = (State.DELAYED, State.WAITING)

TRANSITIONS: Final[dict[str, tuple[tuple[State, ...], tuple[State, ...]]]] = {
    "claim": ((State.WAITING,), (State.ACTIVE,)),
    "pop": ((State.WAITING,), (State.COMPLETED, State.FAILED)),
    "reject": ((State.COMPLETED,), (State.FAILED,)),
    "complete": ((State.ACTIVE,), (State.COMPLETED,)),
    "retry": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "fail": ((State.ACTIVE,), (State.FAILED,)),
    "snooze": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "release": ((State.ACTIVE,), (State.WAITING, State.CANCELLED)),
    "crash": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "extend": ((State.ACTIVE,), (State.ACTIVE,)),
    "reclaim": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "expire": ((*_DUE, State.BLOCKED), (State.CANCELLED,)),
    "free": ((State.BLOCKED,), _DUE),
    "drop": ((State.BLOCKED,), (State.CANCELLED,)),
    "cancel": ((*_DUE, State.BLOCKED, State.ACTIVE), (State.CANCELLED,)),
    "reschedule": (_DUE, _DUE),
    "promote": ((*_DUE, State.BLOCKED), (State.WAITING,)),
    "revive": ((State.COMPLETED, State.FAILED, State.CANCELLED), _DUE),
}
"""verb -> (the states in which it applies, the states to which it may lead).

`retry` is an outcome of a run. The script `retry` and `job.retry()`, which run a finished job
again, are called `revive` here, because their states differ. The ends of its parents free a blocked
job, or drop it if a parent did not end as required. A reschedule of a blocked job sets when it is
due after that. A pop completes items of data. A job among them fails, and so does an item that
cannot be decoded (`reject`).
"""


EVENTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "added": (
        ("enqueue", "fire"),
        "The job was added: delayed, waiting if it is due, or blocked if it waits for others. "
        "Someone enqueued it, or its schedule fired.",
    ),
    "freed": (
        ("free",),
        "Its parents have ended: it is delayed, or waits if it is due.",
    ),
    "active": (("claim",), "A worker has claimed it."),
    "progress": (("note",), "It has reported its progress."),
    "completed": (
        ("complete", "pop"),
        "It has finished; or it was an item of data, and was popped.",
    ),
    "retried": (
        ("retry", "revive"),
        "It will run again: an attempt raised, or someone retried a finished job.",
    ),
    "failed": (
        ("fail", "reclaim", "crash", "pop", "reject"),
        "It has failed, and will not run again.",
    ),
    "cancelled": (
        ("cancel", "reclaim", "expire", "drop"),
        "It was cancelled before it ran; or it was asked to stop, and stopped; or it expired; or "
        "a parent did not end as required.",
    ),
    "reclaimed": (
        ("reclaim", "crash"),
        "Its lease ended without an outcome, or its process died. It waits again, unless `failed` "
        "or `cancelled` follows.",
    ),
    "rescheduled": (
        ("reschedule", "promote", "snooze", "release"),
        "It has another due time: someone changed it, it snoozed, or a worker that stopped, or "
        "does not serve its task, released it.",
    ),
    "deleted": (("delete",), "Someone deleted it."),
    "purged": (
        ("purge",),
        "All jobs of the queue that were delayed, waiting or blocked were removed.",
    ),
    "drained": (
        ("settle", "reclaim", "pop"),
        "No job is active, and none is due. There may be delayed jobs.",
    ),
    "paused": (("pause",), "Someone paused the queue, which was not paused."),
    "resumed": (("resume",), "Someone resumed the queue, which was paused."),
    "gap": ((), "Events between the one before and the one after were lost."),
}
"""kind of event -> (the verbs that emit it, its meaning).

Events are emitted while there is a listener (`Queue.events`). There is no event for a request to
stop a running job, for the renewal of a lease, or for the end of a finished job's retention.
"""


_LONGEST: Final = 18
"""Maximum characters of a number in a record of bide."""


class Claimed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that this worker holds under a lease."""

    id: str
    body: bytes
    token: int
    """The fencing token: it increases with every claim of the job, and settles contain it."""
    attempt: int
    """The number of the attempt, from 1; runs that were released or snoozed do not count."""
    reclaims: int
    """Number of leases that have ended without an outcome since the last attempt with one."""
    first_us: int
    """When the job was first due, before any retry."""
    due_us: int
    crashes: int = 0
    """Number of those leases that ended while the job was the only suspect."""
    missing_us: int = 0
    """Since when all workers that claimed it have lacked its task; 0 if that is not so."""


class RunRecord(NamedTuple):
    """The run record of a job that was claimed at least once (`lua/include/run_record.lua`)."""

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
    first_us: int
    """When it was first due, before any retry or snooze."""
    ended_us: int
    """When it finished, if its score among finished jobs is another time; otherwise 0."""
    dropped: int = 0
    """Bytes of its result, if the server dropped it because of the queue's budget."""
    missing_us: int = 0
    """Since when all workers that claimed it have lacked its task; 0 if that is not so."""

    @classmethod
    def read(cls, line: bytes | None) -> RunRecord | None:
        """Parse a stored record; return None for an empty or invalid one."""
        if not line:
            return None
        try:
            head, rest = line[:34].decode(), line[35:].decode().split(" ")
            priority, attempt, crashes, strikes, alone, started, worker, due, *more = rest
            ended = more.pop()[:-1] if more and more[-1].endswith("e") else "0"
            dropped = more.pop()[:-1] if more and more[-1].endswith("d") else "0"
            missing = more.pop()[:-1] if more and more[-1].endswith("m") else "0"
            if more and more[-1].endswith("r"):  # the id of the call that retried it
                more.pop()
            (first,) = more or (due,)
            numbers = (*rest[:6], due, first, ended, dropped, missing)
            if any(len(number) > _LONGEST for number in numbers):
                return None
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
                first_us=int(first),
                ended_us=int(ended),
                dropped=int(dropped),
                missing_us=int(missing),
            )
        except (ValueError, IndexError):
            return None


class Turn(NamedTuple):
    """The state of the group of an unclaimed job."""

    paused: bool
    concurrency: int
    """Maximum number of its jobs that run at once."""
    running: int
    """Number of its running jobs."""
    before: int
    """Number of its jobs that are before this one."""
    free_us: int
    """When the group's rate allows the next start; 0 or a time in the past means now."""

    @classmethod
    def read(cls, line: bytes | None) -> Turn | None:
        """Parse the reply of `fetch`; return None for an empty one."""
        if not line:
            return None
        paused, *numbers = map(int, line.split())
        return cls(bool(paused), *numbers)


class Snapshot(NamedTuple):
    """A job as the server had it at `now_us`."""

    id: str
    state: State
    now_us: int
    since_us: int
    """When it is due, when its lease ends, since when it is blocked, or when it finished, depending
    on its state."""
    priority: int | None
    """None if it is not known, because the job was cancelled before its first claim."""
    raw_body: bytes
    run: RunRecord | None
    """None for a job that was never claimed."""
    raw_result: bytes | None
    raw_notes: bytes | None
    asked: bool
    """Whether it runs and was asked to stop."""
    constraints: Constraints = Constraints()
    """Its constraints besides its due time."""
    turn: Turn | None = None
    """The state of its group, if it has one and was not claimed yet."""
    awaits: int = 0
    """Number of jobs for which it waits."""
    awaited: tuple[str, ...] = ()
    """The ids of the first of them, `{queue}id` for a job of another queue. The last may be `{}`,
    while not all parents are known yet."""

    @property
    def due_us(self) -> int:
        """When it is due, or was due if it has started.

        For a blocked job: when it would be due if its parents had ended at `now_us`.
        """
        if self.state == State.BLOCKED:
            return self.constraints.due_us(self.now_us)
        if self.run is not None and self.state not in (State.DELAYED, State.WAITING):
            return self.run.due_us
        return self.since_us

    @property
    def expires_us(self) -> int | None:
        """When it expires if it has not started; None if it does not expire."""
        given_back = self.run if self.is_given_back else None
        return self.constraints.expires_us(given_back.first_us if given_back else self.due_us)

    @property
    def is_given_back(self) -> bool:
        """Whether it waits because no worker that claimed it so far has its task."""
        waits = self.state in (State.DELAYED, State.WAITING)
        return waits and self.run is not None and self.run.missing_us > 0

    @property
    def finished_us(self) -> int:
        """When it ended; 0 if it has not."""
        if self.state not in FINISHED:
            return 0
        return (self.run.ended_us if self.run else 0) or self.since_us

    @property
    def attempt(self) -> int:
        """Number of attempts that have started and count."""
        return self.run.attempt if self.run else 0

    @property
    def lateness(self) -> float | None:
        """Seconds from due to start of the latest attempt, on the server's clock."""
        if self.run is None:
            return None
        return (self.run.started_us - self.run.due_us) / 1e6

    @property
    def head(self) -> Body:
        """Decode task and options, and the arguments if they are JSON."""
        return decode_envelope(self.raw_body).body

    def body(self, allow_pickle: bool = False) -> Body:
        """Task, arguments and options."""
        return decode_body(self.raw_body, allow_pickle=allow_pickle)

    @property
    def is_item(self) -> bool:
        """Whether it is an item of a `DelayQueue`, not a job."""
        return is_item(self.raw_body)

    def data(self) -> Any:
        """The data of an item."""
        return decode_item(self.raw_body)

    @property
    def task(self) -> str:
        """The task's name; `(data)` for an item of data; `?` if the body cannot be read."""
        if self.is_item:
            return "(data)"
        try:
            return self.head.task
        except PayloadError:
            return "?"

    def result(self, allow_pickle: bool = False) -> Any:
        """Decode the result of the task, or None."""
        return decode_result(self.raw_result, allow_pickle=allow_pickle)

    @property
    def notes(self) -> History:
        """Parse errors, crashes, log lines and progress."""
        return read_history(self.raw_notes)


GAP: Final = "gap"
"""The kind of event that reports lost events."""

OF_QUEUE: Final = frozenset({"drained", "purged", "paused", "resumed", GAP})
"""The kinds of events about the queue, not about a job."""

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
    """Return the id before this one, which may be the id of no event."""
    opened, n = _parts(id)
    return f"{opened}-{n - 1}"


def follows(id: str, last: str) -> bool:
    """Whether no event can be between these two."""
    return before(id) == last


def check_after(after: str | None) -> str:
    """Check the id to read after; return `-` for new events only."""
    if after is None:
        return "-"
    if not isinstance(after, str) or not _ID.fullmatch(after):
        raise UsageError(
            f"after={after!r} is not the id of an event; give the event.id of one, or leave it "
            f"out to read new events only."
        )
    return after


def check_kinds(kinds: str | Iterable[str] | None) -> frozenset[str] | None:
    """Check the requested kinds of events; None for all."""
    if kinds is None:
        return None
    if not isinstance(kinds, Iterable):
        raise UsageError(f"kinds must be names of events, such as 'completed', not {kinds!r}.")
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in sorted(found, key=str):
        if kind not in EVENTS:
            from difflib import get_close_matches  # only for this error

            near = get_close_matches(str(kind), EVENTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}."
            raise UsageError(f"There is no event {kind!r}; {hint}")
    if not found:
        raise UsageError("kinds names no event; leave it out for all events.")
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
    """Decode JSON text whose end may have been cut."""
    for end in range(len(part), max(len(part) - 12, -1), -1):
        try:
            value: Any = msgspec.json.decode(f'"{part[:end]}"', type=str)
        except msgspec.MsgspecError:  # the cut went through an escape
            continue
        return str(value)
    return part
