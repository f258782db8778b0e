"""A server and a prefix, as views and commands ask them: its queues, jobs, schedules and workers.

`AsyncSite` is for the dashboard, its JSON and `bide top`. `make format` writes `_sync.py` from this
module, for all other commands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from bide.client import aio
from bide.client.url import resolve_prefix
from bide.errors import UsageError
from bide.model.ids import check_name
from bide.model.job import LISTABLE, Snapshot, State
from bide.protocol.command import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import MOST_DOING, WorkerInfo
from bide.protocol.commands.schedules import Page, read_page
from bide.protocol.keys import Keys, keys_of
from bide.queue import AsyncQueue
from bide.queue.explain import Read, Reason, explain
from bide.queue.schedules import by_name
from bide.views.job import FoundJob, Mask, mask_secrets
from bide.views.params import NotFound
from bide.views.search import LOOK, MOVING, Filter, Paging, Place

T = TypeVar("T")

PATIENCE: Final = 2.0
"""Seconds for which a call is repeated when the connection breaks: someone waits for the page."""


def _no_queue_here(name: str, there: Sequence[str], where: str) -> str:
    return f"There is no queue {name!r} here; it appears with its first job."


class AsyncSite:
    """A server and a prefix; of it all queues, or some."""

    def __init__(
        self,
        url: str | None,
        prefix: str | None,
        queues: Sequence[str] | None = None,
        mask: Mask = mask_secrets,
        retry_for: float = PATIENCE,
        no_queue: Callable[[str, Sequence[str], str], str] = _no_queue_here,
    ) -> None:
        """Set up; nothing is sent yet.

        `no_queue` writes the sentence for a name that is not among those of the queues there are.
        """
        self.client = aio.AsyncClient(url, retry_for=retry_for)
        self.where: Final = self.client.where
        self.prefix: Final = check_name(resolve_prefix(prefix), "prefix")
        self.mask: Final = mask
        self._retry_for = retry_for
        self._no_queue = no_queue
        self._queues: dict[str, AsyncQueue] = {}
        self._only = None if queues is None else {check_name(q, "queue name") for q in queues}
        self.everywhere: Final = keys_of(None, self.prefix)
        """The keys that are no queue's own."""
        self._ahead = timedelta()

    @property
    def now(self) -> datetime:
        """The server's time, as far as it is known: by its clock jobs are due."""
        return datetime.now(UTC) + self._ahead

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return keys_of(queue, self.prefix)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by name, whether it was ever used or not."""
        if name not in self._queues:
            self._queues[name] = AsyncQueue(
                name, url=self.client.url, prefix=self.prefix, retry_for=self._retry_for
            )
        return self._queues[name]

    async def queues(self) -> list[str]:
        """The names of the queues that were ever used, and are shown."""
        names = await self.client.run(queue_commands.queues(self.everywhere))
        return [name for name in names if self._only is None or name in self._only]

    async def known(self, names: Iterable[str]) -> list[str]:
        """Those names, each once; all queues if none is given. Each must exist and be shown."""
        there = await self.queues()
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in there:
                raise NotFound(self._no_queue(name, there, self.where))
        return wanted or there

    async def one(self, name: str) -> str:
        """The queue of that name, which must exist and be shown."""
        if not name:
            raise UsageError("Which queue? Give its name as q=.")
        (found,) = await self.known([name])
        return found

    async def each(
        self, queues: Iterable[str], command: Callable[[Keys], Command[T]]
    ) -> dict[str, T]:
        """By queue, what a command replies; in one round trip."""
        names = list(queues)
        replies = await self.client.run_many([command(self.keys(name)) for name in names])
        return dict(zip(names, replies, strict=True))

    async def counts(self, queues: Iterable[str]) -> dict[str, QueueStats]:
        """How many jobs are in each state, by queue."""
        counts = await self.each(queues, job_commands.counts)
        if counts:
            self._ahead = max(each.now for each in counts.values()) - datetime.now(UTC)
        return counts

    async def workers(self, jobs: int = MOST_DOING) -> list[WorkerInfo]:
        """The workers that live or hold a job, and serve what is shown; names `jobs` of each."""
        seen = await self.client.run(queue_commands.workers(self.everywhere))
        held = await self.client.attempt_many(queue_commands.ask(seen, self.prefix, jobs))
        seen = queue_commands.tell(seen, held)
        if self._only is None:
            return seen
        return [self._of_shown(one) for one in seen if self._only.intersection(one.about.queues)]

    def _of_shown(self, worker: WorkerInfo) -> WorkerInfo:
        """A worker without what it does for queues that are not shown."""
        only, about = self._only or (), worker.about
        shown = msgspec.structs.replace(
            about,
            queues=[queue for queue in about.queues if queue in only],
            doing=[job for job in about.doing if job.queue in only],
            unknown_tasks=[],
        )
        return worker._replace(about=shown)

    async def fetch(self, queue: str, ids: Sequence[str]) -> list[Snapshot]:
        """The jobs of those ids that are there."""
        pages = await self.client.run_many(job_commands.fetch_many(self.keys(queue), ids))
        return [snapshot for page in pages for snapshot in page if snapshot is not None]

    async def next_due(
        self, queues: Sequence[str], ids: Iterable[tuple[int, str, str]]
    ) -> list[FoundJob]:
        """Return the jobs that exist, of moments, ids and queues, in the order of the moments."""
        found = [
            FoundJob(name, snapshot)
            for name in queues
            if (some := [id for _, id, queue in ids if queue == name])
            for snapshot in await self.fetch(name, some)
        ]
        return sorted(found, key=lambda seen: (seen.snapshot.due_us, seen.id))

    async def reasons(self, found: Sequence[FoundJob]) -> list[list[Reason]]:
        """Why each has not run; what all of them need is read once. Nothing for those that have."""
        pending = {seen.queue for seen in found if seen.has_not_begun}
        if not pending:
            return [[] for _ in found]
        counts, workers = await self.counts(sorted(pending)), await self.workers()
        return [
            explain(Read(seen.queue, seen.snapshot, counts[seen.queue], workers))
            if seen.has_not_begun
            else []
            for seen in found
        ]

    async def schedules(self, queue: str, most: int | None = None) -> Page:
        """The schedules of a queue, `most` at most."""
        pages = [await self.client.run(read_page(self.keys(queue), "0"))]
        while pages[-1].cursor != "0" and (most is None or len(by_name(pages)) < most):
            pages.append(await self.client.run(read_page(self.keys(queue), pages[-1].cursor)))
        return pages[-1]._replace(schedules=by_name(pages)[:most])


_READ: Final = 200
"""Jobs read per round trip."""


@dataclass
class AsyncScan:
    """How far somebody has looked for the jobs that fit a filter."""

    site: AsyncSite
    queues: Sequence[str]
    wanted: Filter
    look: int = LOOK
    """How many jobs to look at, at most."""
    after: str = ""
    """The position of an earlier scan; empty to begin. Otherwise `UsageError` is raised."""
    page: int = 0
    """Jobs read per round trip; 0 for `_READ`."""
    tick: Callable[[int], None] | None = None
    """Called with the number of jobs of each page that was read."""
    looked: int = 0
    """How many jobs were looked at, in earlier scans too."""
    total: int = 0
    """How many there are to look at, from the beginning."""
    states: dict[str, int] = field(default_factory=dict)
    """How many jobs of the queues are in each state."""
    next: Place | None = None
    """The position to continue from; None at the end."""
    _behind: tuple[str, ...] = ()

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

    async def ids(self) -> AsyncIterator[tuple[State, str, str]]:
        """State, queue and id of all in the states of the filter; no job is read."""
        async for state, queue, fresh in self._pages():
            self.looked += len(fresh)
            for id in fresh:
                yield state, queue, id

    async def _places(self) -> AsyncIterator[tuple[FoundJob, Place]]:
        """Jobs with where each stands."""
        async for state, queue, fresh in self._pages():
            by_id = {one.id: one for one in await self.site.fetch(queue, [*fresh])}
            for id, at in fresh.items():
                place = Place(at, self.looked, state, queue, self._behind)
                self.looked += 1
                self._behind = (id,) if state in MOVING else ()
                if id in by_id:
                    yield FoundJob(queue, by_id[id]), place

    async def _pages(self) -> AsyncIterator[tuple[State, str, dict[str, int]]]:
        """State, queue, and ids with their places in the list, a page at a time, each id once."""
        lists = [(state, queue) for state in self.wanted.states for queue in self.queues]
        begin = Place.read(self.after, lists)
        counts = await self.site.counts(self.queues)
        self.states = {
            state: sum(getattr(each, state) for each in counts.values()) for state in LISTABLE
        }
        self.total = sum(self.states[state] for state in self.wanted.states)
        self.looked, most = begin.looked, begin.looked + self.look
        paging, self._behind = Paging(begin.start, begin.behind), begin.behind
        for state, queue in lists[lists.index((begin.state, begin.queue)) :] if lists else []:
            while getattr(counts[queue], state) and not paging.is_over:
                if self.looked >= most:
                    self.next = Place(paging.start, self.looked, state, queue, self._behind)
                    return
                start, size = paging.page(min(self.page or _READ, most - self.looked))
                command = job_commands.listing(self.site.keys(queue), state, start, size)
                ids = await self.site.client.run(command)
                fresh = paging.read(ids)
                if self.tick is not None:
                    self.tick(len(fresh))
                yield state, queue, fresh
            paging, self._behind = Paging(), ()
