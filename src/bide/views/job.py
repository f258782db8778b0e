"""What is known of a job: for tables, and as JSON has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from bide.views.params import moment_json, report
from bide.views.site import Mask

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
        return JobView(None, self.snapshot.id, snapshot=self.snapshot)

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
        **report(job, "task", "description", "priority", "due", "started", "finished"),
        **report(job, "attempt", "worker", "lateness", "cancelling"),
        "error": error and report(error, "type", "message"),
    }


def full(seen: FoundJob) -> dict[str, Any]:
    """A job as `bide jobs show --json` has it; an item of data has less."""
    job, snapshot = seen.job, seen.snapshot
    unread: list[str] = []

    def read(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return plain(function(*args))
        except PayloadError as error:
            if str(error) not in unread:
                unread.append(str(error))
            return None

    known = brief(seen) | {
        "now": moment_json(from_us(snapshot.now_us)),
        "unreadable": unread,
        "error": _error(job.error),
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "rescheduled": [
            {"at": moment_json(at), "from": moment_json(was), "to": moment_json(due)}
            for at, was, due in snapshot.notes.moves
        ],
    }
    if snapshot.is_item:
        return known | {"data": read(snapshot.data)}
    payload = ("parents", "args", "kwargs", "meta", "schedule", "result")
    known |= {name: read(getattr, job, name) for name in payload}
    name, turn, constraints, progress = job.group, snapshot.turn, snapshot.constraints, job.progress
    unique = {"key": constraints.key, "how": describe_dedup(constraints.dedup or "")}
    return known | {
        **report(job, "expires", "expired", "cancelled_by"),
        "group": None if name is None else {"name": name, "waits": turn and turn._asdict()},
        "waits_for": list(snapshot.awaited),
        "waits_for_count": snapshot.awaits,
        "schedule_time": moment_json(job.schedule_time if known["schedule"] else None),
        "unique": None if constraints.dedup is None else unique,
        "progress": progress and report(progress, "fraction", "text", "at"),
        "logs": [report(line, "at", "text") for line in job.logs],
    }


def why_report(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Why it has not run, as JSON has it."""
    return [report(reason, "kind", "text", "until") for reason in reasons]


def _attempt(attempt: Attempt) -> dict[str, Any]:
    known = report(attempt, "number", "started", "ended", "worker", "crashed")
    return known | {"error": _error(attempt.error)}


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    return None if error is None else report(error, "type", "message", "traceback")


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
