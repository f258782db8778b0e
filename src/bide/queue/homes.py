"""Where jobs of this process's tasks are enqueued, so that a worker can tell which it never sees.

A task notes its queue here when it is made. Where that queue is (server and prefix) is found out
when a worker asks: a module is often imported before the environment is set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bide.connection import resolve_prefix, resolve_url


class Home(NamedTuple):
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


_homes: Final[dict[Home, dict[str, None]]] = {}
"""Queue -> the names of its tasks."""


def note_home(task: str, home: Home) -> None:
    """Note that jobs of a task are enqueued on a queue."""
    _homes.setdefault(home, {})[task] = None


def known_homes() -> dict[Home, list[str]]:
    """The queues that tasks belong to, and the names of those tasks."""
    return {home: list(tasks) for home, tasks in _homes.items()}
