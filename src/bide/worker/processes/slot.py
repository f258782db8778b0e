"""The place of one child at a time, as the worker sees it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from bide.worker.leases import GRACE
from bide.worker.processes import kin
from bide.worker.processes.child import ASKED
from bide.worker.processes.table import Row

BEGINNING: Final = 0.05
"""Seconds after which a child that has not begun yet is not counted on."""


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
        self.failures = 0
        self._asked_at = 0.0
        self._born_at = 0.0
        self._ready = 0

    @property
    def age(self) -> float:
        """For how many seconds the child has lived."""
        return time.monotonic() - self._born_at

    @property
    def is_free(self) -> bool:
        """Whether there is a child that waits for a job."""
        return self.able and self._ready == self.pid and not self.row.job

    def look(self) -> None:
        """See whether the child can do anything: one that is stopped, or not reaped, cannot."""
        begun = self._ready == self.pid or self.age < BEGINNING
        self.able = bool(self.pid) and begun and not kin.is_idle(self.pid)

    def kill(self) -> None:
        """Kill the child, and what it has started."""
        if self.pid:
            self.killed = True
            kin.kill_session(self.pid)

    def ask(self, number: int, now: float) -> None:
        """Have the job end by an exception; if it does not within a grace, by force."""
        if self.row.asked != number:
            self.row.ask(number)
            self._asked_at = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, ASKED)
        elif now - self._asked_at > GRACE:
            self.kill()

    def born(self, pid: int) -> bool:
        """A child is here now; whether none was before that could take jobs."""
        was_able, self.able = self.able, True
        self.pid = pid
        self.killed = False
        self._born_at = time.monotonic()
        return not was_able

    def is_ready(self, pid: int) -> bool:
        """A child, which may not be known to be here yet, takes jobs; whether that is news."""
        was_able, self._ready = self.able, pid
        self.able = was_able or pid == self.pid
        return self.able and not was_able

    def died(self) -> None:
        """There is none here any more."""
        self.pid = 0
        self.able = False
