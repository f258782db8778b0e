"""Queues at a glance, and one of them."""

from __future__ import annotations

from typing import Any, Final

from bide.cli.queues import queues_report
from bide.cli.screen import moment_json
from bide.clock import from_us, to_us
from bide.ops import groups, inspect
from bide.ops.inspect import Counts
from bide.web.asked import Asked
from bide.web.reads.groups import piece
from bide.web.reads.punctuality import last_minutes, lateness
from bide.web.reads.shape import brief
from bide.web.reads.workers import workers
from bide.web.site import Site

HOUR: Final = 60
"""The last minutes, of which lateness is told."""

GROUPS: Final = 10
"""Groups that are shown with a queue; more have a page of their own."""

_NEXT: Final = 10


async def queues(site: Site, asked: Asked) -> dict[str, Any]:
    """All queues with their jobs by state, and how many workers serve each."""
    names = await site.queues()
    counts = await site.counts(names)
    seen = await site.workers(jobs=0)
    report = queues_report(counts)
    for name, each in report.items():
        each["workers"] = sum(name in one.about.queues for one in seen)
    return {"now": _now(counts), "queues": report, "workers": len(seen)}


async def queue(site: Site, asked: Asked) -> dict[str, Any]:
    """One queue: its counts, what is due next, who serves it, how late its jobs began lately.

    Raises:
        UsageError: `q` is not given.
        NotFound: there is no queue `q`.
    """
    name = await site.one(asked.text("q"))
    keys = site.keys(name)
    counts, ahead, found = await site.client.run_many(
        [
            inspect.counts(keys),
            inspect.upcoming(keys, 0, _NEXT),
            groups.page(keys, groups.BEGIN),
        ]
    )
    coming = await site.fetch(name, [id for id, _ in ahead])
    retention = counts.retention
    return {
        "now": moment_json(counts.now),
        "name": name,
        "counts": queues_report({name: counts})[name],
        "is_data": counts.is_data,
        "retention": {
            "count": retention.count,
            **{
                state: to_us(getattr(retention, state), state) / 1e6
                for state in ("completed", "failed", "cancelled")
            },
        },
        "lateness": lateness(await last_minutes(site, name, HOUR)),
        "groups": (shown := piece(found))["groups"][:GROUPS],
        "more_groups": shown["next"] is not None or len(shown["groups"]) > GROUPS,
        "upcoming": [brief(name, snapshot, site.mask) for snapshot in coming],
        **await workers(site, asked),
    }


def _now(counts: dict[str, Counts]) -> str | None:
    latest = max((each.now_us for each in counts.values()), default=0)
    return moment_json(from_us(latest)) if latest else None
