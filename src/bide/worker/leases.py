"""Renewing leases, in a thread and over a connection of its own.

A job that blocks the event loop, or another's slow reply, must not cost a job its lease. One that
holds the GIL for longer than a lease less an interval does. No lease is renewed past the job's
time-out and grace, so a job that hangs for ever is not held for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from bide import sync
from bide.connection import REPLY_TIMEOUT
from bide.dialogue import PATIENCE
from bide.errors import BideError
from bide.ids import short_id
from bide.job import Claimed
from bide.logs import Log
from bide.ops.consume import MAX_SETTLES, extend
from bide.worker.station import Station

log = Log("bide.worker")

GRACE: Final = 5.0
"""Seconds that a job may take to end after its time-out before its lease is let go."""


class Held(Protocol):
    """A job under a lease."""

    station: Station
    claimed: Claimed
    claimed_at: float
    deadline: float
    ended: bool
    lost: bool

    def named(self) -> AbstractContextManager[None]:
        """Have each record that is logged inside carry the fields of this job."""
        ...


class Leases(threading.Thread):
    """Renews the leases of all held jobs every quarter of a lease."""

    def __init__(
        self,
        url: str,
        clock: str,
        lease: float,
        held: Callable[[], Iterable[Held]],
        asked: Callable[[str, str], None],
    ) -> None:
        """Set up.

        Args:
            url: the server.
            clock: which clock the scripts are built for.
            lease: seconds.
            held: what is held now; called in this thread.
            asked: called in this thread with the channel and the id of a job that was asked to end.
        """
        super().__init__(name="bide-leases", daemon=True)
        self._interval = lease / 4
        self._client = sync.Client(
            url,
            clock=clock,
            patience=min(self._interval / 2, PATIENCE),
            reply_timeout=min(max(0.5, self._interval), REPLY_TIMEOUT),
        )
        self._lease_us = round(lease * 1e6)
        self._held = held
        self._asked = asked
        self._ended = threading.Event()

    def run(self) -> None:
        """Renew until stopped."""
        while not self._ended.wait(self._interval):
            try:
                self._renew()
            except Exception:  # this thread must outlive any surprise
                log.exception("Leases were not renewed this time")
        self._client.close()

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()

    def _renew(self) -> None:
        now = time.monotonic()
        by_station: dict[Station, list[Held]] = {}
        for job in self._held():
            if now - job.claimed_at >= self._interval / 2 and now < job.deadline + GRACE:
                by_station.setdefault(job.station, []).append(job)
        for station, jobs in by_station.items():
            try:
                for i in range(0, len(jobs), MAX_SETTLES):
                    self._extend(station, jobs[i : i + MAX_SETTLES])
            except BideError as error:
                log.warning("Leases of %s were not renewed this time: %s", station.queue, error)

    def _extend(self, station: Station, jobs: Sequence[Held]) -> None:
        tokens = [(job.claimed.id, job.claimed.token) for job in jobs]
        verdicts = self._client.run(extend(station.keys, self._lease_us, tokens))
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict == "asked":
                self._asked(station.keys["asked"], job.claimed.id)
            if verdict == "lost" and not job.ended and not job.lost:
                job.lost = True
                with job.named():
                    log.warning(
                        "job %s: its lease has passed to another worker; what this run returns "
                        "will be refused",
                        short_id(job.claimed.id),
                    )
