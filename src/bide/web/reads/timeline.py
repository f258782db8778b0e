"""What is due in the time to come, by queue; and what has ended lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bide.cli.screen import moment_json
from bide.clock import from_us, to_us
from bide.ops import ahead
from bide.ops.ahead import Timeline
from bide.ops.inspect import Counts
from bide.web.asked import Asked
from bide.web.reads.firings import firings
from bide.web.reads.herds import LEAST, herds
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

_ENDED: Final = ("completed", "failed")


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
    first = next(iter(lines.values()), None)
    from_to = (first.from_us, first.to_us) if first else (0, 0)
    fired = await firings(
        site, {queue: counts[queue].schedules for queue in shown}, *from_to, span.step_us
    )
    found = await herds(site, lines, counts)
    return {
        "span": name,
        "now": first and moment_json(from_us(first.now_us)),
        "from": first and moment_json(from_us(first.from_us)),
        "to": first and moment_json(from_us(first.to_us)),
        "step": span.step_us / 1e6,
        "queues": shown,
        "left_out": [queue for queue in there if queue not in shown],
        "ahead": _ahead(counts, lines),
        "overdue": {queue: line.overdue for queue, line in lines.items() if line.overdue},
        "later": {queue: line.later for queue, line in lines.items() if line.later},
        "active": sum(each.active for each in counts.values()),
        "stretches": _stretches(lines, fired.counts),
        "scheduled_until": moment_json(None if fired.until_us is None else from_us(fired.until_us)),
        "schedules_left_out": fired.left_out,
        "kept_for": _kept_for({queue: counts[queue] for queue in shown}, span.back * span.step_us),
        "herds": found.listed,
        "herd": LEAST,
        "unlisted": found.unlisted,
    }


def _ahead(counts: Mapping[str, Counts], lines: Mapping[str, Timeline]) -> dict[str, int]:
    """How many jobs are still to come due in the span: not those that wait, however lately due."""
    left = {queue: counts[queue].delayed - line.later for queue, line in lines.items()}
    return {queue: number for queue, number in left.items() if number > 0}


def _kept_for(counts: Mapping[str, Counts], past_us: int) -> dict[str, dict[str, float]]:
    """Seconds, of the queues that may have forgotten jobs that ended in the past that is drawn."""
    found = {}
    for queue, each in counts.items():
        ages = {state: to_us(getattr(each.retention, state), state) for state in _ENDED}
        full = any(getattr(each, state) >= each.retention.count for state in _ENDED)
        if full or min(ages.values()) < past_us:
            found[queue] = {
                **{state: age_us / 1e6 for state, age_us in ages.items()},
                "count": each.retention.count,
            }
    return found


def _stretches(
    lines: Mapping[str, Timeline], scheduled: Mapping[str, Counter[int]]
) -> list[dict[str, Any]]:
    """Those in which anything is; each queue has a clock reading of its own, and may be one off."""
    starts: dict[int, dict[str, dict[str, int]]] = {}
    for queue, line in lines.items():
        for kind in ("due", *_ENDED):
            for i, number in enumerate(getattr(line, kind)):
                if number:
                    at = starts.setdefault(line.from_us + i * line.step_us, {})
                    at.setdefault(kind, {})[queue] = number
    for queue, firing in scheduled.items():
        for at_us, number in firing.items():
            starts.setdefault(at_us, {}).setdefault("scheduled", {})[queue] = number
    return [
        {
            "at": moment_json(from_us(at)),
            **{kind: found.get(kind, {}) for kind in ("due", "scheduled", "completed", "failed")},
        }
        for at, found in sorted(starts.items())
    ]
