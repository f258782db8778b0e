"""What a job waits for, or has waited for, and what waits for it; in whichever queues that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bide.errors import PayloadError
from bide.job import Snapshot
from bide.ops import edges
from bide.ops.edges import GATE, is_remote, split_reference
from bide.queue.parents import by_queue
from bide.web.masking import HIDDEN
from bide.web.reads.shape import describe
from bide.web.site import Site

MOST: Final = 20
"""Parents and children that are named, at most."""


async def family(site: Site, queue: str, snapshot: Snapshot) -> dict[str, Any]:
    """Parents and children of a job, those of queues that are not shown without a name."""
    if snapshot.is_item:
        return {}
    try:
        parents = list(snapshot.head.parents)
    except PayloadError:
        parents = []
    below = await site.client.run(edges.children(site.keys(queue), snapshot.id, MOST))
    shown = set(await site.queues())
    waits_for = [hidden(one, shown) for one in snapshot.awaited if one != GATE]
    cause = snapshot.terms.cause
    return {
        "parents": [hidden(one, shown) for one in parents],
        "waits_for": waits_for,
        "cancelled_by": cause and hidden(cause, shown),
        "cause": (await _named(site, queue, [cause], shown))[0] if cause else None,
        "above": await _named(site, queue, parents[:MOST], shown),
        "below": await _named(site, queue, below.ids, shown),
        "below_count": below.total,
    }


def hidden(reference: str, shown: set[str]) -> str:
    """A reference without the name of a queue that is not shown."""
    if not is_remote(reference) or split_reference(reference)[0] in shown:
        return reference
    return HIDDEN


async def _named(
    site: Site, home: str, references: Sequence[str], shown: set[str]
) -> list[dict[str, Any]]:
    """Where each is, what it is and how it stands; a state of None for one that is no more."""
    seen: dict[tuple[str, str], Snapshot] = {}
    for queue, ids in by_queue(home, references).items():
        if queue in shown:
            seen |= {(queue, one.id): one for one in await site.fetch(queue, ids)}
    named: list[dict[str, Any]] = []
    for reference in references:
        queue, id = split_reference(reference) if is_remote(reference) else (home, reference)
        if queue not in shown:
            named.append({"queue": None, "id": HIDDEN, "state": None, "description": None})
            continue
        one = seen.get((queue, id))
        told = one and describe(one, site.mask)
        named.append(
            {"queue": queue, "id": id, "state": one and one.state.value, "description": told}
        )
    return named
