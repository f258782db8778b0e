"""The relay: sends the rows that were left, round by round, until it is stopped."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

from bide.errors import BideError
from bide.logs import Log

log = Log("bide.outbox")

POLL: Final = 1.0
"""Seconds between looks at an empty table."""

LONGEST_PAUSE: Final = 5.0
"""Seconds between attempts while the server or the database is down, at most."""

SWEEP_EVERY: Final = 60.0
"""Seconds between removals of old rows of `once`."""

_FIRST_PAUSE: Final = 0.1

_HEED: Final = 0.25
"""Seconds until a relay that listens notices that it is stopped."""


class Round(NamedTuple):
    """The result of one round."""

    claimed: int = 0
    """Rows that were tried."""
    sent: int = 0
    """Rows that were sent and removed."""
    down: BideError | None = None
    """The error because of which no row can be sent now."""


class Store(Protocol):
    """The database's side of a relay."""

    def round(self) -> Round:
        """Send up to `rows.BATCH` rows."""
        raise NotImplementedError

    def sweep(self) -> int:
        """Remove old rows of `once`; return their number."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        raise NotImplementedError


def relay(store: Store, stopped: Callable[[], bool], burst: bool = False) -> int:
    """Send rows until the relay is stopped; with `burst`, until none can be sent.

    Returns:
        The number of rows that were sent.
    """
    sent, pause, swept_at = 0, _FIRST_PAUSE, time.monotonic()
    trouble = ""
    while not stopped():
        problem: Exception | None
        try:
            done = store.round()
            if not done.claimed and time.monotonic() - swept_at > SWEEP_EVERY:
                swept_at = time.monotonic()
                store.sweep()
            problem = done.down
        except Exception as error:  # the database is down, or does not have the tables
            done, problem = Round(), error
        sent += done.sent
        if problem is not None:
            if burst:
                raise problem
            if (text := told(problem)) != trouble:
                log.warning("the outbox waits: %s", text)
                trouble = text
            store.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        if trouble:
            log.info("the outbox sends again")
        trouble, pause = "", _FIRST_PAUSE
        if not done.claimed:
            if burst:
                break
            store.wait(POLL)
    return sent


def told(error: Exception) -> str:
    """Return what an error says, without the statement that SQLAlchemy adds."""
    return str(getattr(error, "orig", error)).strip()


def wait_for_notify(driver: Any, seconds: float, pause: Callable[[float], bool]) -> None:
    """Return when PostgreSQL has notified, or the relay is stopped, or the time is over.

    Args:
        driver: a connection of psycopg or psycopg2 that listens.
        seconds: the time.
        pause: waits so long, and returns whether the relay is stopped.
    """
    until = time.monotonic() + seconds
    ready: list[int] = []
    while not (ready or pause(0)) and (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([driver.fileno()], [], [], min(left, _HEED))
    if not ready:
        return
    if hasattr(driver, "poll"):  # psycopg2
        driver.poll()
        driver.notifies.clear()
    else:
        for _ in driver.notifies(timeout=0):
            pass


async def relay_in_thread(call: Callable[[], int], stop: threading.Event) -> int:
    """Run a relay that blocks beside the running event loop; a cancellation stops it."""
    with ThreadPoolExecutor(1, "bide-outbox") as pool:
        thread = asyncio.get_running_loop().run_in_executor(pool, call)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([thread])
            raise
