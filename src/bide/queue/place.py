"""Where a queue is: server, prefix and clock, found out when they are first needed.

A queue is usually made when a module is imported, before a program or a test has set the
environment; and tests move every queue of a process to a server of their own (`bide.config`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from bide import config
from bide.connection import resolve_prefix, resolve_url
from bide.durability import Durability, Kinds
from bide.job import Snapshot
from bide.keys import Keys, keys_of
from bide.ops.produce import Prepared, Receipt, wanted
from bide.payload.signing import Seal
from bide.script import SERVER_CLOCK

if TYPE_CHECKING:
    from bide import aio, sync

REST: Final = 30.0
"""Seconds before a queue that could not be made known is tried again: a try may take five."""

C = TypeVar("C")
"""The client: blocking, or awaited."""


Taken = list[tuple[Receipt, Snapshot]]
"""What came of each job that was enqueued, and how it is now."""


class StandIn(Protocol):
    """What queues use in place of a server (`bide.testing.eager`)."""

    def blocking(self, queue: str) -> sync.Client:
        """What answers a blocking queue of this name."""
        raise NotImplementedError

    def awaited(self, queue: str) -> aio.Client:
        """What answers an awaited queue of this name."""
        raise NotImplementedError

    def enqueue(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from a blocking queue; whatever it raises reaches the caller."""
        raise NotImplementedError

    async def enqueue_async(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from an awaited queue."""
        raise NotImplementedError


class Place(Generic[C]):
    """One server, prefix and clock, with a client of that server."""

    def __init__(
        self, queue: str, url: str | None, prefix: str | None, make: Callable[[str, str], C]
    ) -> None:
        """Find out what holds now.

        Args:
            queue: the queue's name.
            url: the server, if the queue was given one.
            prefix: of the keys, if the queue was given one.
            make: makes a client from a URL and a clock.

        Raises:
            UsageError: a name, the URL or the signing keys cannot be meant.
        """
        self.generation: Final = config.generation
        self.url: Final = resolve_url(url)
        self.prefix: Final = resolve_prefix(prefix)
        self.clock: Final = config.overridden().clock or SERVER_CLOCK
        self.stand_in: Final[StandIn | None] = config.overridden().stand_in
        self.keys: Final[Keys] = keys_of(queue, self.prefix)
        self.everywhere: Final[Keys] = keys_of(None, self.prefix)
        self.seal: Final = Seal(config.signing_keys(), self.keys)
        self.client: Final = make(self.url, self.clock)
        self.known = False
        """Whether the queue was made known to the server."""
        self._makes_known_at = 0.0
        self.confirms: set[Durability] = set()
        """What the server has confirmed, and not refused or failed to confirm since."""

    @property
    def makes_known(self) -> bool:
        """Whether the next enqueue is to make the queue known; one that did not, rests a while.

        The list of queues may be on another node than the queue, and that may be down for long.
        """
        return not self.known and time.monotonic() >= self._makes_known_at

    def made_known(self, succeeded: bool) -> None:
        """Note what came of it."""
        self.known = succeeded
        self._makes_known_at = time.monotonic() + REST

    def kinds(self, jobs: Sequence[Prepared]) -> Kinds:
        """What enqueueing these jobs has to wait for.

        What a test's server has (`bide.testing`) is lost with it, whoever waits.
        """
        return wanted(jobs) if self.clock == SERVER_CLOCK else ()

    @property
    def holds(self) -> bool:
        """Whether nothing has changed since."""
        return self.generation == config.generation
