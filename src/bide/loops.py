"""State for each event loop: futures and connections are of no use in another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One of something for each event loop, in whatever threads they run."""

    def __init__(
        self,
        make: Callable[[], T],
        leave: Callable[[asyncio.AbstractEventLoop, T], None] = lambda _loop, _one: None,
    ) -> None:
        """Set up.

        Args:
            make: makes one for the event loop that runs.
            leave: lets go of one whose event loop has been closed; another loop finds it so.
        """
        self._make = make
        self._leave = leave
        self._all: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    @property
    def here(self) -> T:
        """That of the event loop that runs; made when it is first asked for."""
        loop = asyncio.get_running_loop()
        found = self._all.get(loop)
        if found is None:
            self.leave_closed()
            found = self._make()
            with self._lock:
                self._all[loop] = found
        return found

    def leave_closed(self) -> None:
        """Let go of those whose event loop has been closed."""
        with self._lock:
            closed = [(loop, self._all.pop(loop)) for loop in [*self._all] if loop.is_closed()]
        for loop, one in closed:
            self._leave(loop, one)

    def take_all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """All there are, which from now on are not."""
        with self._lock:
            taken = [*self._all.items()]
            self._all.clear()
        return taken
