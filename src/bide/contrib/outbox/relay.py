"""The relay: sends the rows that were left, round by round, until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

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
            told = str(getattr(problem, "orig", problem)).strip()  # without the statement
            if told != trouble:
                log.warning("the outbox waits: %s", told)
                trouble = told
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
