"""A worker that a test drives: one job at a time, in the order in which they are due.

It claims and settles as every worker does. Between two jobs it may move the clock on to the next
due time, so that a chain of delayed jobs plays out in the order and at the times that it would.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from bide import config, sync
from bide.errors import UsageError
from bide.keys import keys_of
from bide.ops import inspect, registry
from bide.ops.consume import Claim, Settle, leave
from bide.ops.schedules import read_schedules, refills
from bide.testing.perform import WORKER, Performed
from bide.testing.seen import JobSeen
from bide.testing.store import Store
from bide.worker.run import Run
from bide.worker.station import Station

_LEASE_US: Final = 3_600_000_000
"""So long that a debugger may stop in a job."""


class Work:
    """What is left to do, job by job."""

    def __init__(
        self, client: sync.Client, store: Store, prefix: str, until_us: int | None, limit: int
    ) -> None:
        """Set up.

        Args:
            client: of the bed's server.
            store: has the clock.
            prefix: of the queues to serve: all there are, also those that turn up later.
            until_us: up to when the clock may be moved; None leaves it alone.
            limit: how many runs at most.
        """
        self.seen: list[JobSeen] = []
        """The runs that have ended."""
        self._client = client
        self._store = store
        self._prefix = prefix
        self._until_us = until_us
        self._limit = limit
        self._claims = 0
        self._worker = f"{WORKER}.{secrets.token_hex(3)}"
        self._stations: dict[str, Station] = {}

    def next(self) -> Run | None:
        """The next job, claimed; None when nothing is left to do.

        Raises:
            UsageError: there has been more to do than the limit allows.
        """
        while (found := self._earliest()) is not None:
            now_us, due_us, station = found
            if due_us > now_us:
                if self._until_us is None or due_us > self._until_us:
                    break
                self._store.advance(due_us - now_us)
            if self._claims == self._limit:
                raise UsageError(self._too_many())
            self._claims += 1
            sent = time.monotonic()
            claim: Claim = self._client.run(station.claim(1, 0))
            station.claimed(claim, sent)
            if claim.thin:
                page = self._client.run(read_schedules(station.keys, claim.thin))
                self._client.run_many(refills(station.keys, page))
            for claimed in claim.jobs:
                return Run(station, claimed, sent, lambda: None)
        if self._until_us is not None:
            self._store.advance(max(0, self._until_us - self._store.now_us()))
        return None

    def settle(self, run: Run, performed: Performed) -> JobSeen | None:
        """Tell the server how a run ended; the job afterwards, None if it is no more."""
        station, claimed = run.station, run.claimed
        outcome, when, data = performed.ended
        # One after another: of calls that share a round trip, one whose script the server does not
        # have yet runs last.
        while notes := station.take_said():
            self._client.run_many(notes)
        self._client.run(station.settle([Settle(claimed.id, claimed.token, outcome, when, data)]))
        (snapshot,) = self._client.run(inspect.fetch(station.keys, [claimed.id]))
        if snapshot is None:
            return None
        seen = JobSeen(station.seal, snapshot, performed.error)
        self.seen.append(seen)
        return seen

    def leave(self) -> None:
        """Have the server forget this worker."""
        leaving = [leave(station.keys, self._worker) for station in self._stations.values()]
        self._client.run_many(leaving)

    def _earliest(self) -> tuple[int, int, Station] | None:
        """The time, and when and where the next job is due, among queues that are not paused."""
        names = self._client.run(registry.queues(keys_of(None, self._prefix)))
        for name in names:
            if name not in self._stations:
                keys = keys_of(name, self._prefix)
                self._stations[name] = Station(keys, self._worker, _LEASE_US, config.signing_keys())
        stations = list(self._stations.values())
        all_counts = self._client.run_many([inspect.counts(s.keys) for s in stations])
        found = [
            (counts.now_us, at_us, station)
            for station, counts in zip(stations, all_counts, strict=True)
            for at_us in (counts.next_due_us, counts.next_fire_us)
            if at_us and not counts.paused
        ]
        return min(found, key=lambda one: one[1], default=None)

    def _too_many(self) -> str:
        calls = list(dict.fromkeys(seen.call for seen in self.seen[-10:]))
        return (
            f"run() has run {self._limit:,} jobs, and another is due; does a task enqueue itself, "
            f"or is retried without end? The last were {', '.join(calls[-3:])}. If so many are "
            "right, give limit=."
        )
