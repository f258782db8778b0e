"""One server and prefix, as commands ask them: what queues and workers there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgspec

from bide.client import aio, blocking
from bide.client.coalesce import PerLoop, ReadThroughCache
from bide.client.url import resolve_prefix
from bide.errors import BideError, UsageError
from bide.model.ids import check_name, short_id
from bide.model.job import Snapshot
from bide.model.payload.signature import Signature
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import MOST_DOING, WorkerInfo
from bide.protocol.keys import Keys, keys_of
from bide.queue import Queue
from bide.tasks.task import signature_of


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: `; did you mean 'jobs'?`, or nothing where nothing is near."""
    near = get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(repr(short_id(one)) for one in near)}?" if near else ""


class NotFound(BideError, LookupError):
    """What was named is not there: exit code 3."""


class Site:
    """A server and a prefix."""

    def __init__(self, url: str | None, prefix: str | None) -> None:
        """Set up; nothing is sent yet."""
        self.client = blocking.Client(url, retry_for=0)
        self.where = self.client.where
        self.prefix = check_name(resolve_prefix(prefix), "prefix")
        self._everywhere = keys_of(None, self.prefix)
        self._queues: dict[str, Queue] = {}

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return keys_of(queue, self.prefix)

    def queue(self, name: str) -> Queue:
        """A queue by name, whether it was ever used or not."""
        if name not in self._queues:
            self._queues[name] = Queue(name, url=self.client.url, prefix=self.prefix, retry_for=0)
        return self._queues[name]

    def queues(self) -> list[str]:
        """The names of all queues that were ever used."""
        return self.client.run(queue_commands.queues(self._everywhere))

    def known(self, names: Sequence[str]) -> list[str]:
        """Those names, without repeats, or all queues there are if none is given."""
        there = self.queues()
        for name in names:
            check_name(name, "queue name")
            if name not in there:
                end = did_you_mean(name, there) or (
                    f"; there are {', '.join(there)}." if there else "; no queue has been used yet."
                )
                raise NotFound(f"There is no queue {name!r} on {self.where}{end}")
        return list(dict.fromkeys(names)) or there

    def workers(self) -> list[WorkerInfo]:
        """The workers that live or hold a job, with what they run now."""
        seen = self.client.run(queue_commands.workers(self._everywhere))
        return queue_commands.tell(
            seen, self.client.attempt_many(queue_commands.ask(seen, self.prefix))
        )

    def stop(self, names: Sequence[str]) -> None:
        """Ask workers to stop."""
        words = self.client.run(queue_commands.worker_stop(self._everywhere, names))
        for name, word in zip(names, words, strict=True):
            if word == "gone":
                raise NotFound(f"The worker {short_id(name)!r} has stopped already.")

    def counts(self, names: Sequence[str]) -> dict[str, QueueStats]:
        """How many jobs are in each state, by queue."""
        commands = [job_commands.counts(keys_of(name, self.prefix)) for name in names]
        return dict(zip(names, self.client.run_many(commands), strict=True))


Mask = Callable[[str, str, Any], Any]
"""From a task's name, what it is (`args`, `kwargs`, `meta`, `result`, `data`) and the value: what
is shown in its place, as JSON can hold it."""

HIDDEN: Final = "•••"

_SECRET: Final = re.compile(
    "passw|passphrase|pwd|secret|token|authorization|bearer|credential|cookie|session"
    "|(api|access|private|signing|encryption)key|cvv|cvc|cardn(umber|o)"
)
_SHORT: Final = re.compile(r"(?:^|[\W_])(?:pass|auth|jwt|otp)$", re.IGNORECASE)
"""What is a secret's name only where it stands by itself, at the end: `db_pass`, not `compass`."""
_BETWEEN: Final = re.compile(r"[\W_]+")
_DEEPEST: Final = 50
_HOLDERS: Final = (ModuleType, type)
"""What has functions of its own."""


def mask_secrets(task: str, kind: str, value: Any) -> Any:
    """What holds unless told otherwise: values whose name sounds like a secret's are hidden.

    Arguments by position have the names of the task's parameters, where this process has its
    function already; nothing is imported for it.
    """
    if kind == "args" and isinstance(value, list | tuple):
        takes = _signature(task)
        if takes is not None:
            return [_under(takes.position(i), each, _DEEPEST) for i, each in enumerate(value)]
    return _masked(value, _DEEPEST)


def _under(name: str, value: Any, depth: int) -> Any:
    plain = _BETWEEN.sub("", name).lower()  # `X-Api-Key`, `api_key` and `apiKey` are alike
    return HIDDEN if _SECRET.search(plain) or _SHORT.search(name) else _masked(value, depth)


def _masked(value: Any, depth: int) -> Any:
    if depth == 0:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _under(str(key), each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, depth - 1) for each in value]
    return value


def _signature(task: str) -> Signature | None:
    """What a task takes, as far as this process knows.

    Whatever a payload names, nothing is imported, and no code of a module runs.
    """
    module, _, path = task.partition(":")
    holder: Any = None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        holder, found = found, vars(found).get(name) if isinstance(found, _HOLDERS) else None
    if isinstance(found, staticmethod | classmethod):
        found = found.__get__(None, holder)
    is_known = isinstance(found, FunctionType | MethodType)
    return signature_of(task, task) or (signature_of(found, task) if is_known else None)


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


class AsyncSite:
    """A server and a prefix; of it all queues, or some."""

    def __init__(
        self, url: str | None, prefix: str | None, queues: Sequence[str] | None, mask: Mask
    ) -> None:
        """Set up; nothing is sent yet."""
        self.client: Final = aio.AsyncClient(url, retry_for=PATIENCE)
        self.where: Final = self.client.where
        self.prefix: Final = check_name(resolve_prefix(prefix), "prefix")
        self.mask: Final = mask
        self._only = None if queues is None else {check_name(q, "queue name") for q in queues}
        self._everywhere = keys_of(None, self.prefix)
        self._ahead = timedelta()
        self.recent: Final = PerLoop(lambda: ReadThroughCache[Any](0.0, rest_after))

    @property
    def now(self) -> datetime:
        """The server's time, as far as it has told: by its clock jobs are due."""
        return datetime.now(UTC) + self._ahead

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return keys_of(queue, self.prefix)

    async def queues(self) -> list[str]:
        """The names of the queues that were ever used, and are shown."""
        names = await self.client.run(queue_commands.queues(self._everywhere))
        return [name for name in names if self._only is None or name in self._only]

    async def known(self, name: str) -> list[str]:
        """The queue of that name; all of them for none."""
        there = await self.queues()
        if not name:
            return there
        if name not in there:
            raise NotFound(f"There is no queue {name!r} here; it appears with its first job.")
        return [name]

    async def one(self, name: str) -> str:
        """The queue of that name."""
        if not name:
            raise UsageError("Which queue? Give its name as q=.")
        (found,) = await self.known(name)
        return found

    async def counts(self, names: Sequence[str]) -> dict[str, QueueStats]:
        """How many jobs are in each state, by queue."""
        commands = [job_commands.counts(self.keys(name)) for name in names]
        counts = dict(zip(names, await self.client.run_many(commands), strict=True))
        if counts:
            self._ahead = max(each.now for each in counts.values()) - datetime.now(UTC)
        return counts

    async def workers(self, jobs: int = MOST_DOING) -> list[WorkerInfo]:
        """The workers that live or hold a job, and serve what is shown; names `jobs` of each."""
        seen = await self.client.run(queue_commands.workers(self._everywhere))
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


def largest(queues: Sequence[str], most: int, size: Callable[[str], int]) -> list[str]:
    """Those of the queues that are largest, in the order in which they came: colours stay."""
    among = set(sorted(queues, key=lambda queue: -size(queue))[:most])
    return [queue for queue in queues if queue in among]
