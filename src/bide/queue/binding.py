"""Bindings: the server, prefix and clock of a queue, resolved when they are first needed.

A queue is usually created when a module is imported, before a program or a test has set the
environment. Tests also move every queue of a process to a server of their own
(`bide.client.config`). If a test has not done so, the pytest plugin (`_bide_pytest`) refuses it a
server, unless the test itself names that server.

Each task notes its queue here when it is created. The server and prefix of that queue are resolved
when a worker asks for them.
"""

from __future__ import annotations

import sys
import time
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from bide.client import blocking, config
from bide.client.url import resolve_prefix, resolve_url
from bide.errors import UsageError
from bide.model.job import Snapshot
from bide.model.options import Durability
from bide.model.payload.signing import Seal
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK

if TYPE_CHECKING:
    from bide.client import aio
    from bide.client import blocking as sync

REST: Final = 30.0
"""Seconds after an error until the queue is registered again: each try may take 5 s."""

KNOWN_FOR: Final = 60.0
"""Seconds after which a queue is registered again, because it may have been removed meanwhile."""

C = TypeVar("C")
"""The client: blocking, or awaited."""


Taken = list[tuple[Receipt, Snapshot]]
"""A receipt and the present state for each enqueued job."""


class FakeServer(Protocol):
    """The replacement for a server in eager mode (`bide.testing.eager`)."""

    def blocking(self, queue: str) -> sync.Client:
        """Return the client of a blocking queue of this name."""
        raise NotImplementedError

    def awaited(self, queue: str) -> aio.AsyncClient:
        """Return the client of an awaited queue of this name."""
        raise NotImplementedError

    def enqueue(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from a blocking queue; its errors reach the caller."""
        raise NotImplementedError

    async def enqueue_async(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Take jobs from an awaited queue."""
        raise NotImplementedError


class Permit:
    """Whether a server may be used: bide's pytest plugin decides, if pytest has loaded it."""

    def __init__(self, url: str | None) -> None:
        """Find out whether the plugin has to be asked.

        A test or a fixture may use the URL that it gives to a queue or a worker. A URL that a
        module gives while it is imported is checked.
        """
        plugin = sys.modules.get("_bide_pytest")
        if plugin is not None and url is not None and plugin.runs and not _is_importing():
            plugin = None
        self._plugin = plugin
        self.is_given: Final = plugin is None
        """Whether use is permitted without asking the plugin."""

    def check(self, who: str, url: str) -> None:
        """Ask the plugin for `who`; raise `UsageError` if the test may not use the server."""
        if self._plugin is not None and not is_moved():
            refusal = self._plugin.refusal(who, url)
            if refusal:
                raise UsageError(refusal)


def _is_importing() -> bool:
    """Whether the caller runs because a module is being imported."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_globals
        is_imported = module.get("__spec__") is not None and module["__name__"] != "__main__"
        if frame.f_code.co_name == "<module>" and is_imported:  # not a program, or `exec`
            return True
    return False


def is_moved() -> bool:
    """Whether a test has moved all queues of the process to a server of its own."""
    held = config.overridden()
    return held.url is not None or held.fake_server is not None


class Movable(Protocol):
    """An object that an override moves to another server: a queue, or the dashboard."""

    def _leave_overridden(self) -> None:
        """Close the client of an override that has ended."""
        raise NotImplementedError


moved: Final[WeakSet[Movable]] = WeakSet()
"""The objects that an override has moved."""


def leave_overridden() -> None:
    """After an override, close the clients that were opened under it."""
    while moved:
        moved.pop()._leave_overridden()


_has_warned = False
"""Whether a blocking call on an event loop was warned of: once per process."""


def _warn_of_blocked_loop(queue: str | None) -> None:
    """Warn the caller, who is the first outside of bide, that the event loop stands still.

    In a notebook, an event loop runs all code, and nothing else needs it.
    """
    global _has_warned
    _has_warned = True
    if "ipykernel" in sys.modules:
        return
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "bide":
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"The blocking queue {queue!r} was called on an event loop, which waits for the server "
        "meanwhile; use AsyncQueue or AsyncDelayQueue there, or asyncio.to_thread().",
        RuntimeWarning,
        stacklevel=level,
    )


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
        """Resolve the present settings; `make` makes a client from a URL and a clock."""
        self.generation: Final = config.generation
        """The number of the overrides in force; the queue makes another binding when it changes."""
        self.url: Final = resolve_url(url)
        self.prefix: Final = resolve_prefix(prefix)
        self.clock: Final = config.overridden().clock or SERVER_CLOCK
        self.fake_server: Final[FakeServer | None] = config.overridden().fake_server
        self.keys: Final[Keys] = keys_of(queue, self.prefix)
        self.everywhere: Final[Keys] = keys_of(None, self.prefix)
        self.seal: Final = Seal(config.signing_keys(), self.keys)
        self.made: Final = make(self.url, self.clock)
        """The client, without the check of `client`; for `close`."""
        self._permit: Final = permit
        self._may_block_loop: Final = isinstance(self.made, blocking.Client) and not is_moved()
        self.known = False
        """Whether the queue was registered on the server."""
        self._makes_known_at = 0.0
        self.confirms: set[Durability] = set()
        """The durabilities that the server has confirmed, with no failure since."""

    @property
    def client(self) -> C:
        """The client; raises `UsageError` if the running test may not use the server."""
        if not self._permit.is_given:
            self.check()
        if self._may_block_loop and not _has_warned and _get_running_loop() is not None:
            _warn_of_blocked_loop(self.keys.queue)
        return self.made

    def check(self) -> None:
        """Raise UsageError if the running test may not use the server."""
        self._permit.check(f"the queue {self.keys.queue!r}", self.url)

    @property
    def makes_known(self) -> bool:
        """Whether the next enqueue registers the queue; after an error, this pauses.

        The list of queues may be on another node than the queue, and that node may be down.
        """
        return time.monotonic() >= self._makes_known_at

    def made_known(self, succeeded: bool) -> None:
        """Note whether the queue was registered."""
        self.known = succeeded
        self._makes_known_at = time.monotonic() + (KNOWN_FOR if succeeded else REST)


class TaskQueue(NamedTuple):
    """A queue, as the application has declared it."""

    queue: str
    url: str | None
    """The server, if the queue was given one."""
    prefix: str | None
    """The prefix of its keys, if it was given one."""

    @property
    def server(self) -> str:
        """The resolved URL."""
        return resolve_url(self.url)

    @property
    def root(self) -> str:
        """The resolved prefix."""
        return resolve_prefix(self.prefix)


_task_queues: Final[dict[TaskQueue, dict[str, None]]] = {}
"""Queue -> the names of its tasks."""


def note_task_queue(task: str, task_queue: TaskQueue) -> None:
    """Note that jobs of a task are enqueued on a queue."""
    _task_queues.setdefault(task_queue, {})[task] = None


def known_task_queues() -> dict[TaskQueue, list[str]]:
    """The queues that tasks belong to, and the names of those tasks."""
    return {task_queue: list(tasks) for task_queue, tasks in _task_queues.items()}
