"""How late jobs began: when, and by how much; of each queue, and what has waited longest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Final, NamedTuple

from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.ops import inspect
from bide.ops.inspect import Counts
from bide.punctuality import FINEST, LAST, LONGEST, Histogram, Minute
from bide.web.asked import Asked
from bide.web.site import Site, largest


class Span(NamedTuple):
    """How far back is looked."""

    minutes: int
    per_column: int
    queues: int
    """Queues that are read at most: those with most jobs. Bounds what one look costs."""


SPANS: Final = {"hour": Span(60, 1, 20), "day": Span(1440, 15, 10), "week": Span(10_080, 120, 2)}

BANDS: Final = (2, 6, 9, 12, 15, 18, 22, 26, LAST)
"""The last bucket of each band of lateness: below 1 ms, 16 ms, 128 ms, 1 s, 8 s, 65 s, 17 min,
4.7 h; all that is later."""

_CALL: Final = 480
"""Minutes read per call: some milliseconds of the server's."""

_NONE: Final = Histogram({})


async def punctuality(site: Site, asked: Asked) -> dict[str, Any]:
    """How late jobs began over the last `span` hour, day or week; of `q`, or of all queues.

    Raises:
        UsageError: there is no such span.
        NotFound: there is no queue `q`.
    """
    name, span = asked.choice("span", SPANS, "hour")
    there = await site.known(asked.text("q"))
    counts = await site.counts(there)
    shown = largest(there, span.queues, lambda queue: sum(counts[queue].totals.values()))
    minutes = {queue: await last_minutes(site, queue, span.minutes) for queue in shown}
    columns = [
        _column([m for each in minutes.values() for m in each[i : i + span.per_column]])
        for i in range(0, span.minutes, span.per_column)
    ]
    bounds = [FINEST * float(2**band) for band in BANDS[:-1]]
    return {
        "span": name,
        "now": moment_json(max((each.now for each in counts.values()), default=None)),
        "step": span.per_column * 60,
        "bands": [*bounds, None],
        "columns": columns if shown else [],
        "queues": {queue: lateness(minutes[queue]) | _waiting(counts[queue]) for queue in shown},
        "longest": LONGEST,
        "left_out": [queue for queue in there if queue not in shown],
    }


async def last_minutes(site: Site, queue: str, count: int) -> list[Minute]:
    """The last minutes of a queue, oldest first."""
    keys = site.keys(queue)
    commands = [
        inspect.minutes(keys, first - 1, min(_CALL, first)) for first in range(count, 0, -_CALL)
    ]
    return [minute for some in await site.client.run_many(commands) for minute in some]


def lateness(minutes: Sequence[Minute]) -> dict[str, Any]:
    """How many jobs began, and within how many seconds after they were due."""
    late = reduce(add, (minute.late for minute in minutes), _NONE)
    return {"began": late.total, **{f"p{p}": late.percentile(p / 100) for p in (50, 95, 99)}}


def _column(minutes: Sequence[Minute]) -> dict[str, Any]:
    late = reduce(add, (minute.late for minute in minutes), _NONE)
    counts = [0] * len(BANDS)
    for bucket, count in late.counts.items():
        counts[next(i for i, last in enumerate(BANDS) if bucket <= last)] += count
    at = min((minute.at for minute in minutes), default=None)
    return {"at": moment_json(at), "counts": counts}


def _waiting(counts: Counts) -> dict[str, Any]:
    overdue_us = counts.now_us - counts.next_due_us if counts.next_due_us else 0
    return {
        "waiting": counts.waiting,
        "overdue": overdue_us / 1e6 if overdue_us > 0 else None,
        "oldest_due": moment_json(from_us(counts.next_due_us)) if overdue_us > 0 else None,
    }
