"""One server and prefix, as commands ask them: what queues and workers there are."""

from __future__ import annotations

from collections.abc import Sequence

from bide import sync
from bide.cli.group import did_you_mean
from bide.connection import resolve_prefix
from bide.errors import BideError
from bide.ids import check_name
from bide.keys import keys_of
from bide.ops import holders, inspect, registry
from bide.ops.inspect import Counts
from bide.ops.registry import WorkerSeen
from bide.queue import Queue


class NotFound(BideError, LookupError):
    """What was named is not there: exit code 3."""


class Site:
    """A server and a prefix."""

    def __init__(self, url: str | None, prefix: str | None) -> None:
        """Set up; nothing is sent yet.

        Raises:
            UsageError: the URL or the prefix cannot be meant.
        """
        self.client = sync.Client(url, patience=0)
        self.where = self.client.where
        self.prefix = check_name(resolve_prefix(prefix), "prefix")
        self._everywhere = keys_of(None, self.prefix)
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """A queue by name, whether it was ever used or not."""
        if name not in self._queues:
            self._queues[name] = Queue(name, url=self.client.url, prefix=self.prefix, patience=0)
        return self._queues[name]

    def queues(self) -> list[str]:
        """The names of all queues that were ever used."""
        return self.client.run(registry.queues(self._everywhere))

    def known(self, names: Sequence[str]) -> list[str]:
        """Those names, without repeats, or all queues there are if none is given.

        Raises:
            NotFound: a queue of that name was never used.
        """
        there = self.queues()
        for name in names:
            check_name(name, "queue name")
            if name not in there:
                end = did_you_mean(name, there) or (
                    f"; there are {', '.join(there)}." if there else "; no queue has been used yet."
                )
                raise NotFound(f"There is no queue {name!r} on {self.where}{end}")
        return list(dict.fromkeys(names)) or there

    def workers(self) -> list[WorkerSeen]:
        """The workers that live or hold a job, with what they run now."""
        seen = self.client.run(registry.workers(self._everywhere))
        return holders.tell(seen, self.client.attempt_many(holders.ask(seen, self.prefix)))

    def stop(self, names: Sequence[str]) -> None:
        """Ask workers to stop.

        Raises:
            NotFound: one has stopped in the meantime.
        """
        words = self.client.run(registry.stop(self._everywhere, names))
        for name, word in zip(names, words, strict=True):
            if word == "gone":
                raise NotFound(f"The worker {name!r} has stopped already.")

    def counts(self, names: Sequence[str]) -> dict[str, Counts]:
        """How many jobs are in each state, by queue."""
        commands = [inspect.counts(keys_of(name, self.prefix)) for name in names]
        return dict(zip(names, self.client.run_many(commands), strict=True))
