"""Looking through jobs, state by state and queue by queue: bounded, and able to go on.

A page is asked for by its place in the list, and each job that leaves the list before that place
moves all others up. So pages overlap; and where a page holds nothing that was read before, what it
should hold has moved up by more than that, and is looked for further up.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from bide.errors import UsageError
from bide.logs import printable
from bide.model.ids import LONGEST
from bide.model.job import LISTABLE, Snapshot, State
from bide.model.payload.body import ErrorInfo
from bide.protocol.commands import jobs as job_commands
from bide.views.job import FoundJob, error_line, searched
from bide.views.params import Asked
from bide.views.site import AsyncSite

_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+"  # a UUID is one
)
_QUOTED: Final = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'|\"[^\"]*\"")
"""An apostrophe within a word does not start a quotation."""
_LONGEST: Final = 200
_COMPARED: Final = 1_000
"""Characters of a line that are compared; what is quoted is often longer than what is shown."""


def first_line(error: ErrorInfo) -> str:
    """The message, as far as one line has room for it."""
    return _line(error)[:_LONGEST]


def _line(error: ErrorInfo) -> str:
    return error.message[:_COMPARED].partition("\n")[0]


def kind_of(error: ErrorInfo | None) -> str:
    """The same text for all failures of a kind, such as `ValueError: no order #`."""
    if error is None:
        return "(no error was kept)"
    message = _NUMBER.sub("#", _QUOTED.sub("'…'", _line(error)))[:_LONGEST]
    # It goes through addresses and forms, which neither blanks at the ends nor controls survive.
    return printable(f"{error.type}: {message}" if message.strip() else error.type).strip()


OVERLAP: Final = 50
"""Jobs that are read once more with each page."""

BACK: Final = 200
"""Places by which it goes back where it has met nothing that it knows."""


class Walk:
    """How far a list was read."""

    def __init__(self, start: int = 0, known: Sequence[str] = ()) -> None:
        """Set up.

        Args:
            start: the place of the first that was not read.
            known: what was read right before that, or the last of it.
        """
        self.start = start
        self._known = set(known)
        self._first = self._size = 0
        self.is_over = False
        """Whether there is nothing left to read."""

    def page(self, most: int) -> tuple[int, int]:
        """Place and size of the page to read next, for `most` that were not read before."""
        self._first = max(0, self.start - OVERLAP) if self._known else self.start
        self._size = most + self.start - self._first
        return self._first, self._size

    def read(self, ids: Sequence[str]) -> dict[str, int]:
        """Of the ids of that page those that were not read before, with their places."""
        met = next((i for i, id in enumerate(ids) if id in self._known), None)
        if met is None and self._known and self._first:
            self.start = max(0, self._first - BACK)
            return {}
        behind = enumerate(ids[met or 0 :], self._first + (met or 0))
        fresh = {id: at for at, id in behind if id not in self._known}
        self._known.update(fresh)
        self.start = self._first + len(ids)
        self.is_over = len(ids) < self._size
        return fresh


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
    async def read(cls, site: AsyncSite, asked: Asked) -> Wanted:
        """Read `q`, `state`, `task`, `error`, `kind`, `text`, `since` and `until`.

        Raises:
            UsageError: a parameter is invalid.
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

    def fits(self, seen: FoundJob, site: AsyncSite) -> bool:
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

    site: AsyncSite
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

    async def run(self, most: int) -> list[FoundJob]:
        """The next jobs that fit, `most` at most.

        Raises:
            UsageError: `after` is none that a scan has said.
        """
        found: list[FoundJob] = []
        async for seen, place in self._places():
            if len(found) == most:
                self.next = place
                break
            if self.wanted.fits(seen, self.site):
                found.append(seen)
        return found

    async def each(self) -> AsyncIterator[FoundJob]:
        """All that fit among those that are looked at.

        Raises:
            UsageError: `after` is none that a scan has said.
        """
        async for seen, _ in self._places():
            if self.wanted.fits(seen, self.site):
                yield seen

    async def _places(self) -> AsyncIterator[tuple[FoundJob, Place]]:
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
                command = job_commands.listing(self.site.keys(queue), state, start, size)
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
                        yield FoundJob(queue, by_id[id]), place
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
        """Read a place; an empty text means the start of the first list.

        Raises:
            UsageError: the text is not a place in these lists.
        """
        if not text:
            return cls(0, 0, *(lists[0] if lists else (State.ACTIVE, "")))
        place, *behind = text.split(" ", 1)
        start, looked, state, queue, *_ = *place.split(".", 3), "", "", "", ""
        is_number = all(_DIGITS.fullmatch(each) for each in (start, looked))
        for one, name in lists if is_number else ():
            if (one, name) == (state, queue):
                return cls(int(start), int(looked), one, name, tuple(behind))
        raise UsageError(
            f"after={text[:60]!r} is not a place in these lists; leave it out for the first jobs."
        )

    def up(self, by: int) -> Place:
        """The same place once so many before it have left the list; no job is passed over."""
        return self._replace(start=max(0, self.start - by), behind=()) if by else self
