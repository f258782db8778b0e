"""What a job waits for, as its caller says it: checked and written down, without I/O.

Both return a list for `enqueue_many`, in which what is waited for stands first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from bide.errors import JobNotFound, UsageError
from bide.model.constraints import OnParentCancel, check_apart, has_dedup, write_constraints
from bide.model.ids import check_name
from bide.model.job import Snapshot
from bide.model.options import Options, Parents, TaskOptions
from bide.model.payload.body import with_parents
from bide.protocol.commands.dependencies import check_count, is_remote, split_reference
from bide.protocol.commands.enqueue import Prepared, parents_of


class QueueRef(Protocol):
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


def _same_server(home: QueueRef, other: QueueRef) -> str:
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
        return write_constraints(*said)  # an empty list: whatever else is said of what it waits for
    return write_constraints(
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
            if parent in places and has_dedup(jobs[places[parent]].terms):
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


Step = Prepared | Iterable[Prepared]


def chain(*steps: Step) -> list[Prepared]:
    """Jobs one after another: each waits for the one before it.

    A step may be several jobs: they run side by side, and the next step waits for all of them. What
    a job waits for already, and whether it may fail, stays as it was prepared.

    Args:
        steps: prepared jobs, or lists of them.

    Returns:
        All of them, for `enqueue_many` of the queue that has prepared them.

    Raises:
        UsageError: a step is no prepared job, or holds none, or more than a job can wait for.
        PayloadError: the ids of a step take more than a megabyte.
    """
    found: list[Prepared] = []
    before: Sequence[Prepared] = ()
    for step in steps:
        before = [_after(job, before) for job in _jobs(step)]
        found += before
    return found


def fan_in(
    jobs: Iterable[Prepared],
    *,
    completed: Prepared | None = None,
    ended: Prepared | None = None,
    failed: Prepared | None = None,
) -> list[Prepared]:
    """Jobs side by side, and what runs because of what becomes of them.

    Args:
        jobs: prepared jobs.
        completed: runs once all of them have completed; if one fails or is cancelled, so is this.
        ended: runs once all of them have ended, however.
        failed: runs as soon as one of them fails; if none does, it is cancelled.

    Returns:
        All of them, for `enqueue_many` of the queue that has prepared them.

    Raises:
        UsageError: one is no prepared job, there is none, more than a job can wait for, or no
            callback.
        PayloadError: their ids take more than a megabyte.
    """
    all_jobs = _jobs(jobs)
    callbacks = [callback for callback in (completed, ended, failed) if callback is not None]
    if not callbacks:
        raise UsageError("fan_in wants a job to run behind these: completed=, ended= or failed=.")
    _jobs(callbacks)
    found = list(all_jobs)
    if completed is not None:
        found.append(_after(completed, all_jobs))
    if ended is not None:
        found.append(_after(ended, all_jobs, allow_failure=True, on_parent_cancel="run"))
    if failed is not None:
        found.append(_after(failed, all_jobs, if_failed=True, on_parent_cancel="run"))
    return found


def _jobs(step: Step) -> list[Prepared]:
    several = isinstance(step, Iterable) and not isinstance(step, Prepared)
    jobs: list[Any] = list(step) if several else [step]
    odd = [job for job in jobs if not isinstance(job, Prepared)]
    if odd or not jobs:
        raise UsageError(
            "Each step is what queue.prepare(...) returns, or a list of these, not "
            f"{repr(odd[0]) if odd else 'an empty list'}."
        )
    return jobs


def _after(
    job: Prepared,
    parents: Sequence[Prepared],
    allow_failure: bool | None = None,
    if_failed: bool | None = None,
    on_parent_cancel: OnParentCancel | None = None,
) -> Prepared:
    """The job, which waits for these too."""
    ids = tuple(dict.fromkeys([*job.parents, *(parent.id for parent in parents)]))
    if not parents:
        return job
    check_count(ids)
    check_apart(job.terms, waits=True)
    words = [word for word in job.terms.split(" ") if word and not word.startswith("d=")]
    asked = write_constraints(
        waits=True,
        allow_failure=allow_failure,
        if_failed=if_failed,
        on_parent_cancel=on_parent_cancel,
    )
    if job.parents and asked == "d=-":
        asked = next(word for word in job.terms.split(" ") if word.startswith("d="))
    terms = " ".join([*words, asked])
    return job._replace(body=with_parents(job.body, ids), terms=terms, parents=ids)
