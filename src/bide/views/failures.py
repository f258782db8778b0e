"""What has failed, gathered by what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bide.model.durations import from_us
from bide.model.job import State
from bide.views.find import Scan, Wanted, first_line, kind_of
from bide.views.job import FoundJob
from bide.views.params import Asked
from bide.views.site import AsyncSite, largest
from bide.views.times import moment_json

LOOK_FAILED: Final = 2_000
"""Failed jobs that are looked at, of all queues together: the newest of each."""

MOST_QUEUES: Final = 50
"""Queues of which some are looked at: those with most failed jobs. Bounds the round trips."""


@dataclass
class _Group:
    """Counters, and what the newest said."""

    error: str = ""
    message: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    first_us: int = 0
    last_us: int = 0
    sample: Mapping[str, str] = field(default_factory=dict)
    """Queue and id of the newest."""

    def add(self, seen: FoundJob, kind: str) -> None:
        """Count one more."""
        at_us, error = seen.moment_us, seen.snapshot.notes.error
        is_first = not self.queues  # of which the moment may be any: what is stored may be damaged
        if is_first or at_us < self.first_us:
            self.first_us = at_us
        if is_first or at_us > self.last_us:
            self.last_us, self.sample = at_us, {"queue": seen.queue, "id": seen.id}
            self.error, self.message = (error.type, first_line(error)) if error else (kind, "")
        self.tasks[seen.snapshot.task] += 1
        self.queues[seen.queue] += 1


async def failures(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """Failed jobs by kind of error: numbers and what is quoted may differ within a kind.

    Raises:
        NotFound: there is no queue `q`.
    """
    groups: dict[str, _Group] = {}
    names = await site.known(asked.text("q"))
    counts = {name: each.failed for name, each in (await site.counts(names)).items() if each.failed}
    shown = largest(list(counts), MOST_QUEUES, counts.__getitem__)
    looked = 0
    for queue, share in _shares({queue: counts[queue] for queue in shown}, LOOK_FAILED).items():
        scan = Scan(site, Wanted((queue,), (State.FAILED,)), look=share)
        async for seen in scan.each():
            kind = kind_of(seen.snapshot.notes.error)
            groups.setdefault(kind, _Group()).add(seen, kind)
        looked += scan.looked
    ordered = sorted(groups.items(), key=lambda each: -each[1].queues.total())
    return {
        "groups": [_report(kind, group) for kind, group in ordered],
        "looked": looked,
        "total": sum(counts.values()),
        "queues": names,
        "left_out": [queue for queue in counts if queue not in shown],
    }


def _shares(sizes: Mapping[str, int], budget: int) -> dict[str, int]:
    """As much for each as for the others; what one does not need, those with more have."""
    shares: dict[str, int] = {}
    for queue in sorted(sizes, key=sizes.__getitem__):
        shares[queue] = min(sizes[queue], budget // (len(sizes) - len(shares)))
        budget -= shares[queue]
    return shares


def _report(kind: str, group: _Group) -> dict[str, Any]:
    return {
        "kind": kind,
        "error": group.error,
        "message": group.message,
        "count": group.queues.total(),
        "tasks": dict(group.tasks.most_common(5)),
        "queues": dict(group.queues.most_common(5)),
        "first": moment_json(from_us(group.first_us)),
        "last": moment_json(from_us(group.last_us)),
        "sample": group.sample,
    }
