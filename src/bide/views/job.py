"""What is known of a job: for tables, and as JSON has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bide.errors import PayloadError
from bide.logs import plain
from bide.model.dedup import describe_dedup
from bide.model.durations import from_us
from bide.model.history import Attempt
from bide.model.job import FINISHED, Snapshot, State
from bide.model.payload.body import ErrorInfo
from bide.queue.explain import Reason
from bide.queue.job_view import JobView, call, written
from bide.views.site import Mask
from bide.views.times import moment_json, relative

_REMARK: Final = 200
"""Characters of an error that a list shows, even where lines have no end."""


class FoundJob(NamedTuple):
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


def when(seen: FoundJob) -> str:
    """The job's moment, seen from now."""
    return relative(-seen.ago)


def data_line(seen: FoundJob) -> str:
    """The data of an item, as far as a list has room; nothing of a job."""
    if not seen.snapshot.is_item:
        return ""
    try:
        line = written(seen.snapshot.data())
    except PayloadError as error:
        return str(error)
    return line if len(line) <= _REMARK else f"{line[:_REMARK]}…"


def given_description(seen: FoundJob) -> str:
    """What its producer said of it, if anything."""
    try:
        return seen.snapshot.head.description or ""
    except PayloadError:
        return ""


def error_line(error: ErrorInfo) -> str:
    """`ValueError: no such order`."""
    return f"{error.type}: {error.message}" if error.message else error.type


def brief(seen: FoundJob) -> dict[str, Any]:
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


def full(seen: FoundJob) -> dict[str, Any]:
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


def _group(seen: FoundJob) -> dict[str, Any] | None:
    name, waits = seen.job.group, seen.snapshot.turn
    return None if name is None else {"name": name, "waits": waits and waits._asdict()}


def _unique(seen: FoundJob) -> dict[str, str | None] | None:
    """Under which key calls fold into it, and how."""
    terms = seen.snapshot.terms
    if terms.folding is None:
        return None
    return {"key": terms.key, "how": describe_dedup(terms.folding)}


def why_report(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Why it has not run, as JSON has it."""
    return [
        {"kind": reason.kind, "text": reason.text, "until": moment_json(reason.until)}
        for reason in reasons
    ]


def _full_item(seen: FoundJob) -> dict[str, Any]:
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


def _moves(seen: FoundJob) -> list[dict[str, str | None]]:
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


_LONGEST: Final = 300
"""Characters of a description that a list shows."""

_OF_JOBS: Final[dict[str, Any]] = {
    "progress": None,
    "logs": [],
    "why": [],
    "group": None,
    "expires": None,
    "expired": False,
    "cancelled_by": None,
}
"""What an item of data has nothing of."""

PAYLOAD: Final = ("args", "kwargs", "meta", "result", "data")


def masked_brief(queue: str, snapshot: Snapshot, mask: Mask) -> dict[str, Any]:
    """A job in a list."""
    seen = FoundJob(queue, snapshot)
    progress = snapshot.notes.progress
    return brief(seen) | {
        "description": describe(snapshot, mask),
        "moment_ago": seen.ago,
        "progress": None if progress is None else progress.fraction,
    }


def masked_full(queue: str, snapshot: Snapshot, mask: Mask) -> dict[str, Any]:
    """Everything that is known of a job."""
    shown = _OF_JOBS | full(FoundJob(queue, snapshot))
    shown["description"] = describe(snapshot, mask)
    for kind in PAYLOAD:
        if shown.get(kind) is not None:
            shown[kind] = plain(mask(snapshot.task, kind, shown[kind]))
    return shown


def describe(snapshot: Snapshot, mask: Mask) -> str:
    """What its producer said of it; else its call, or its data, behind the mask."""
    task = snapshot.task
    try:
        if snapshot.is_item:
            return _cut(written(mask(task, "data", plain(snapshot.data()))))
        head = snapshot.head
        if head.description is not None:
            return _cut(head.description)
        if head.codec != "json":
            return task
        args = mask(task, "args", plain(list(head.args)))
        kwargs = mask(task, "kwargs", plain(dict(head.kwargs)))
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            return f"{task}(…)"
        return _cut(f"{task}({call(args, kwargs)})")
    except PayloadError:
        return task


def searched(snapshot: Snapshot, mask: Mask) -> str:
    """Return the text that a search looks in: only what the page shows of the job."""
    parts = [snapshot.id]
    try:
        if snapshot.is_item:
            parts.append(written(mask(snapshot.task, "data", plain(snapshot.data()))))
        else:
            head = snapshot.head
            parts.append(head.description or "")
            if head.codec == "json":
                parts.append(written(mask(snapshot.task, "args", plain(list(head.args)))))
                parts.append(written(mask(snapshot.task, "kwargs", plain(dict(head.kwargs)))))
    except PayloadError:
        pass
    return "\n".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
