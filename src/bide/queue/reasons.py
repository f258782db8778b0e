"""Asking why a job has not run: which calls read what is to be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bide.command import Command
from bide.ops import inspect, registry
from bide.queue.core import QueueCore
from bide.queue.view import JobView, not_found
from bide.why import Read


def why_calls(queue: QueueCore[Any], id: str) -> list[Command[Any]]:
    """The calls whose results `told` takes."""
    place = queue._here
    return [
        inspect.fetch(place.keys, [id]),
        inspect.counts(place.keys),
        registry.workers(place.everywhere),
    ]


def told(queue: QueueCore[Any], job: JobView[Any], results: Sequence[Any]) -> Read:
    """What those calls have read; the job shows it, too.

    Raises:
        JobNotFound: the job is no more.
    """
    (snapshot,), counts, workers = results
    if snapshot is None:
        raise not_found(job.id)
    job._snapshot = snapshot
    return Read(queue.name, snapshot, counts, workers)
