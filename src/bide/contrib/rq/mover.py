"""Moves the due jobs of one queue, call by call, and passes over members that have to stay.

What was put into the sorted set neither by bide nor by delay-rq stays there, as do jobs whose
dependencies have not finished. So that such members hold up no other, each call goes on behind
those that the call before it left. Where a pass has left more than one call reads, the next passes
begin behind them; now and then one begins at the start again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from typing import Final

import redis

from bide.connection import LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE
from bide.contrib.rq.gate import shown
from bide.contrib.rq.keys import Keys
from bide.contrib.rq.scripts import run
from bide.contrib.rq_sets import DELAYED, GATE
from bide.logs import Log

log = Log("bide.rq")

AT_ONCE: Final = 100
"""Members per call of the script, so that no call is long."""

LONGEST_SLEEP: Final = 10.0
"""Seconds: what a lost hint may cost, or a server's clock that is set forward."""

UNANNOUNCED_SLEEP: Final = 0.1
"""Seconds between looks while delay-rq adds jobs: it sends no hints."""

UNANNOUNCED: Final = 3600.0
"""Seconds for which that is so after the last of its jobs."""

UNSAVED: Final = 60.0
"""Seconds for which a due member may have no job: delay-rq adds the member first, by its own clock,
and saves the job after it."""

_START: Final = "-inf"
_NAMED: Final = 3
"""How many ids a warning names."""


class Mover:
    """One queue of a Timer."""

    def __init__(self, keys: Keys) -> None:
        """Set up; nothing is sent before `move`."""
        self.keys: Final = keys
        self.due = 0.0
        """When to look, on this process's monotonic clock."""
        self._pause = RECONNECT_PAUSE
        self._resting_until = 0.0
        """When to try again after a call that failed; hints do not change it."""
        self.server_ahead = 0.0
        """The server's clock less our monotonic one, in seconds."""
        self.staying = 0
        """How many due members the last pass has left."""
        self.others = 0
        """How many of them are jobs of other queues: the Timers of those queues move them."""
        self.strange: set[bytes] = set()
        """Those of them that are of no delayed job."""
        self._waiting: set[bytes] = set()
        """Those whose jobs depend on others."""
        self._from, self._skip = _START, 0
        """Where the next call begins, as the script takes it."""
        self._begun = False
        """Whether a pass has begun and not ended."""
        self._now_staying = self._now_others = 0
        self._now_strange: set[bytes] = set()
        self._now_waiting: set[bytes] = set()
        self._start_at = 0.0
        """When the next pass begins at the start again."""
        self._unannounced_until = 0.0

    def move(self, client: redis.Redis) -> tuple[int, bool]:
        """Move what is due, up to a limit.

        Returns:
            How many jobs were moved, and whether more may be due.

        Raises:
            redis.RedisError: as the client library has it; what was not moved is still there.
            UsageError: the server is part of a cluster.
        """
        if not self._begun:
            self._begin()
        keys = self.keys
        reply = run(
            client,
            "move",
            [keys.delayed, keys.list, keys.scheduled, keys.queues],
            [
                *(keys.name, keys.jobs, DELAYED, GATE, AT_ONCE),
                *(self._from, self._skip, round(UNSAVED * 1e6)),
            ],
        )
        moved, theirs, gone, cancelled, taken, strange, waiting, stay, at, skip, *rest = reply
        due, now, others = rest
        self._pause = RECONNECT_PAUSE
        monotonic = time.monotonic()
        self.server_ahead = float(now) - monotonic
        if theirs:
            self._unannounced_until = monotonic + UNANNOUNCED
        self._tell(moved, gone, cancelled, taken)
        self._now_staying += stay
        self._now_others += others
        self._now_strange.update(strange)
        self._now_waiting.update(waiting)
        if at:
            self._from, self._skip = at.decode(), skip
            self.due = monotonic
        else:
            self._end(now.decode())
            longest = LONGEST_SLEEP
            if monotonic < self._unannounced_until:
                longest = UNANNOUNCED_SLEEP
            left = float(due) - float(now) if due else longest
            self.due = monotonic + min(left, longest)
        return len(moved), bool(at)

    def hear(self, due: float) -> None:
        """Take note that a job has been delayed until then, on the server's clock."""
        self.due = max(self._resting_until, min(self.due, due - self.server_ahead))
        behind = float(self._from.lstrip("("))
        if due <= behind:  # a pass that begins there would not see it
            self._from, self._skip = repr(due), 0

    def look(self) -> None:
        """Have a pass begin at the start, now: jobs may have been added unheard."""
        self.due = self._start_at = self._resting_until = 0.0
        self._begun = False

    def failed(self) -> None:
        """Have the next call come after a pause, which grows until one succeeds."""
        self.due = self._resting_until = time.monotonic() + self._pause * random.uniform(0.5, 1)
        self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)

    def _begin(self) -> None:
        """Begin a pass; at the start where it is time, or little would be read again."""
        if self._start_at <= time.monotonic():
            self._from, self._skip = _START, 0
        if self._from == _START:
            self._now_staying = self._now_others = 0
            self._now_strange, self._now_waiting = set(), set()
            self._start_at = time.monotonic() + LONGEST_SLEEP
        self._begun = True

    def _end(self, now: str) -> None:
        """End a pass, at whose end everything was read that was due by `now`."""
        self._begun = False
        if new := self._now_strange - self.strange:
            log.warning(
                "%s of %s stay: neither bide nor delay-rq delayed these jobs on %s; enqueue them, "
                "or remove them with ZREM",
                _some(new),
                self.keys.delayed,
                self.keys.name,
            )
        for id in self._now_waiting - self._waiting:
            log.info("job %s of %s is due, and waits for other jobs", shown(id), self.keys.name)
        self.staying, self.others = self._now_staying, self._now_others
        self.strange, self._waiting = self._now_strange.copy(), self._now_waiting.copy()
        few = self.staying < AT_ONCE
        self._from, self._skip = (_START if few else f"({now}"), 0

    def _tell(
        self,
        moved: Sequence[bytes],
        gone: Sequence[bytes],
        cancelled: Sequence[bytes],
        taken: Sequence[bytes],
    ) -> None:
        name = self.keys.name
        for id in moved:
            log.debug("job %s moved to %s", shown(id), name)
        for id in gone:
            log.warning("job %s of %s is gone; dropped", shown(id), name)
        for id in cancelled:
            log.info("job %s of %s was cancelled", shown(id), name)
        for id in taken:
            log.warning("job %s of %s was enqueued elsewhere; dropped", shown(id), name)


def _some(ids: Iterable[bytes]) -> str:
    named = sorted(shown(id) for id in ids)
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more members" if more > 0 else "")
