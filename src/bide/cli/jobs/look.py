"""What is known of a job: for tables, and as JSON has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bide.cli.screen import STATE_STYLE, Cell, moment_json, relative
from bide.clock import from_us
from bide.errors import PayloadError
from bide.folding import describe_folding
from bide.job import Snapshot
from bide.logs import plain
from bide.notes import Attempt
from bide.payload.codec import ErrorInfo
from bide.queue.view import JobView, written
from bide.states import FINISHED, State
from bide.why import Reason

_REMARK: Final = 200
"""Characters of an error that a list shows, even where lines have no end."""


class Seen(NamedTuple):
    """A job, where it was found."""

    queue: str
    snapshot: Snapshot

    @property
    def id(self) -> str:
        """The job's id."""
        return self.snapshot.id

    @property
    def state(self) -> State:
        """The job's state."""
        return self.snapshot.state

    @property
    def job(self) -> JobView[Any]:
        """The job, as the library shows it; pickled arguments stay unread."""
        return JobView(self.snapshot.id, snapshot=self.snapshot)

    @property
    def moment_us(self) -> int:
        """When it finished, or began to run, or is due: as its state has it."""
        seen = self.snapshot
        if seen.state in FINISHED:
            return seen.finished_us
        if seen.state == State.ACTIVE and seen.run is not None:
            return seen.run.started_us
        return seen.due_us

    @property
    def ago(self) -> float:
        """Seconds since that moment, by the server's clock; negative for one to come."""
        return (self.snapshot.now_us - self.moment_us) / 1e6


def state_cell(state: State) -> Cell:
    """The state in its colour."""
    return Cell(state.value, STATE_STYLE.get(state.value, ""))


def when(seen: Seen) -> str:
    """The job's moment, seen from now."""
    return relative(-seen.ago)


def remark(seen: Seen) -> Cell:
    """The one thing worth a column: how far it is, its last error, its data or description."""
    notes = seen.snapshot.notes
    if seen.snapshot.asked:
        return Cell("asked to end", "yellow")
    if seen.state == State.ACTIVE and notes.progress:
        return Cell(f"{notes.progress.fraction:.0%} {notes.progress.text}".rstrip())
    if notes.error and seen.state != State.COMPLETED:
        attempt = seen.snapshot.attempt
        line = f"{f'{attempt} attempts, ' if attempt > 1 else ''}{error_line(notes.error)}"
        short = line if len(line) <= _REMARK else f"{line[:_REMARK]}…"
        return Cell(short, "red" if seen.state == State.FAILED else "dim")
    return Cell(data_line(seen)) if seen.snapshot.is_item else Cell(given_description(seen), "dim")


def data_line(seen: Seen) -> str:
    """The data of an item, as far as a list has room; nothing of a job."""
    if not seen.snapshot.is_item:
        return ""
    try:
        line = written(seen.snapshot.data())
    except PayloadError as error:
        return str(error)
    return line if len(line) <= _REMARK else f"{line[:_REMARK]}…"


def given_description(seen: Seen) -> str:
    """What its producer said of it, if anything."""
    try:
        return seen.snapshot.head.description or ""
    except PayloadError:
        return ""


def error_line(error: ErrorInfo) -> str:
    """`ValueError: no such order`."""
    return f"{error.type}: {error.message}" if error.message else error.type


def brief(seen: Seen) -> dict[str, Any]:
    """A job as `bide jobs ls --json` has it."""
    job, error = seen.job, seen.snapshot.notes.error
    return {
        "id": job.id,
        "queue": seen.queue,
        "state": job.status.value,
        "task": job.task,
        "description": job.description,
        "priority": job.priority,
        "due": moment_json(job.due),
        "started": moment_json(job.started),
        "finished": moment_json(job.finished),
        "attempt": job.attempt,
        "worker": job.worker,
        "lateness": job.lateness,
        "cancelling": job.cancelling,
        "error": error and {"type": error.type, "message": error.message},
    }


def full(seen: Seen) -> dict[str, Any]:
    """A job as `bide jobs show --json` has it."""
    job, progress = seen.job, seen.job.progress
    unread: list[str] = []

    def read(name: str) -> Any:
        try:
            return plain(getattr(job, name))
        except PayloadError as error:
            if str(error) not in unread:
                unread.append(str(error))
            return None

    if seen.snapshot.is_item:
        return _full_item(seen)
    return brief(seen) | {
        "now": moment_json(from_us(seen.snapshot.now_us)),
        "expires": job.expires and moment_json(job.expires),
        "expired": job.expired,
        "group": _group(seen),
        "parents": read("parents"),
        "waits_for": list(seen.snapshot.awaited),
        "waits_for_count": seen.snapshot.awaits,
        "cancelled_by": job.cancelled_by,
        "args": read("args"),
        "kwargs": read("kwargs"),
        "meta": read("meta"),
        "schedule": read("schedule"),
        "schedule_time": moment_json(read("schedule") and job.schedule_time),
        "result": read("result"),
        "unique": _unique(seen),
        "unreadable": unread,
        "error": _error(job.error),
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "progress": progress
        and {
            "fraction": progress.fraction,
            "text": progress.text,
            "at": moment_json(progress.at),
        },
        "logs": [{"at": moment_json(line.at), "text": line.text} for line in job.logs],
        "rescheduled": _moves(seen),
    }


def _group(seen: Seen) -> dict[str, Any] | None:
    name, waits = seen.job.group, seen.snapshot.turn
    return None if name is None else {"name": name, "waits": waits and waits._asdict()}


def _unique(seen: Seen) -> dict[str, str | None] | None:
    """Under which key calls fold into it, and how."""
    terms = seen.snapshot.terms
    if terms.folding is None:
        return None
    return {"key": terms.key, "how": describe_folding(terms.folding)}


def why_report(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Why it has not run, as JSON has it."""
    return [
        {"kind": reason.kind, "text": reason.text, "until": moment_json(reason.until)}
        for reason in reasons
    ]


def _full_item(seen: Seen) -> dict[str, Any]:
    """An item of data: what a job has besides is not there."""
    unread: list[str] = []
    data = None
    try:
        data = plain(seen.snapshot.data())
    except PayloadError as error:
        unread.append(str(error))
    return brief(seen) | {
        "now": moment_json(from_us(seen.snapshot.now_us)),
        "data": data,
        "unreadable": unread,
        "error": _error(seen.job.error),
        "attempts": [_attempt(attempt) for attempt in seen.job.attempts],
        "rescheduled": _moves(seen),
    }


def _moves(seen: Seen) -> list[dict[str, str | None]]:
    """From when to when it was rescheduled."""
    return [
        {"at": moment_json(at), "from": moment_json(was), "to": moment_json(due)}
        for at, was, due in seen.snapshot.notes.moves
    ]


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started": moment_json(attempt.started),
        "ended": moment_json(attempt.ended),
        "worker": attempt.worker,
        "crashed": attempt.crashed,
        "error": _error(attempt.error),
    }


def _error(error: ErrorInfo | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "traceback": error.traceback}
