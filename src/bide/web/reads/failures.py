"""What has failed, gathered by what went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.job import Snapshot
from bide.ops import inspect
from bide.states import State
from bide.web.asked import Asked
from bide.web.site import Site, largest

LOOK: Final = 2_000
"""Failed jobs that are looked at, of all queues together: the newest of each."""

MOST_QUEUES: Final = 50
"""Queues of which some are looked at: those with most failed jobs. Bounds the round trips."""

_READ: Final = 200
"""Jobs read per round trip, and held at once."""

_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_QUOTED: Final = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")
_LONGEST: Final = 200


@dataclass
class _Group:
    """Counters, and of the newest what it said and which job it was."""

    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    first_us: int = 0
    last_us: int = 0
    message: str = ""
    sample: Mapping[str, str] = field(default_factory=dict)

    def add(self, queue: str, job: Snapshot, message: str) -> None:
        """Count one more."""
        at_us = job.finished_us
        if not self.queues or at_us < self.first_us:
            self.first_us = at_us
        if not self.queues or at_us > self.last_us:
            self.last_us, self.message, self.sample = at_us, message, {"queue": queue, "id": job.id}
        self.tasks[job.task] += 1
        self.queues[queue] += 1


async def failures(site: Site, asked: Asked) -> dict[str, Any]:
    """Failed jobs by kind of error: numbers and what is quoted may differ within a kind.

    Raises:
        NotFound: there is no queue `q`.
    """
    groups: dict[tuple[str, str], _Group] = {}
    names = await site.known(asked.text("q"))
    counts = {name: each.failed for name, each in (await site.counts(names)).items() if each.failed}
    shown = largest(list(counts), MOST_QUEUES, counts.__getitem__)
    looked = 0
    for queue, share in _shares({queue: counts[queue] for queue in shown}, LOOK).items():
        async for job in _newest(site, queue, share):
            error = job.notes.error
            kind, message = (error.type, error.message) if error else ("(no error was kept)", "")
            message = message.partition("\n")[0][:_LONGEST]
            groups.setdefault((kind, _shape(message)), _Group()).add(queue, job, message)
            looked += 1
    ordered = sorted(groups.items(), key=lambda each: -each[1].queues.total())
    return {
        "groups": [_report(kind, group) for (kind, _), group in ordered],
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


async def _newest(site: Site, queue: str, count: int) -> AsyncIterator[Snapshot]:
    keys = site.keys(queue)
    for start in range(0, count, _READ):
        size = min(_READ, count - start)
        ids = await site.client.run(inspect.listing(keys, State.FAILED, start, size))
        for job in await site.fetch(queue, ids):
            if job.state == State.FAILED:  # else it was retried meanwhile
                yield job


def _shape(message: str) -> str:
    return _NUMBER.sub("#", _QUOTED.sub("'…'", message))


def _report(kind: str, group: _Group) -> dict[str, Any]:
    return {
        "error": kind,
        "message": group.message,
        "count": group.queues.total(),
        "tasks": dict(group.tasks.most_common(5)),
        "queues": dict(group.queues.most_common(5)),
        "first": moment_json(from_us(group.first_us)),
        "last": moment_json(from_us(group.last_us)),
        "sample": group.sample,
    }
