"""Jobs in lists and searches, one job, and failed jobs grouped by their error.

A search reads state by state and queue by queue, a bounded number of jobs at a time, and can be
continued. A page is read by its offset in the list, and each job that leaves the list before that
offset moves all others up. So pages overlap. If a page contains nothing that was read before, the
jobs have moved up by more than the overlap, and the search reads further up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, NamedTuple

from bide.errors import UsageError
from bide.logs import printable
from bide.model.durations import from_us
from bide.model.ids import LONGEST
from bide.model.job import FINISHED, LISTABLE, Snapshot, State
from bide.model.payload.body import ErrorInfo
from bide.protocol.commands import jobs as job_commands
from bide.queue.explain import Read, Reason, explain
from bide.queue.job_view import not_found
from bide.views.job import FoundJob, error_line, masked_brief, masked_full, searched, why_report
from bide.views.params import Params, moment_json
from bide.views.queues import dependencies, hidden
from bide.views.site import AsyncSite, Mask, largest
from bide.views.verbs import UNBEGUN

_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+"  # a UUID is one
)
_QUOTED: Final = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'|\"[^\"]*\"")
"""An apostrophe within a word does not start a quotation."""
_LONGEST: Final = 200
_COMPARED: Final = 1_000
"""Characters of a line that are compared; what is quoted is often longer than what is shown."""


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


class Paging:
    """How far a list was read."""

    def __init__(self, start: int = 0, known: Sequence[str] = ()) -> None:
        """Start at a place; `known` was read right before it, or the last of that."""
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
class Filter:
    """What a job must be, to be meant."""

    states: tuple[State, ...]
    task: str | None = None
    """A pattern with the wildcards of a shell."""
    error: str | None = None
    """Another, of the line `ValueError: no such order`."""
    kind: str = ""
    """Of failure, as `kind_of` names it."""
    text: str = ""
    """In what is shown of the job, behind the mask."""
    since_us: int | None = None
    until_us: int | None = None
    """A range of the moment at which it came to its state, or is due."""
    older_us: int | None = None
    """How long ago that moment must be, by the server's clock."""
    due_before_us: int | None = None

    @classmethod
    def read(cls, params: Params) -> Filter:
        """Read `state`, `task`, `error`, `kind`, `text`, `since` and `until`."""
        return cls(
            states=params.states(),
            task=_pattern(params.text("task")),
            error=_pattern(params.text("error")),
            kind=params.text("kind"),
            text=params.text("text"),
            since_us=params.moment_us("since"),
            until_us=params.moment_us("until"),
        )

    @property
    def reads_jobs(self) -> bool:
        """Whether queue and state alone do not say who is meant."""
        return self != Filter(self.states)

    def fits(self, seen: FoundJob, mask: Mask) -> bool:
        """Whether a job is meant."""
        snapshot, at_us = seen.snapshot, seen.moment_us
        if seen.state not in self.states:
            return False  # it has moved since the list was read
        if self.task is not None and not fnmatchcase(snapshot.task, self.task):
            return False
        error = snapshot.notes.error
        if self.error is not None and not (error and fnmatchcase(error_line(error), self.error)):
            return False
        if self.kind and kind_of(error) != self.kind:
            return False
        if self.since_us is not None and at_us < self.since_us:
            return False
        if self.until_us is not None and at_us >= self.until_us:
            return False
        if self.older_us is not None and snapshot.now_us - at_us <= self.older_us:
            return False
        if self.due_before_us is not None and snapshot.due_us >= self.due_before_us:
            return False
        return not self.text or self.text.lower() in searched(snapshot, mask).lower()


def _pattern(text: str) -> str | None:
    """The pattern that a parameter means; one that begins with = says the whole of a text."""
    if text.startswith("="):
        return escape(text[1:])
    return anywhere(text) if text else None


def anywhere(pattern: str) -> str:
    """A pattern without wildcards may stand anywhere in a text."""
    return pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"


@dataclass
class Scan:
    """How far somebody has looked."""

    site: AsyncSite
    queues: Sequence[str]
    wanted: Filter
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
    """Where to continue; None where all has been looked at."""

    async def run(self, most: int) -> list[FoundJob]:
        """The next jobs that fit, `most` at most."""
        found: list[FoundJob] = []
        async for seen, place in self._places():
            if len(found) == most:
                self.next = place
                break
            if self.wanted.fits(seen, self.site.mask):
                found.append(seen)
        return found

    async def each(self) -> AsyncIterator[FoundJob]:
        """All that fit among those that are looked at."""
        async for seen, _ in self._places():
            if self.wanted.fits(seen, self.site.mask):
                yield seen

    async def _places(self) -> AsyncIterator[tuple[FoundJob, Place]]:
        """Jobs with where each stands."""
        lists = [(state, queue) for state in self.wanted.states for queue in self.queues]
        begin = Place.read(self.after, lists)
        counts = await self.site.counts(self.queues)
        self.states = {
            state: sum(getattr(each, state) for each in counts.values()) for state in LISTABLE
        }
        self.total = sum(self.states[state] for state in self.wanted.states)
        self.looked, most = begin.looked, begin.looked + self.look
        paging, behind = Paging(begin.start, begin.behind), begin.behind
        for state, queue in lists[lists.index((begin.state, begin.queue)) :] if lists else []:
            while getattr(counts[queue], state) and not paging.is_over:
                if self.looked >= most:
                    self.next = Place(paging.start, self.looked, state, queue, behind)
                    return
                start, size = paging.page(min(_READ, most - self.looked))
                command = job_commands.listing(self.site.keys(queue), state, start, size)
                ids = await self.site.client.run(command)
                fresh = paging.read(ids)
                by_id: dict[str, Snapshot] = {
                    s.id: s for s in await self.site.fetch(queue, [*fresh])
                }
                for id, at in fresh.items():
                    place = Place(at, self.looked, state, queue, behind)
                    self.looked += 1
                    behind = (id,) if state in _MOVING else ()
                    if id in by_id:
                        yield FoundJob(queue, by_id[id]), place
            paging, behind = Paging(), ()


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
        """Read a place; an empty text means the start of the first list."""
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


PAGE: Final = 50


async def jobs(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return a page of the jobs that match, and how many jobs were searched for them."""
    queues = await site.known(params.text("q"))
    wanted, after = Filter.read(params), params.text("after")
    scan = Scan(site, queues, wanted, look=LOOK, after=after)
    found = await scan.run(params.number("count", PAGE, 500) or PAGE)
    if wanted.text and not after:  # the text may be a job id, which needs no search
        met = {seen.id for seen in found}
        named = await _named(site, queues, wanted)
        found = [*(one for one in named if one.id not in met), *found]
    return {
        "jobs": [masked_brief(seen.queue, seen.snapshot, site.mask) for seen in found],
        "looked": scan.looked,
        "total": scan.total,
        "filtered": scan.wanted.reads_jobs,
        "states": scan.states,
        "queues": await site.queues(),
        "next": scan.next and str(scan.next),
    }


async def _reasons(site: AsyncSite, queue: str, snapshot: Snapshot) -> list[Reason]:
    """Why it has not run; nothing where it has."""
    if snapshot.is_item or snapshot.state not in UNBEGUN:
        return []
    counts, shown = await site.counts([queue]), set(await site.queues())
    awaited = tuple(hidden(one, shown) for one in snapshot.awaited)
    snapshot = snapshot._replace(awaited=awaited)
    return explain(Read(queue, snapshot, counts[queue], await site.workers()))


async def _named(site: AsyncSite, queues: Sequence[str], wanted: Filter) -> list[FoundJob]:
    if len(wanted.text) > LONGEST:
        return []
    commands = [job_commands.fetch(site.keys(queue), [wanted.text]) for queue in queues]
    pages = zip(queues, await site.client.run_many(commands), strict=True)
    found = [FoundJob(queue, seen) for queue, (seen,) in pages if seen is not None]
    return [seen for seen in found if wanted.fits(seen, site.mask)]


async def job(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Everything that is known of a job; without `q` it is looked for in all queues."""
    id = params.text("id")
    names = await site.known(params.text("q"))
    commands = [job_commands.fetch(site.keys(name), [id]) for name in names] if id else []
    for name, (snapshot,) in zip(names, await site.client.run_many(commands), strict=False):
        if snapshot is not None:
            shown = masked_full(name, snapshot, site.mask)
            run = snapshot.run
            lease = snapshot.since_us if snapshot.state == State.ACTIVE else None
            return shown | {
                **(await dependencies(site, name, snapshot)),
                "ended": snapshot.state in FINISHED,
                "first_due": run and moment_json(from_us(run.first_us)),
                "lease_until": lease and moment_json(from_us(lease)),
                "crashes": run.crashes if run else 0,
                "why": why_report(await _reasons(site, name, snapshot)),
            }
    raise not_found(id)


def read_range(params: Params) -> tuple[int, int]:
    """The range from `from` on and before `to`, in microseconds."""
    from_us, to_us = params.moment_us("from"), params.moment_us("to")
    if from_us is None or to_us is None:
        raise UsageError("A range needs from= and to=; choose one on the timeline.")
    if from_us >= to_us:
        raise UsageError("The range ends before it begins; exchange from= and to=.")
    return from_us, to_us


async def stretch(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Count the jobs of each queue that are due from `from` on and before `to`; return some."""
    after_us, before_us = read_range(params)
    start = params.number("start", 0, 1_000_000_000)
    names = await site.known(params.text("q"))
    pages = await site.client.run_many(
        [job_commands.list_due(site.keys(name), after_us, before_us, start, PAGE) for name in names]
    )
    found = sorted(
        (due_us, id, name)
        for name, page in zip(names, pages, strict=True)
        for id, due_us in page.jobs
    )[:PAGE]
    shown = [
        (snapshot.due_us, snapshot.id, name, snapshot)
        for name in names
        if (ids := [id for _, id, queue in found if queue == name])
        for snapshot in await site.fetch(name, ids)
    ]
    shown.sort(key=lambda each: each[:2])
    sizes = {name: page.total for name, page in zip(names, pages, strict=True) if page.total}
    total = sum(sizes.values())
    # Several queues have only a first page: `start` counts the jobs of one queue.
    more = len(names) == 1 and start + PAGE < total
    return {
        "from": moment_json(from_us(after_us)),
        "to": moment_json(from_us(before_us)),
        "from_us": after_us,
        "to_us": before_us,
        "queues": sizes,
        "total": total,
        "jobs": [masked_brief(name, snapshot, site.mask) for *_, name, snapshot in shown],
        "next": start + PAGE if more else None,
    }


LOOK_FAILED: Final = 2_000
"""Failed jobs that are looked at, of all queues together: the newest of each."""

MOST_QUEUES: Final = 50
"""Queues of which some are looked at: those with most failed jobs. Bounds the round trips."""


@dataclass
class _Group:
    """Counters, and what the newest said."""

    error: str = ""
    message: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    first_us: int = 0
    last_us: int = 0
    sample: Mapping[str, str] = field(default_factory=dict)
    """Queue and id of the newest."""

    def add(self, seen: FoundJob, kind: str) -> None:
        """Count one more."""
        at_us, error = seen.moment_us, seen.snapshot.notes.error
        is_first = not self.queues  # of which the moment may be any: what is stored may be damaged
        if is_first or at_us < self.first_us:
            self.first_us = at_us
        if is_first or at_us > self.last_us:
            self.last_us, self.sample = at_us, {"queue": seen.queue, "id": seen.id}
            self.error, self.message = (
                (error.type, _line(error)[:_LONGEST]) if error else (kind, "")
            )
        self.tasks[seen.snapshot.task] += 1
        self.queues[seen.queue] += 1

    def report(self, kind: str) -> dict[str, Any]:
        """What is shown of them."""
        return {
            "kind": kind,
            "error": self.error,
            "message": self.message,
            "count": self.queues.total(),
            "tasks": dict(self.tasks.most_common(5)),
            "queues": dict(self.queues.most_common(5)),
            "first": moment_json(from_us(self.first_us)),
            "last": moment_json(from_us(self.last_us)),
            "sample": self.sample,
        }


async def failures(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Failed jobs by kind of error: numbers and what is quoted may differ within a kind."""
    groups: dict[str, _Group] = {}
    names = await site.known(params.text("q"))
    counts = {name: each.failed for name, each in (await site.counts(names)).items() if each.failed}
    shown = largest(list(counts), MOST_QUEUES, counts.__getitem__)
    looked = 0
    for queue, share in _shares({queue: counts[queue] for queue in shown}, LOOK_FAILED).items():
        scan = Scan(site, [queue], Filter((State.FAILED,)), look=share)
        async for seen in scan.each():
            kind = kind_of(seen.snapshot.notes.error)
            groups.setdefault(kind, _Group()).add(seen, kind)
        looked += scan.looked
    ordered = sorted(groups.items(), key=lambda each: -each[1].queues.total())
    return {
        "groups": [group.report(kind) for kind, group in ordered],
        "looked": looked,
        "total": sum(counts.values()),
        "queues": names,
        "left_out": [queue for queue in counts if queue not in shown],
    }


def _shares(sizes: Mapping[str, int], budget: int) -> dict[str, int]:
    """As much for each as for the others; what one does not need, those with more have."""
    shares: dict[str, int] = {}
    for queue in sorted(sizes, key=sizes.__getitem__):
        shares[queue] = min(sizes[queue], budget // (len(sizes) - len(shares)))
        budget -= shares[queue]
    return shares
