"""The site that views and commands read: queues, jobs, schedules and workers of one prefix.

`AsyncSite` is for the dashboard, its JSON and `bide top`. `make format` writes `_sync.py` from this
module, for all other commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from bide.client import aio, config
from bide.client.url import resolve_prefix
from bide.errors import UsageError
from bide.model.ids import check_name, short_id
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.queues import MOST_DOING, WorkerInfo
from bide.protocol.commands.schedules import SchedulePage, read_page
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SERVER_CLOCK
from bide.queue import AsyncQueue
from bide.queue._async.scan import AsyncReader
from bide.queue.job_view import Read, Reason, explain
from bide.queue.schedules import by_name
from bide.queue.select import FoundJob, Mask
from bide.views.job import mask_secrets
from bide.views.params import NotFound
from bide.worker.relay import OutboxLike

PATIENCE: Final = 2.0
"""Seconds for which a call is retried after a connection error; short, because a user waits."""


def _no_queue_here(name: str, there: Sequence[str], where: str) -> str:
    return f"There is no queue {name!r} here; it appears with its first job."


class AsyncSite(AsyncReader):
    """A server and a prefix, with all queues or some of them."""

    def __init__(
        self,
        url: str | None,
        prefix: str | None,
        queues: Sequence[str] | None = None,
        mask: Mask = mask_secrets,
        retry_for: float = PATIENCE,
        no_queue: Callable[[str, Sequence[str], str], str] = _no_queue_here,
        search_mask: Mask | None = None,
    ) -> None:
        """Set up; nothing is sent yet.

        `no_queue` returns the sentence for a queue that does not exist.
        """
        clock = config.overridden().clock or SERVER_CLOCK
        client = aio.AsyncClient(url, retry_for=retry_for, clock=clock)
        prefix = check_name(resolve_prefix(prefix), "prefix")
        super().__init__(client, prefix, mask, search_mask)
        self.where: Final = client.where
        self._retry_for = retry_for
        self._no_queue = no_queue
        self._queues: dict[str, AsyncQueue] = {}
        self.outboxes: dict[str, OutboxLike] = {}
        """The outboxes by name; only the dashboard shows them."""
        self._only = None if queues is None else {check_name(q, "queue name") for q in queues}
        self.everywhere: Final = keys_of(None, self.prefix)
        """The keys that belong to no queue."""

    def queue(self, name: str) -> AsyncQueue:
        """Return a queue by name, even if it was never used."""
        if name not in self._queues:
            self._queues[name] = AsyncQueue(
                name, url=self.client.url, prefix=self.prefix, retry_for=self._retry_for
            )
        return self._queues[name]

    async def queues(self) -> list[str]:
        """Return the names of the queues that were ever used and are shown."""
        names = await self.client.run(queue_commands.queues(self.everywhere))
        return [name for name in names if self._only is None or name in self._only]

    async def known(self, names: Iterable[str]) -> list[str]:
        """Check that queues exist and are shown; return each name once, or all queues for none."""
        there = await self.queues()
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in there:
                raise NotFound(self._no_queue(name, there, self.where))
        return wanted or there

    async def one(self, name: str) -> str:
        """Return the queue of this name, which must exist and be shown."""
        if not name:
            raise UsageError("Which queue? Give its name as q=.")
        (found,) = await self.known([name])
        return found

    async def workers(self, jobs: int = MOST_DOING) -> list[WorkerInfo]:
        """Return the workers of shown queues that live or hold a job, with `jobs` jobs of each."""
        seen = await self.client.run(queue_commands.workers(self.everywhere))
        held = await self.client.attempt_many(queue_commands.ask(seen, self.prefix, jobs))
        seen = queue_commands.tell(seen, held)
        if self._only is None:
            return seen
        return [self._of_shown(one) for one in seen if self._only.intersection(one.about.queues)]

    async def pause_worker(self, name: str, paused: bool) -> None:
        """Ask a worker to pause or to resume.

        Raises:
            NotFound: there is no such live worker, or it serves no shown queue.
            UsageError: it also serves queues that are not shown.
        """
        seen = await self.client.run(queue_commands.workers(self.everywhere))
        served = {one.name: {*one.about.queues} for one in seen}.get(name)
        if served is None or not (self._only is None or served & self._only):
            raise NotFound(f"There is no worker {short_id(name)!r}; it may have stopped.")
        if self._only is not None and served - self._only:
            raise UsageError(
                f"The worker {short_id(name)!r} also serves queues that are not shown here; use "
                "`bide workers pause` or `resume`."
            )
        (word,) = await self.client.run(
            queue_commands.worker_pause(self.everywhere, [name], paused)
        )
        if word == "gone":
            raise NotFound(f"The worker {short_id(name)!r} has stopped already.")

    def _of_shown(self, worker: WorkerInfo) -> WorkerInfo:
        """Return a worker without its jobs of queues that are not shown."""
        only, about = self._only or (), worker.about
        shown = msgspec.structs.replace(
            about,
            queues=[queue for queue in about.queues if queue in only],
            doing=[job for job in about.doing if job.queue in only],
            unknown_tasks=[],
            tasks=[],
        )
        return worker._replace(about=shown)

    async def next_due(
        self, queues: Sequence[str], ids: Iterable[tuple[int, str, str]]
    ) -> list[FoundJob]:
        """Return the existing jobs of these moments, ids and queues, ordered by moment."""
        found = [
            FoundJob(name, snapshot)
            for name in queues
            if (some := [id for _, id, queue in ids if queue == name])
            for snapshot in await self.fetch(name, some)
        ]
        return sorted(found, key=lambda seen: (seen.snapshot.due_us, seen.id))

    async def reasons(self, found: Sequence[FoundJob]) -> list[list[Reason]]:
        """Return why each job does not run, with shared reads; nothing for jobs that have run."""
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

    async def schedules(self, queue: str, most: int | None = None) -> SchedulePage:
        """Return up to `most` schedules of a queue."""
        pages = [await self.client.run(read_page(self.keys(queue), "0"))]
        while pages[-1].cursor != "0" and (most is None or len(by_name(pages)) < most):
            pages.append(await self.client.run(read_page(self.keys(queue), pages[-1].cursor)))
        return pages[-1]._replace(schedules=by_name(pages)[:most])
