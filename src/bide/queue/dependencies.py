"""Dependencies of jobs: `depends_on=`, `chain` and `fan_in`, checked and encoded without I/O.

`chain` and `fan_in` return a list for `enqueue_many`, in which parents come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from bide.errors import JobNotFound, UsageError
from bide.model.ids import check_name, short_id
from bide.model.job import Snapshot
from bide.model.options import (
    Options,
    Parents,
    RunIf,
    TaskOptions,
    check_apart,
    has_dedup,
    write_constraints,
)
from bide.model.payload.body import with_parents
from bide.protocol.commands.enqueue import (
    Prepared,
    check_count,
    is_remote,
    parents_of,
    split_reference,
)


class QueueRef(Protocol):
    """The queue of a job that has parents."""

    name: str

    @property
    def url(self) -> str:
        """The URL of the server."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        ...


def references(own: Any, parents: Parents) -> tuple[str, ...]:
    """Return the ids of the parents of a job; `{queue}id` for a parent in another queue."""
    listed: list[Any]
    if isinstance(parents, str | Prepared) or not isinstance(parents, Iterable):
        listed = [parents]
    else:
        listed = list(parents)
    found = tuple(dict.fromkeys(_reference(own, parent) for parent in listed))
    check_count(found)
    return found


def _reference(own: Any, parent: Any) -> str:
    id = parent if isinstance(parent, str) else getattr(parent, "id", None)
    if not isinstance(id, str):
        raise UsageError(
            f"depends_on must be jobs or their ids, not {parent!r}; write depends_on=[job, ...]."
        )
    if isinstance(parent, str) and is_remote(id):
        queue, id = split_reference(id)
    else:
        other = getattr(parent, "queue", None)
        queue = own.name if other is None else _same_server(own, other)
    check_name(id, "depends_on")
    check_name(queue, "queue name")
    return id if queue == own.name else f"{{{queue}}}{id}"


def _same_server(own: QueueRef, other: QueueRef) -> str:
    if (other.url, other.prefix) != (own.url, own.prefix):
        raise UsageError(
            f"A job cannot depend on a job of the queue {other.name!r}, which has another server "
            f"or prefix; let that job enqueue the next one."
        )
    return other.name


def constraints_of(
    options: Options, defaults: TaskOptions, parents: Sequence[str], dedup: str
) -> str:
    """Encode the constraints of a job; `dedup` is its policy of deduplication."""
    expires = options.get("expires")
    expires = defaults.get("expires") if expires is None else expires
    group = options.get("group")
    common = (
        expires,
        defaults.get("group") if group is None else group,
        options.get("group_concurrency"),
        defaults.get("group_concurrency"),
        dedup,
    )
    if not parents and options.get("depends_on") is not None:
        return write_constraints(*common)  # an empty list: options about parents do not apply
    return write_constraints(
        *common,
        bool(parents),
        options.get("run_if"),
    )


def check_order(jobs: Sequence[Prepared]) -> None:
    """Refuse a job that comes before one of its parents, so that no cycle is possible.

    Also refuse a job whose parent in this call may be deduplicated: its final id is not known yet.
    """
    if not any(map(parents_of, jobs)):
        return
    positions = {job.id: position for position, job in enumerate(jobs)}
    for position, job in enumerate(jobs):
        for parent in job.parents:
            pair = f"Job {short_id(job.id)!r} waits for {short_id(parent)!r}"
            if positions.get(parent, -1) >= position:
                raise UsageError(
                    f"{pair}, which does not come before it in this call; put parents first "
                    f"(jobs that wait for each other would never run)."
                )
            if parent in positions and has_dedup(jobs[positions[parent]].constraints):
                raise UsageError(
                    f"{pair}, which may be deduplicated; enqueue that job first, and let this "
                    f"job depend on the returned job."
                )


def by_queue(own: str, parents: Sequence[str]) -> dict[str, list[str]]:
    """Group the ids of parents by queue."""
    found: dict[str, list[str]] = {}
    for parent in parents:
        queue, id = split_reference(parent) if is_remote(parent) else (own, parent)
        found.setdefault(queue, []).append(id)
    return found


def in_order(
    own: str, parents: Sequence[str], read: dict[str, list[Snapshot | None]]
) -> list[tuple[str, Snapshot]]:
    """Return the queues and snapshots of parents in their original order, or `JobNotFound`."""
    seen = {
        (queue, snapshot.id): snapshot
        for queue, snapshots in read.items()
        for snapshot in snapshots
        if snapshot is not None
    }
    found = []
    for parent in parents:
        queue, id = split_reference(parent) if is_remote(parent) else (own, parent)
        snapshot = seen.get((queue, id))
        if snapshot is None:
            raise JobNotFound(
                f"Job {parent!r}, a parent of this job, no longer exists: it was deleted, or its "
                f"retention has ended; keep it longer with retention=."
            )
        found.append((queue, snapshot))
    return found


Step = Prepared | Iterable[Prepared]


def chain(*steps: Step) -> list[Prepared]:
    """Chain jobs: each step depends on the step before it.

    A step may be a list of jobs: they run concurrently, and the next step depends on all of them. A
    job keeps the dependencies and options with which it was prepared.

        parts = [resize.prepare(width) for width in (100, 800)]
        queue.enqueue_many(chain(fetch.prepare(), parts, publish.prepare()))

    Args:
        steps: prepared jobs, or lists of them.

    Returns:
        All of them, for `enqueue_many` of the queue that has prepared them.

    Raises:
        UsageError: a step is not a prepared job, is empty, or has more jobs than a job can depend
            on. Or there is one step of several jobs, which would have no order.
        PayloadError: the ids of a step take more than 1 MB.
    """
    if len(steps) == 1 and len(_jobs(steps[0])) > 1:
        raise UsageError(
            "chain() got one step, whose jobs would run at the same time; write chain(*jobs) to "
            "run one after another, or give the jobs to enqueue_many() as they are."
        )
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
    """Run jobs concurrently, and callback jobs after them.

    Args:
        jobs: prepared jobs.
        completed: runs once all of them have completed. If one fails or is cancelled, this job is
            cancelled.
        ended: runs once all of them have ended in any way.
        failed: runs as soon as one of them fails or is cancelled. If all complete, this job is
            cancelled.

    Returns:
        All of them, for `enqueue_many` of the queue that has prepared them.

    Raises:
        UsageError: a job is not a prepared job, there are no jobs or no callbacks, or there are
            more jobs than a job can depend on.
        PayloadError: their ids take more than 1 MB.
    """
    all_jobs = _jobs(jobs, "fan_in takes a list of jobs that queue.prepare(...) returns")
    callbacks = [callback for callback in (completed, ended, failed) if callback is not None]
    if not callbacks:
        raise UsageError("fan_in needs a job to run after these: completed=, ended= or failed=.")
    _jobs(callbacks, "completed=, ended= and failed= are each one job of queue.prepare(...)")
    found = list(all_jobs)
    if completed is not None:
        found.append(_after(completed, all_jobs))
    if ended is not None:
        found.append(_after(ended, all_jobs, "ended"))
    if failed is not None:
        found.append(_after(failed, all_jobs, "failed"))
    return found


_STEP: Final = "Each step is what queue.prepare(...) returns, or a list of these"


def _jobs(step: Step, expected: str = _STEP) -> list[Prepared]:
    several = isinstance(step, Iterable) and not isinstance(step, Prepared)
    jobs: list[Any] = list(step) if several else [step]
    odd = [job for job in jobs if not isinstance(job, Prepared)]
    if odd or not jobs:
        raise UsageError(f"{expected}, not {repr(odd[0]) if odd else 'an empty list'}.")
    return jobs


def _after(job: Prepared, parents: Sequence[Prepared], run_if: RunIf = "completed") -> Prepared:
    ids = tuple(dict.fromkeys([*job.parents, *(parent.id for parent in parents)]))
    if not parents:
        return job
    check_count(ids)
    check_apart(job.constraints, waits=True)
    words = [word for word in job.constraints.split(" ") if word and not word.startswith("d=")]
    dependence = write_constraints(waits=True, run_if=run_if)
    if job.parents and dependence == "d=-":
        dependence = next(word for word in job.constraints.split(" ") if word.startswith("d="))
    constraints = " ".join([*words, dependence])
    return job._replace(body=with_parents(job.body, ids), constraints=constraints, parents=ids)
