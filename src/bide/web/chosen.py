"""Which jobs a form means: one by its id, those due in a range, or those that fit a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bide.errors import UsageError
from bide.ops import ahead
from bide.ops.inspect import MAX_PAGE
from bide.states import FINISHED, State
from bide.web.asked import LATEST_US, Asked
from bide.web.reads.range import read_range
from bide.web.reads.scan import Place, Scan, Wanted
from bide.web.reads.walk import OVERLAP, Walk
from bide.web.site import Site

MOST: Final = 100_000
"""Jobs of a range that one form changes; what is left is for the next."""

LOOK: Final = 20_000
"""Jobs that are looked at for those that fit a filter; the next part goes on from there."""

_PAGE: Final = MAX_PAGE - OVERLAP
"""Jobs read per round trip."""

_DATED: Final = (State.ACTIVE, *FINISHED)
"""States of which a job has the moment at which it came there."""


@dataclass
class Chosen:
    """The jobs that a form means."""

    ids: dict[str, list[str]] = field(default_factory=dict)
    """By queue."""
    named: bool = False
    """Whether it is one job, by its id."""
    states: tuple[State, ...] = (State.WAITING, State.DELAYED)
    """In which they are meant: what has come to another meanwhile is not."""
    total: int = 0
    """How many there are to mean, where that is known without looking at each; else how many
    there are to look at."""
    as_of_us: int = 0
    """When they were chosen: what has begun or ended since is not meant."""
    tasks: Counter[str] = field(default_factory=Counter)
    """How many are of which task, where they were looked at."""
    looked: int | None = None
    """How many were looked at, in earlier parts too; None where that was not needed."""
    next: Place | None = None
    """Where to look on."""

    @property
    def count(self) -> int:
        """How many jobs this is."""
        return sum(map(len, self.ids.values()))

    def rest(self, moved: Counter[str]) -> str | None:
        """Where those that are left begin, once so many jobs of each queue have left their list.

        None where nothing is left; empty where those that are left are what the same form means.
        """
        if self.next is not None:
            return str(self.next.up(moved[self.next.queue]))
        return "" if self.looked is None and self.count < self.total else None


async def choose(site: Site, asked: Asked, states: Sequence[State]) -> Chosen:
    """The jobs that a form means, if they may be in these states.

    Raises:
        UsageError: it does not say which, or cannot be meant.
        NotFound: there is no queue `q`.
    """
    if id := asked.text("id"):
        queue = await site.one(asked.text("q"))
        return Chosen({queue: [id]}, named=True, states=tuple(State), total=1)
    if asked.text("from"):
        return await _in_range(site, asked)
    if not asked.text("state"):
        raise UsageError("Which jobs? Give an id, a range, or a state.")
    return await _that_fit(site, asked, states)


async def _in_range(site: Site, asked: Asked) -> Chosen:
    from_us, to_us = read_range(asked)
    chosen = Chosen()
    for queue in await site.known(asked.text("q")):
        ids: list[str] = []
        walk, room = Walk(), MOST - chosen.count
        while True:
            start, size = walk.page(min(_PAGE, room - len(ids)))
            page = await site.client.run(
                ahead.between(site.keys(queue), from_us, to_us, start, size)
            )
            ids += walk.read([id for id, _ in page.jobs])
            if walk.is_over or len(ids) >= room:
                break
        chosen.total += max(page.total, len(ids))
        chosen.as_of_us = page.now_us
        if ids:
            chosen.ids[queue] = ids
    return chosen


async def _that_fit(site: Site, asked: Asked, states: Sequence[State]) -> Chosen:
    wanted = await Wanted.read(site, asked)
    odd = [state for state in wanted.states if state not in states]
    if odd:
        raise UsageError(f"That cannot be done to jobs that are {', '.join(odd)}.")
    scan = Scan(site, wanted, look=LOOK, after=asked.text("after"))
    chosen = Chosen(states=wanted.states, as_of_us=asked.number("as_of", 0, LATEST_US))
    async for seen in scan.each():
        if not chosen.as_of_us:
            chosen.as_of_us = seen.snapshot.now_us
        if seen.state in _DATED and seen.moment_us > chosen.as_of_us:
            continue
        chosen.ids.setdefault(seen.queue, []).append(seen.id)
        chosen.tasks[seen.snapshot.task] += 1
    chosen.looked, chosen.total, chosen.next = scan.looked, scan.total, scan.next
    return chosen
