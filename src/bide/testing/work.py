"""A worker that a test drives: one job at a time, in the order in which they are due.

It claims and settles as every worker does. Between two jobs it may move the clock on to the next
due time, so that a chain of delayed jobs plays out in the order and at the times that it would.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from functools import partial
from typing import Final, NamedTuple

from bide import aio, config, sync
from bide.errors import UsageError
from bide.job import Claimed
from bide.keys import Keys, keys_of
from bide.ops import inspect, registry
from bide.ops.consume import Claim, Settle, leave
from bide.ops.inspect import Counts
from bide.ops.schedules import read_schedules, refills
from bide.script import SHARED_CLOCK
from bide.testing.perform import WORKER, Performed
from bide.testing.seen import JobSeen
from bide.testing.stage import outside_of_loops
from bide.testing.store import Store
from bide.worker.postman import Postman
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
        self._runs = 0
        self._sent = 0.0
        self._worker = f"{WORKER}.{secrets.token_hex(3)}"
        self._stations: dict[str, Station] = {}

    def next(self) -> Run | None:
        """The next job, claimed; None when nothing is left to do.

        Raises:
            UsageError: there has been more to do than the limit allows.
        """
        while True:
            run, next_us = self._claim_next()
            if run is not None:
                return run
            now_us = self._store.now_us()
            if self._until_us is None or not now_us < next_us <= self._until_us:
                break
            self._store.advance(int(next_us) - now_us)
        if self._until_us is not None:
            self._store.advance(max(0, self._until_us - self._store.now_us()))
        return None

    def look(self) -> None:
        """Fire the schedules whose time has come, and cancel jobs that have expired; run nothing.

        Any worker does this when it claims. It has to be asked for where none runs.
        """
        for due in self._queues():
            if due.passes_us <= due.now_us:
                self._claim(due.station, 0)

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

    def _claim_next(self) -> tuple[Run | None, float]:
        """The next job, claimed; or None, and when there is something to do next.

        A claim also does what is to be done beside running jobs. So where no queue has a job that
        may run, all of them have been claimed from, until nothing is left for them to do.
        """
        while True:
            next_us, again = math.inf, False
            for due in sorted(self._queues(), key=lambda due: due.at_us):
                claim, told = self._claim(due.station, 1)
                again = again or told
                for claimed in claim.jobs:
                    return self._begun(due.station, claimed), next_us
                # Where something is due that may not run yet, the claim knows when it may.
                at_us = due.at_us if due.at_us > due.now_us else claim.deadline_us or math.inf
                next_us = min(next_us, at_us)
            if not again:
                return None, next_us

    def _begun(self, station: Station, claimed: Claimed) -> Run:
        if self._runs == self._limit:
            self._client.run(station.settle([Settle(claimed.id, claimed.token, "release")]))
            raise UsageError(self._too_many())
        self._runs += 1
        return Run(station, claimed, self._sent, lambda: None)

    def _claim(self, station: Station, count: int) -> tuple[Claim, bool]:
        """Claim until there is a job, or nothing more; whether another queue was told something."""
        delivered = False
        while True:
            self._sent = time.monotonic()
            claim: Claim = self._client.run(station.claim(count, 0))
            station.claimed(claim, self._sent)
            again = claim.more
            if claim.thin:
                page = self._client.run(read_schedules(station.keys, claim.thin))
                again = any(self._client.run_many(refills(station.keys, page))) or again
            if claim.post and not delivered:
                outside_of_loops(partial(self._deliver, station.keys))
                delivered = again = True
            if claim.jobs or not again:
                return claim, delivered and not claim.post

    def _deliver(self, keys: Keys) -> None:
        """Tell other queues how jobs have ended that theirs depend on, as a worker does."""

        async def deliver() -> None:
            client = aio.Client(self._client.url, clock=SHARED_CLOCK)
            try:
                postman = Postman(client, lambda queues: None)
                postman.deliver(keys)
                await postman.close()
            finally:
                await client.close()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(deliver())

    def _queues(self) -> list[_Due]:
        """The queues that hold jobs, and when there is something to do in each."""
        for name in self._client.run(registry.queues(keys_of(None, self._prefix))):
            if name not in self._stations:
                keys = keys_of(name, self._prefix)
                self._stations[name] = Station(keys, self._worker, _LEASE_US, config.signing_keys())
        stations = list(self._stations.values())
        all_counts = self._client.run_many([inspect.counts(s.keys) for s in stations])
        return [
            self._due(station, counts)
            for station, counts in zip(stations, all_counts, strict=True)
            if not counts.is_data
        ]

    def _due(self, station: Station, counts: Counts) -> _Due:
        fires_us = 0 if counts.paused else counts.next_fire_us
        passes_us = _first(fires_us, self._store.expires_us(station.keys))
        at_us = passes_us if counts.paused else _first(counts.next_due_us, passes_us)
        return _Due(station, counts.now_us, at_us, passes_us)

    def _too_many(self) -> str:
        calls = list(dict.fromkeys(seen.call for seen in self.seen[-10:]))
        return (
            f"run() has run {self._limit:,} jobs, and another is due; does a task enqueue itself, "
            f"or is retried without end? The last were {', '.join(calls[-3:])}. If so many are "
            "right, give limit=."
        )


class _Due(NamedTuple):
    """When there is something to do in a queue."""

    station: Station
    now_us: int
    at_us: float
    """When its next job is due, or the time passes that `passes_us` says; infinite for never."""
    passes_us: float
    """When its next schedule fires, or its next job may expire; infinite for never."""


def _first(*times_us: float) -> float:
    """The first of some times, of which 0 stands for never."""
    return min((at_us for at_us in times_us if at_us), default=math.inf)
