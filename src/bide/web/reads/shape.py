"""A job as the page and the API have it: as the command line's JSON has it, behind the mask."""

from __future__ import annotations

from typing import Any, Final

from bide.cli.jobs import look
from bide.cli.jobs.look import Seen
from bide.errors import PayloadError
from bide.job import Snapshot
from bide.logs import plain
from bide.queue.view import call, written
from bide.web.masking import Mask

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


def brief(queue: str, snapshot: Snapshot, mask: Mask) -> dict[str, Any]:
    """A job in a list."""
    seen = Seen(queue, snapshot)
    progress = snapshot.notes.progress
    return look.brief(seen) | {
        "description": describe(snapshot, mask),
        "moment_ago": seen.ago,
        "progress": None if progress is None else progress.fraction,
    }


def full(queue: str, snapshot: Snapshot, mask: Mask) -> dict[str, Any]:
    """Everything that is known of a job."""
    shown = _OF_JOBS | look.full(Seen(queue, snapshot))
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
    """The text in which is searched: what whoever looks may see, and nothing besides."""
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
