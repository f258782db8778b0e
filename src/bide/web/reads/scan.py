"""Looking through jobs, state by state and queue by queue: bounded, and able to go on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from bide.cli.jobs.look import Seen, error_line
from bide.errors import UsageError
from bide.ids import LONGEST
from bide.job import Snapshot
from bide.ops import inspect
from bide.states import LISTABLE, State
from bide.web.asked import Asked
from bide.web.reads.alike import kind_of
from bide.web.reads.shape import searched
from bide.web.reads.walk import Walk
from bide.web.site import Site

LOOK: Final = 2_000
"""Jobs that one page looks at, at most."""

_READ: Final = 200
"""Jobs read per round trip."""

_MOVING: Final = (State.WAITING, State.DELAYED)
"""States whose lists lose their first jobs; the others gain theirs there."""

_DIGITS: Final = re.compile("[0-9]{1,12}")


@dataclass(frozen=True)
class Wanted:
    """What a job must be, to be meant."""

    queues: tuple[str, ...]
    states: tuple[State, ...]
    task: str = ""
    error: str = ""
    kind: str = ""
    """Of failure, as `kind_of` names it."""
    text: str = ""
    since_us: int | None = None
    until_us: int | None = None

    @classmethod
    async def read(cls, site: Site, asked: Asked) -> Wanted:
        """What `q`, `state`, `task`, `error`, `kind`, `text`, `since` and `until` say.

        Raises:
            UsageError: one cannot be meant.
            NotFound: there is no such queue.
        """
        return cls(
            queues=tuple(await site.known(asked.text("q"))),
            states=asked.states(),
            task=asked.text("task"),
            error=asked.text("error"),
            kind=asked.text("kind"),
            text=asked.text("text"),
            since_us=asked.moment_us("since"),
            until_us=asked.moment_us("until"),
        )

    @property
    def reads_jobs(self) -> bool:
        """Whether queue and state alone do not say who is meant."""
        return bool(self.task or self.error or self.kind or self.text) or (
            self.since_us,
            self.until_us,
        ) != (
            None,
            None,
        )

    def fits(self, seen: Seen, site: Site) -> bool:
        """Whether a job is meant."""
        snapshot = seen.snapshot
        if seen.state not in self.states:
            return False  # it has moved since the list was read
        if self.task and not _fits(snapshot.task, self.task):
            return False
        if self.error:
            error = snapshot.notes.error
            if error is None or not _fits(error_line(error), self.error):
                return False
        if self.kind and kind_of(snapshot.notes.error) != self.kind:
            return False
        if self.since_us is not None and seen.moment_us < self.since_us:
            return False
        if self.until_us is not None and seen.moment_us >= self.until_us:
            return False
        return not self.text or self.text.lower() in searched(snapshot, site.mask).lower()


def _fits(text: str, pattern: str) -> bool:
    """Whether a text is as a pattern says.

    One that begins with = says the whole of it, one with wildcards fits from end to end, another
    may stand anywhere.
    """
    if pattern.startswith("="):
        return text == pattern[1:]
    return fnmatchcase(text, pattern) if any(c in pattern for c in "*?[") else pattern in text


@dataclass
class Scan:
    """How far somebody has looked."""

    site: Site
    wanted: Wanted
    look: int = LOOK
    after: str = ""
    """Where an earlier scan has stopped; empty to begin."""
    looked: int = 0
    """How many jobs were looked at, in earlier scans too."""
    total: int = 0
    """How many there are to look at, from the beginning."""
    states: dict[str, int] = field(default_factory=dict)
    """How many jobs of the queues are in each state."""
    next: Place | None = None
    """Where to go on; None where all has been looked at."""

    async def run(self, most: int) -> list[Seen]:
        """The next jobs that fit, `most` at most.

        Raises:
            UsageError: `after` is none that a scan has said.
        """
        found: list[Seen] = []
        async for seen, place in self._places():
            if len(found) == most:
                self.next = place
                break
            if self.wanted.fits(seen, self.site):
                found.append(seen)
        return found

    async def each(self) -> AsyncIterator[Seen]:
        """All that fit among those that are looked at.

        Raises:
            UsageError: `after` is none that a scan has said.
        """
        async for seen, _ in self._places():
            if self.wanted.fits(seen, self.site):
                yield seen

    async def _places(self) -> AsyncIterator[tuple[Seen, Place]]:
        """Jobs with where each stands."""
        lists = [(state, queue) for state in self.wanted.states for queue in self.wanted.queues]
        begin = Place.read(self.after, lists)
        counts = await self.site.counts(self.wanted.queues)
        self.states = {
            state: sum(getattr(each, state) for each in counts.values()) for state in LISTABLE
        }
        self.total = sum(self.states[state] for state in self.wanted.states)
        self.looked, most = begin.looked, begin.looked + self.look
        walk, behind = Walk(begin.start, begin.behind), begin.behind
        for state, queue in lists[lists.index((begin.state, begin.queue)) :] if lists else []:
            while getattr(counts[queue], state) and not walk.is_over:
                if self.looked >= most:
                    self.next = Place(walk.start, self.looked, state, queue, behind)
                    return
                start, size = walk.page(min(_READ, most - self.looked))
                command = inspect.listing(self.site.keys(queue), state, start, size)
                ids = await self.site.client.run(command)
                fresh = walk.read(ids)
                by_id: dict[str, Snapshot] = {
                    s.id: s for s in await self.site.fetch(queue, [*fresh])
                }
                for id, at in fresh.items():
                    place = Place(at, self.looked, state, queue, behind)
                    self.looked += 1
                    behind = (id,) if state in _MOVING else ()
                    if id in by_id:
                        yield Seen(queue, by_id[id]), place
            walk, behind = Walk(), ()


class Place(NamedTuple):
    """Where to go on looking; as text, what `after` says."""

    start: int
    """In the list of a queue's jobs in a state."""
    looked: int
    """How many jobs were looked at before."""
    state: State
    queue: str
    behind: tuple[str, ...] = ()
    """The job before it, in a list whose first jobs leave it."""

    def __str__(self) -> str:
        behind = (id for id in self.behind if len(id) <= LONGEST)  # another makes no address
        return " ".join((f"{self.start}.{self.looked}.{self.state}.{self.queue}", *behind))

    @classmethod
    def read(cls, text: str, lists: Sequence[tuple[State, str]]) -> Place:
        """The place that a text says; where the first of the lists begins for none.

        Raises:
            UsageError: it says none in these lists.
        """
        if not text:
            return cls(0, 0, *(lists[0] if lists else (State.ACTIVE, "")))
        place, *behind = text.split(" ", 1)
        start, looked, state, queue, *_ = *place.split(".", 3), "", "", "", ""
        is_number = all(_DIGITS.fullmatch(each) for each in (start, looked))
        for one, name in lists if is_number else ():
            if (one, name) == (state, queue):
                return cls(int(start), int(looked), one, name, tuple(behind))
        raise UsageError(f"after={text[:60]!r} is no place in these lists; leave it out to begin.")

    def up(self, by: int) -> Place:
        """The same place once so many before it have left the list; no job is passed over."""
        return self._replace(start=max(0, self.start - by), behind=()) if by else self
