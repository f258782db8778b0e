"""Where a queue is: server, prefix and clock, found out when they are first needed.

A queue is usually made when a module is imported, before a program or a test has set the
environment; and tests move every queue of a process to a server of their own
(`bide.client.config`).

A test that has not done so is refused a server by the plugin of pytest (`_bide_pytest`), unless the
test itself names that server.

A task notes its queue here when it is made. Where that queue is (server and prefix) is found out
when a worker asks: a module is often imported before the environment is set.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from bide.client import config
from bide.client.url import resolve_prefix, resolve_url
from bide.errors import UsageError
from bide.model.job import Snapshot
from bide.model.options import Durability, Kinds
from bide.model.payload.signing import Seal
from bide.protocol.commands.enqueue import Prepared, Receipt, wanted
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK

if TYPE_CHECKING:
    from bide.client import aio
    from bide.client import blocking as sync

REST: Final = 30.0
"""Seconds before a queue that could not be made known is tried again: a try may take five."""

KNOWN_FOR: Final = 60.0
"""Seconds after which a queue is made known again, because somebody may have had it forgotten."""

C = TypeVar("C")
"""The client: blocking, or awaited."""


Taken = list[tuple[Receipt, Snapshot]]
"""What came of each job that was enqueued, and how it is now."""


class FakeServer(Protocol):
    """What queues use in place of a server (`bide.testing.eager`)."""

    def blocking(self, queue: str) -> sync.Client:
        """What answers a blocking queue of this name."""
        raise NotImplementedError

    def awaited(self, queue: str) -> aio.AsyncClient:
        """What answers an awaited queue of this name."""
        raise NotImplementedError

    def enqueue(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from a blocking queue; whatever it raises reaches the caller."""
        raise NotImplementedError

    async def enqueue_async(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from an awaited queue."""
        raise NotImplementedError


class Permit:
    """Whether a server may be used: pytest's plugin is asked, where pytest has loaded it."""

    def __init__(self, url: str | None) -> None:
        """Find out whether the plugin has to be asked.

        Args:
            url: the server, if a queue or a worker is made with one. What a test or a fixture makes
                with a URL is allowed; what a module makes while it is imported is not the test's.
        """
        plugin = sys.modules.get("_bide_pytest")
        if plugin is not None and url is not None and plugin.runs and not _is_importing():
            plugin = None
        self._plugin = plugin

    @property
    def is_given(self) -> bool:
        """Whether nobody has to be asked."""
        return self._plugin is None

    def check(self, who: str, url: str) -> None:
        """Ask.

        Args:
            who: what is about to use the server.
            url: the server.

        Raises:
            UsageError: a test runs that may not use it; the message says what to do.
        """
        if self._plugin is not None and not _is_moved():
            refusal = self._plugin.refusal(who, url)
            if refusal:
                raise UsageError(refusal)


def _is_moved() -> bool:
    """Whether a test has moved all queues to a server of its own, or does without one."""
    held = config.overridden()
    return held.url is not None or held.fake_server is not None


def _is_importing() -> bool:
    """Whether the caller runs because a module is being imported."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>" and _is_imported(frame.f_globals):
            return True
    return False


def _is_imported(module: Mapping[str, Any]) -> bool:
    """Whether these are the globals of an imported module, and not of a program or of a text."""
    return module.get("__spec__") is not None and module["__name__"] != "__main__"


class ServerBinding(Generic[C]):
    """One server, prefix and clock, with a client of that server."""

    def __init__(
        self,
        queue: str,
        url: str | None,
        prefix: str | None,
        make: Callable[[str, str], C],
        permit: Permit,
    ) -> None:
        """Find out what holds now.

        Args:
            queue: the queue's name.
            url: the server, if the queue was given one.
            prefix: of the keys, if the queue was given one.
            make: makes a client from a URL and a clock.
            permit: whether the server may be used.

        Raises:
            UsageError: a name, the URL or the signing keys cannot be meant.
        """
        self.generation: Final = config.generation
        self.url: Final = resolve_url(url)
        self.prefix: Final = resolve_prefix(prefix)
        self.clock: Final = config.overridden().clock or SERVER_CLOCK
        self.stand_in: Final[FakeServer | None] = config.overridden().fake_server
        self.keys: Final[Keys] = keys_of(queue, self.prefix)
        self.everywhere: Final[Keys] = keys_of(None, self.prefix)
        self.seal: Final = Seal(config.signing_keys(), self.keys)
        self.made: Final = make(self.url, self.clock)
        """The client, to be closed."""
        self._permit: Final = permit
        self.known = False
        """Whether the queue was made known to the server."""
        self._makes_known_at = 0.0
        self.confirms: set[Durability] = set()
        """What the server has confirmed, and not refused or failed to confirm since."""

    @property
    def client(self) -> C:
        """The client.

        Raises:
            UsageError: a test runs that may not use the server.
        """
        self.check()
        return self.made

    def check(self) -> None:
        """Raise UsageError if a test runs that may not use the server."""
        if not self._permit.is_given:
            self._permit.check(f"the queue {self.keys.queue!r}", self.url)

    @property
    def makes_known(self) -> bool:
        """Whether the next enqueue is to make the queue known; one that did not, rests a while.

        The list of queues may be on another node than the queue, and that may be down for long.
        """
        return time.monotonic() >= self._makes_known_at

    def made_known(self, succeeded: bool) -> None:
        """Note what came of it."""
        self.known = succeeded
        self._makes_known_at = time.monotonic() + (KNOWN_FOR if succeeded else REST)

    def kinds(self, jobs: Sequence[Prepared]) -> Kinds:
        """What enqueueing these jobs has to wait for.

        What a test's server has (`bide.testing`) is lost with it, whoever waits.
        """
        return wanted(jobs) if self.clock == SERVER_CLOCK else ()

    @property
    def holds(self) -> bool:
        """Whether nothing has changed since."""
        return self.generation == config.generation


class QueueHome(NamedTuple):
    """A queue, as the application has named it."""

    queue: str
    url: str | None
    """The server, if the queue was given one."""
    prefix: str | None
    """The prefix of its keys, if it was given one."""

    @property
    def server(self) -> str:
        """The URL that holds now.

        Raises:
            UsageError: it cannot be meant.
        """
        return resolve_url(self.url)

    @property
    def root(self) -> str:
        """The prefix that holds now.

        Raises:
            UsageError: the settings cannot be read.
        """
        return resolve_prefix(self.prefix)


_homes: Final[dict[QueueHome, dict[str, None]]] = {}
"""Queue -> the names of its tasks."""


def note_home(task: str, home: QueueHome) -> None:
    """Note that jobs of a task are enqueued on a queue."""
    _homes.setdefault(home, {})[task] = None


def known_homes() -> dict[QueueHome, list[str]]:
    """The queues that tasks belong to, and the names of those tasks."""
    return {home: list(tasks) for home, tasks in _homes.items()}
