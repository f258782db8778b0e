"""What has failed, gathered by what went wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from bide.cli.jobs.look import Seen
from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.states import State
from bide.web.asked import Asked
from bide.web.reads.alike import first_line, kind_of
from bide.web.reads.scan import Scan, Wanted
from bide.web.site import Site

LOOK: Final = 1_000
"""Failed jobs of each queue that are looked at: the newest."""


@dataclass
class _Group:
    kind: str
    error: str
    message: str
    """Of the newest."""
    jobs: list[Seen] = field(default_factory=list)


async def failures(site: Site, asked: Asked) -> dict[str, Any]:
    """Failed jobs by kind of error: numbers and what is quoted may differ within a kind.

    Raises:
        NotFound: there is no queue `q`.
    """
    groups: dict[str, _Group] = {}
    looked = total = 0
    names = await site.known(asked.text("q"))
    for name in names:
        scan = Scan(site, Wanted((name,), (State.FAILED,)), look=LOOK)
        for seen in await scan.run(LOOK):
            error = seen.snapshot.notes.error
            kind = kind_of(error)
            message = first_line(error) if error else ""
            group = groups.setdefault(kind, _Group(kind, error.type if error else kind, message))
            group.jobs.append(seen)
        looked += scan.looked
        total += scan.total
    ordered = sorted(groups.values(), key=lambda group: len(group.jobs), reverse=True)
    return {
        "groups": [_report(group) for group in ordered],
        "looked": looked,
        "total": total,
        "queues": names,
    }


def _report(group: _Group) -> dict[str, Any]:
    newest = max(group.jobs, key=lambda seen: seen.snapshot.finished_us)
    oldest = min(group.jobs, key=lambda seen: seen.snapshot.finished_us)
    return {
        "kind": group.kind,
        "error": group.error,
        "message": group.message,
        "count": len(group.jobs),
        "tasks": dict(Counter(seen.snapshot.task for seen in group.jobs).most_common(5)),
        "queues": dict(Counter(seen.queue for seen in group.jobs).most_common(5)),
        "first": moment_json(from_us(oldest.snapshot.finished_us)),
        "last": moment_json(from_us(newest.snapshot.finished_us)),
        "sample": {"queue": newest.queue, "id": newest.id},
    }
