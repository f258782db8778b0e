"""What a job waits for, as its caller says it: checked and written down, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from bide.errors import JobNotFound, UsageError
from bide.ids import check_name
from bide.job import Snapshot
from bide.ops.edges import check_count, is_remote, split_reference
from bide.ops.produce import Prepared, parents_of
from bide.options import Options, Parents, TaskOptions
from bide.terms import folds, write_terms


class Home(Protocol):
    """The queue of the job that waits."""

    name: str

    @property
    def url(self) -> str:
        """The server."""
        ...

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        ...


def references(home: Any, parents: Parents) -> tuple[str, ...]:
    """The ids of what a job of this queue waits for; of jobs of other queues, `{queue}id`.

    Raises:
        UsageError: one is no job, or is on another server; or there are too many.
    """
    listed: list[Any]
    if isinstance(parents, str | Prepared) or not isinstance(parents, Iterable):
        listed = [parents]
    else:
        listed = list(parents)
    found = tuple(dict.fromkeys(_reference(home, parent) for parent in listed))
    check_count(found)
    return found


def _reference(home: Any, parent: Any) -> str:
    id = parent if isinstance(parent, str) else getattr(parent, "id", None)
    if not isinstance(id, str):
        raise UsageError(
            f"depends_on wants jobs or their ids, not {parent!r}; write depends_on=[job, ...]."
        )
    if isinstance(parent, str) and is_remote(id):
        queue, id = split_reference(id)
    else:
        other = getattr(parent, "queue", None)
        queue = home.name if other is None else _same_server(home, other)
    check_name(id, "depends_on")
    check_name(queue, "queue name")
    return id if queue == home.name else f"{{{queue}}}{id}"


def _same_server(home: Home, other: Home) -> str:
    if (other.url, other.prefix) != (home.url, home.prefix):
        raise UsageError(
            f"A job of the queue {other.name!r} on another server or prefix cannot be waited for; "
            "have it enqueue what is to run after it."
        )
    return other.name


def terms_of(options: Options, defaults: TaskOptions, parents: Sequence[str], folding: str) -> str:
    """What is asked of a job beside its due time; `folding` is how calls fold into it.

    Raises:
        UsageError: an option cannot be meant.
    """
    expires = options.get("expires")
    expires = defaults.get("expires") if expires is None else expires
    group = options.get("group")
    said = (
        expires,
        defaults.get("group") if group is None else group,
        options.get("group_concurrency"),
        defaults.get("group_concurrency"),
        folding,
    )
    if not parents and options.get("depends_on") is not None:
        return write_terms(*said)  # an empty list: whatever else is said of what it waits for
    return write_terms(
        *said,
        bool(parents),
        options.get("allow_failure"),
        options.get("if_failed"),
        options.get("on_parent_cancel"),
    )


def check_order(jobs: Sequence[Prepared]) -> None:
    """Refuse a job that stands before one that it waits for: so there can be no cycle.

    And one that waits for a call of which nobody knows yet into which job it folds.

    Raises:
        UsageError: there is one.
    """
    if not any(map(parents_of, jobs)):
        return
    places = {job.id: place for place, job in enumerate(jobs)}
    for place, job in enumerate(jobs):
        for parent in job.parents:
            if places.get(parent, -1) >= place:
                raise UsageError(
                    f"Job {job.id!r} waits for {parent!r}, which does not stand before it in this "
                    "call; put what is waited for first (jobs that wait for each other in a circle "
                    "would never run)."
                )
            if parent in places and folds(jobs[places[parent]].terms):
                raise UsageError(
                    f"Job {job.id!r} waits for {parent!r}, which may fold into another job; "
                    "enqueue that first, and have this one wait for what comes of it."
                )


class Read(NamedTuple):
    """A job that was read, and its queue."""

    queue: str
    snapshot: Snapshot


def by_queue(home: str, parents: Sequence[str]) -> dict[str, list[str]]:
    """The ids of each queue's, of jobs that are waited for."""
    found: dict[str, list[str]] = {}
    for parent in parents:
        queue, id = split_reference(parent) if is_remote(parent) else (home, parent)
        found.setdefault(queue, []).append(id)
    return found


def in_order(
    home: str, parents: Sequence[str], read: dict[str, list[Snapshot | None]]
) -> list[Read]:
    """What was read of jobs that are waited for, in the order in which they were given.

    Raises:
        JobNotFound: one is no more.
    """
    seen = {
        (queue, snapshot.id): snapshot
        for queue, snapshots in read.items()
        for snapshot in snapshots
        if snapshot is not None
    }
    found = []
    for parent in parents:
        queue, id = split_reference(parent) if is_remote(parent) else (home, parent)
        snapshot = seen.get((queue, id))
        if snapshot is None:
            raise JobNotFound(
                f"Job {parent!r}, that this one waited for, is no more: it was deleted, or its "
                "time is over; keep it longer with retention=."
            )
        found.append(Read(queue, snapshot))
    return found
