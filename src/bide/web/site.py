"""One server and prefix, as the page asks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from bide import aio
from bide.cli.site import NotFound
from bide.connection import resolve_prefix
from bide.errors import UsageError
from bide.ids import check_name
from bide.job import Snapshot
from bide.keys import Keys, keys_of
from bide.loops import PerLoop, Recent
from bide.ops import holders, inspect, registry
from bide.ops.inspect import Counts
from bide.ops.registry import MOST_DOING, WorkerSeen
from bide.web.masking import Mask

PATIENCE: Final = 2.0
"""Seconds for which a call is repeated when the connection breaks: someone waits for the page."""

_REST: Final = 10
"""A page is read again after so many times what reading it took: however dear it is, however many
show it, however often something changes, one is a tenth of a processor's work at most."""
_LONGEST_REST: Final = 60.0
"""Seconds."""


def rest_after(took: float) -> float:
    """Seconds for which pages that refresh themselves share what one of them has read."""
    return min(_REST * took, _LONGEST_REST)


class Site:
    """A server and a prefix; of it all queues, or some."""

    def __init__(
        self, url: str | None, prefix: str | None, queues: Sequence[str] | None, mask: Mask
    ) -> None:
        """Set up; nothing is sent yet.

        Raises:
            UsageError: the URL, the prefix or a queue's name cannot be meant.
        """
        self.client: Final = aio.Client(url, patience=PATIENCE)
        self.where: Final = self.client.where
        self.prefix: Final = check_name(resolve_prefix(prefix), "prefix")
        self.mask: Final = mask
        self._only = None if queues is None else {check_name(q, "queue name") for q in queues}
        self._everywhere = keys_of(None, self.prefix)
        self._ahead = timedelta()
        self.recent: Final = PerLoop(lambda: Recent[Any](0.0, rest_after))

    @property
    def now(self) -> datetime:
        """The server's time, as far as it has told: by its clock jobs are due."""
        return datetime.now(UTC) + self._ahead

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return keys_of(queue, self.prefix)

    async def queues(self) -> list[str]:
        """The names of the queues that were ever used, and are shown."""
        names = await self.client.run(registry.queues(self._everywhere))
        return [name for name in names if self._only is None or name in self._only]

    async def known(self, name: str) -> list[str]:
        """The queue of that name; all of them for none.

        Raises:
            NotFound: there is none, or it is not shown.
        """
        there = await self.queues()
        if not name:
            return there
        if name not in there:
            raise NotFound(f"There is no queue {name!r} here; it appears with its first job.")
        return [name]

    async def one(self, name: str) -> str:
        """The queue of that name.

        Raises:
            UsageError: no name was given.
            NotFound: there is none, or it is not shown.
        """
        if not name:
            raise UsageError("Which queue? Give its name as q=.")
        (found,) = await self.known(name)
        return found

    async def counts(self, names: Sequence[str]) -> dict[str, Counts]:
        """How many jobs are in each state, by queue."""
        commands = [inspect.counts(self.keys(name)) for name in names]
        counts = dict(zip(names, await self.client.run_many(commands), strict=True))
        if counts:
            self._ahead = max(each.now for each in counts.values()) - datetime.now(UTC)
        return counts

    async def workers(self, jobs: int = MOST_DOING) -> list[WorkerSeen]:
        """The workers that live or hold a job, and serve what is shown; with what they run now.

        Args:
            jobs: how many jobs of each worker to name.
        """
        seen = await self.client.run(registry.workers(self._everywhere))
        held = await self.client.attempt_many(holders.ask(seen, self.prefix, jobs))
        seen = holders.tell(seen, held)
        if self._only is None:
            return seen
        return [self._of_shown(one) for one in seen if self._only.intersection(one.about.queues)]

    def _of_shown(self, worker: WorkerSeen) -> WorkerSeen:
        """A worker without what it does for queues that are not shown."""
        only, about = self._only or (), worker.about
        shown = msgspec.structs.replace(
            about,
            queues=[queue for queue in about.queues if queue in only],
            doing=[job for job in about.doing if job.queue in only],
            unserved=[],
        )
        return worker._replace(about=shown)

    async def fetch(self, queue: str, ids: Sequence[str]) -> list[Snapshot]:
        """The jobs of those ids that are there."""
        pages = await self.client.run_many(inspect.fetch_many(self.keys(queue), ids))
        return [snapshot for page in pages for snapshot in page if snapshot is not None]


def largest(queues: Sequence[str], most: int, size: Callable[[str], int]) -> list[str]:
    """Those of the queues that are largest, in the order in which they came: colours stay."""
    among = set(sorted(queues, key=lambda queue: -size(queue))[:most])
    return [queue for queue in queues if queue in among]
