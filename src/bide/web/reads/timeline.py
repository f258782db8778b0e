"""What is due in the time to come, by queue; and what has ended lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.ops import ahead
from bide.ops.ahead import Timeline
from bide.web.asked import Asked
from bide.web.reads.herds import herds
from bide.web.reads.schedules import firings
from bide.web.site import Site, largest


class Span(NamedTuple):
    """How far a timeline looks."""

    step_us: int
    back: int = 20
    """Stretches before now."""
    steps: int = 140
    """Stretches in all."""


SPANS: Final = {
    "minute": Span(500_000),
    "hour": Span(30_000_000),
    "day": Span(720_000_000),
    "month": Span(21_600_000_000),
}

MOST_QUEUES: Final = 30
"""Queues that are counted stretch by stretch: those with most jobs to come. Bounds what one look
costs the server."""


async def timeline(site: Site, asked: Asked) -> dict[str, Any]:
    """How many jobs are due when, over the `span` minute, hour, day or month; of `q`, or of all.

    Raises:
        UsageError: there is no such span.
        NotFound: there is no queue `q`.
    """
    name, span = asked.choice("span", SPANS, "hour")
    there = await site.known(asked.text("q"))
    counts = await site.counts(there)
    shown = largest(there, MOST_QUEUES, lambda queue: counts[queue].delayed + counts[queue].waiting)
    offset = -span.back * span.step_us
    lines: dict[str, Timeline] = dict(
        zip(
            shown,
            await site.client.run_many(
                [
                    ahead.timeline(site.keys(queue), span.step_us, span.steps, offset_us=offset)
                    for queue in shown
                ]
            ),
            strict=True,
        )
    )
    ghosts = {
        queue: await firings(site, queue, line.from_us, line.step_us, span.steps)
        for queue, line in lines.items()
        if counts[queue].schedules
    }
    first = next(iter(lines.values()), None)
    return {
        "span": name,
        "now": first and moment_json(from_us(first.now_us)),
        "from": first and moment_json(from_us(first.from_us)),
        "to": first and moment_json(from_us(first.to_us)),
        "step": span.step_us / 1e6,
        "queues": shown,
        "left_out": [queue for queue in there if queue not in shown],
        "overdue": {queue: line.overdue for queue, line in lines.items() if line.overdue},
        "later": {queue: line.later for queue, line in lines.items() if line.later},
        "active": sum(each.active for each in counts.values()),
        "stretches": _stretches(lines, ghosts),
        "herds": await herds(site, lines),
    }


def _stretches(
    lines: Mapping[str, Timeline], ghosts: Mapping[str, Counter[int]]
) -> list[dict[str, Any]]:
    """Those in which anything is; each queue has a clock reading of its own, and may be one off."""
    starts: dict[int, dict[str, dict[str, int]]] = {}
    for queue, line in lines.items():
        for kind in ("due", "completed", "failed"):
            for i, number in enumerate(getattr(line, kind)):
                if number:
                    at = starts.setdefault(line.from_us + i * line.step_us, {})
                    at.setdefault(kind, {})[queue] = number
    for queue, firing in ghosts.items():
        for i, number in firing.items():
            at = starts.setdefault(lines[queue].from_us + i * lines[queue].step_us, {})
            at.setdefault("scheduled", {})[queue] = number
    return [
        {
            "at": moment_json(from_us(at)),
            **{kind: found.get(kind, {}) for kind in ("due", "scheduled", "completed", "failed")},
        }
        for at, found in sorted(starts.items())
    ]
