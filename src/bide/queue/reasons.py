"""Asking why a job has not run: which calls read what is to be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bide.command import Command
from bide.ops import inspect
from bide.ops.registry import WorkerSeen
from bide.queue.core import QueueCore
from bide.queue.view import JobView, not_found
from bide.why import Read


def why_calls(queue: QueueCore[Any], id: str) -> list[Command[Any]]:
    """The calls whose results `told` takes."""
    place = queue._here
    return [
        inspect.fetch(place.keys, [id]),
        inspect.counts(place.keys),
    ]


def told(
    queue: QueueCore[Any], job: JobView[Any], results: Sequence[Any], workers: Sequence[WorkerSeen]
) -> Read:
    """What those calls have read, and the workers of the queue; the job shows it, too.

    Raises:
        JobNotFound: the job is no more.
    """
    (snapshot,), counts = results
    if snapshot is None:
        raise not_found(job.id)
    job._snapshot = snapshot
    return Read(queue.name, snapshot, counts, workers)
