"""The jobs that are due in a chosen range of time."""

from __future__ import annotations

from typing import Any, Final

from bide.cli.screen import moment_json
from bide.clock import from_us as to_moment
from bide.errors import UsageError
from bide.ops import ahead
from bide.web.asked import Asked
from bide.web.reads.shape import brief
from bide.web.site import Site

PAGE: Final = 50


def read_range(asked: Asked) -> tuple[int, int]:
    """The range from `from` on and before `to`, in microseconds.

    Raises:
        UsageError: one is missing, or they are the wrong way round.
    """
    from_us, to_us = asked.moment_us("from"), asked.moment_us("to")
    if from_us is None or to_us is None:
        raise UsageError("A range needs from= and to=; choose one on the timeline.")
    if from_us >= to_us:
        raise UsageError("The range ends before it begins; exchange from= and to=.")
    return from_us, to_us


async def stretch(site: Site, asked: Asked) -> dict[str, Any]:
    """How many jobs of each queue are due from `from` on and before `to`, and some of them.

    Raises:
        UsageError: a parameter cannot be meant.
        NotFound: there is no queue `q`.
    """
    from_us, to_us = read_range(asked)
    start = asked.number("start", 0, 1_000_000_000)
    names = await site.known(asked.text("q"))
    pages = await site.client.run_many(
        [ahead.between(site.keys(name), from_us, to_us, start, PAGE) for name in names]
    )
    found = sorted(
        (due_us, id, name)
        for name, page in zip(names, pages, strict=True)
        for id, due_us in page.jobs
    )[:PAGE]
    shown = []
    for name in names:
        ids = [id for _, id, queue in found if queue == name]
        shown += [(s.due_us, name, s) for s in await site.fetch(name, ids)] if ids else []
    shown.sort(key=lambda each: (each[0], each[2].id))
    sizes = {name: page.total for name, page in zip(names, pages, strict=True) if page.total}
    total = sum(sizes.values())
    # Of several queues only the first page: which jobs a later one has, nobody counts.
    more = len(names) == 1 and start + PAGE < total
    return {
        "from": moment_json(to_moment(from_us)),
        "to": moment_json(to_moment(to_us)),
        "from_us": from_us,
        "to_us": to_us,
        "queues": sizes,
        "total": total,
        "jobs": [brief(name, snapshot, site.mask) for _, name, snapshot in shown],
        "next": start + PAGE if more else None,
    }
