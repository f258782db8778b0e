"""The place of one child at a time, as the worker sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Final

from bide.logs import Log
from bide.payload.codec import DEFAULT_TIMEOUT
from bide.worker.leases import GRACE
from bide.worker.lifespan import CLOSING
from bide.worker.processes import kin
from bide.worker.processes.interrupts import ASKED
from bide.worker.processes.table import Row

log = Log("bide.worker")

BEGINNING: Final = 0.05
"""Seconds after which a child that has not begun yet is not counted on."""

OPENING: Final = DEFAULT_TIMEOUT
"""Seconds that a child may take to open its resources: as long as a job that says nothing of it."""


class Slot:
    """One of the places for children that a worker has."""

    def __init__(self, index: int, row: Row) -> None:
        self.index: Final = index
        self.row: Final = row
        self.pid = 0
        self.killed = False
        """The worker has killed the child that is here now."""
        self.able = False
        """There is a child here that takes jobs, or will in a moment."""
        self.stopped_at = 0.0
        """Since when the child stands still (`time.monotonic()`); 0 for not."""
        self.failures = 0
        self.spawning: asyncio.TimerHandle | None = None
        """When the next child will be asked for."""
        self._asked_at = 0.0
        self._born_at = 0.0
        self._ready = 0
        self._left = 0
        self._left_at = 0.0

    @property
    def age(self) -> float:
        """For how many seconds the child has lived."""
        return time.monotonic() - self._born_at

    @property
    def is_free(self) -> bool:
        """Whether there is a child that waits for a job."""
        return self.able and self._is_ready and not self.row.job

    @property
    def is_unsettled(self) -> bool:
        """Whether there is a child here that may hang in what it does before or after its jobs."""
        return bool(self.pid) and not (self.able and self._is_ready)

    @property
    def _is_ready(self) -> bool:
        return self._ready == self.pid

    @property
    def _is_leaving(self) -> bool:
        return self._left == self.pid

    def look(self) -> None:
        """See whether the child can do anything: one that is stopped, or not reaped, cannot.

        One that takes too long to open or to close what it has is killed.
        """
        if not self.pid:
            return
        if self._is_leaving:
            self.able = False
            if not self.killed and time.monotonic() - self._left_at > CLOSING + GRACE:
                self._give_up("its resources and tasks to close", CLOSING + GRACE)
            return
        stands = kin.is_idle(self.pid)
        self.stopped_at = (self.stopped_at or time.monotonic()) if stands else 0.0
        self.able = (self._is_ready or self.age < BEGINNING) and not stands
        if not self._is_ready and not self.killed and self.age > OPENING:
            self._give_up("its resources to open", OPENING)

    def _give_up(self, what: str, seconds: float) -> None:
        log.error("a child took more than %g s for %s, and is killed", seconds, what)
        self.kill()

    def kill(self) -> None:
        """Kill the child, and what it has started."""
        if self.pid:
            self.killed = True
            kin.kill_session(self.pid)

    def ask(self, number: int, now: float) -> None:
        """Have the job end by an exception; if it does not within a grace, by force.

        It is asked at each look: the child that runs it may not be known to be here yet.
        """
        if self.row.asked != number:
            self.row.ask(number)
            self._asked_at = now
        elif now - self._asked_at > GRACE:
            self.kill()
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, ASKED)

    def born(self, pid: int) -> bool:
        """A child is here now; whether none was before that could take jobs."""
        was_able, self.able = self.able, pid != self._left
        self.pid = pid
        self.stopped_at = 0.0
        self.killed = False
        self.row.ask(0)
        self._born_at = time.monotonic()
        return self.able and not was_able

    def is_ready(self, pid: int) -> bool:
        """A child, which may not be known to be here yet, takes jobs; whether that is news."""
        was_able, self._ready = self.able, pid
        if self._left == pid:  # that was another child of this number
            self._left = 0
        self.able = was_able or pid == self.pid
        return self.able and not was_able

    def leaves(self, pid: int) -> None:
        """A child, which may not be known to be here yet, takes no more jobs."""
        self._left, self._left_at = pid, time.monotonic()
        if pid == self.pid:
            self.able = False

    def died(self) -> None:
        """There is none here any more."""
        self.pid = 0
        self.able = False
