"""Jobs that wait for each other, made from prepared ones: `chain` and `fan_in`.

Both return a list for `enqueue_many`, in which what is waited for stands first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bide.errors import UsageError
from bide.ops.edges import check_count
from bide.ops.produce import Prepared
from bide.payload.recast import with_parents
from bide.terms import OnParentCancel, check_apart, write_terms

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
    asked = write_terms(
        waits=True,
        allow_failure=allow_failure,
        if_failed=if_failed,
        on_parent_cancel=on_parent_cancel,
    )
    if job.parents and asked == "d=-":
        asked = next(word for word in job.terms.split(" ") if word.startswith("d="))
    terms = " ".join([*words, asked])
    return job._replace(body=with_parents(job.body, ids), terms=terms, parents=ids)
