"""Looking through jobs, state by state and queue by queue: bounded, and able to go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from bide.cli.jobs.look import Seen, error_line
from bide.errors import UsageError
from bide.job import Snapshot
from bide.ops import inspect
from bide.states import LISTABLE, State
from bide.web.asked import Asked
from bide.web.reads.shape import searched
from bide.web.site import Site

LOOK: Final = 2_000
"""Jobs that one page looks at, at most."""

_READ: Final = 200
"""Jobs read per round trip."""


@dataclass(frozen=True)
class Wanted:
    """What a job must be, to be meant."""

    queues: tuple[str, ...]
    states: tuple[State, ...]
    task: str = ""
    error: str = ""
    text: str = ""
    since_us: int | None = None
    until_us: int | None = None

    @classmethod
    async def read(cls, site: Site, asked: Asked) -> Wanted:
        """What the parameters `q`, `state`, `task`, `error`, `text`, `since`, `until` say.

        Raises:
            UsageError: one cannot be meant.
            NotFound: there is no such queue.
        """
        return cls(
            queues=tuple(await site.known(asked.text("q"))),
            states=asked.states(),
            task=asked.text("task"),
            error=asked.text("error"),
            text=asked.text("text"),
            since_us=asked.moment_us("since"),
            until_us=asked.moment_us("until"),
        )

    @property
    def reads_jobs(self) -> bool:
        """Whether queue and state alone do not say who is meant."""
        return bool(self.task or self.error or self.text) or (self.since_us, self.until_us) != (
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
        if self.since_us is not None and seen.moment_us < self.since_us:
            return False
        if self.until_us is not None and seen.moment_us >= self.until_us:
            return False
        return not self.text or self.text.lower() in searched(snapshot, site.mask).lower()


def _fits(text: str, pattern: str) -> bool:
    """A pattern without wildcards may stand anywhere."""
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
    total: int = 0
    """How many there are to look at, from the beginning."""
    states: dict[str, int] = field(default_factory=dict)
    """How many jobs of the queues are in each state."""
    next: str | None = None
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

    async def _places(self) -> AsyncIterator[tuple[Seen, str]]:
        """Jobs with where each stands."""
        counts = await self.site.counts(self.wanted.queues)
        self.states = {
            state: sum(getattr(each, state) for each in counts.values()) for state in LISTABLE
        }
        self.total = sum(self.states[state] for state in self.wanted.states)
        pairs = [
            (state, queue)
            for state in self.wanted.states
            for queue in self.wanted.queues
            if getattr(counts[queue], state)
        ]
        start, pairs = _resume(self.after, pairs)
        for state, queue in pairs:
            while True:
                if self.looked >= self.look:
                    self.next = _place(start, state, queue)
                    return
                size = min(_READ, self.look - self.looked)
                command = inspect.listing(self.site.keys(queue), state, start, size)
                ids = await self.site.client.run(command)
                by_id: dict[str, Snapshot] = {s.id: s for s in await self.site.fetch(queue, ids)}
                for i, id in enumerate(ids):
                    self.looked += 1
                    if id in by_id:
                        yield Seen(queue, by_id[id]), _place(start + i, state, queue)
                start += len(ids)
                if len(ids) < size:
                    break
            start = 0


def _place(start: int, state: str, queue: str) -> str:
    return f"{start}.{state}.{queue}"


def _resume(after: str, pairs: list[tuple[State, str]]) -> tuple[int, list[tuple[State, str]]]:
    """Where in which of the lists to go on."""
    if not after:
        return 0, pairs
    number, _, rest = after.partition(".")
    state, _, queue = rest.partition(".")
    if not (number.isascii() and number.isdecimal()) or len(number) > 12 or not queue:
        raise UsageError(f"after={after[:60]!r} is no place in a list; leave it out to begin.")
    for i, (one, name) in enumerate(pairs):
        if (one, name) == (state, queue):
            return int(number), pairs[i:]
    return 0, []
