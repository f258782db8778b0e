"""One job while a worker holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Lock
from typing import Final

from bide.current import CurrentJob
from bide.job import Claimed
from bide.ops.consume import Outcome, Said
from bide.ops.registry import Doing
from bide.payload.codec import DEFAULT_TIMEOUT
from bide.payload.serializers import Codec
from bide.policy import Policy
from bide.worker.station import Station

Ended = tuple[Outcome, str, bytes]
"""Outcome, when, data: as `ops.consume.Settle` has them."""

UNBEGUN: Final[Ended] = ("release", "", b"")
"""A job is given back that has not begun: what it took of its queue's rate goes back, too."""

BEGUN: Final[Ended] = ("release", "+0", b"")
"""A job is given back that has begun, or may have."""

UNCOUNTED: Final = ("release", "snooze", "hold")
"""Outcomes after which a worker has not executed a job more."""

_DEFAULT: Final = Policy()


class Run:
    """One job while this worker holds it."""

    __slots__ = (
        "_deciding",
        "asked",
        "begun_at",
        "claimed",
        "claimed_at",
        "codec",
        "deadline",
        "decided",
        "ended",
        "job",
        "lost",
        "missing",
        "policy",
        "say_soon",
        "station",
        "task",
        "task_name",
        "timed_out",
    )

    def __init__(
        self, station: Station, claimed: Claimed, claimed_at: float, say_soon: Callable[[], None]
    ) -> None:
        self.station = station
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.say_soon = say_soon
        self.begun_at = 0.0
        """When it got a slot (`time.monotonic()`); 0 while it waits for one."""
        self.deadline = claimed_at + DEFAULT_TIMEOUT
        self.policy = _DEFAULT
        self.codec: Codec = "json"
        self.task_name = "?"
        self.task: asyncio.Task[None] | None = None
        self.job: CurrentJob | None = None
        self.decided: Ended | None = None
        """How it ended, while its callback runs: whatever becomes of that, this stands."""
        self._deciding = Lock()
        self.ended = False
        self.lost = False
        self.missing = False
        """This worker does not serve its task."""
        self.asked = False
        """Someone has asked for its end."""
        self.timed_out = False

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for what this run comes to; a plain function must look itself."""
        return self.asked or self.ended or self.lost

    def decide(self, ended: Ended) -> bool:
        """Say how it ended, unless that has been said; any thread may call.

        A thread may come to its end in the moment in which its time is over or it is given back:
        one of them decides, and only that one's callback is called.
        """
        with self._deciding:
            if self.decided is not None:
                return False
            self.decided = ended
            return True

    def say(self, kind: str, text: bytes) -> None:
        """Gather a note for the next round trip; any thread may call."""
        if self.station.said.add(Said(self.claimed.id, self.claimed.token, kind, text)):
            self.say_soon()

    def doing(self) -> Doing:
        """What is said of it to those who look at the worker."""
        return Doing(self.station.queue, self.claimed.id, self.task_name, self.claimed.token)

    def elapsed(self) -> float:
        """Seconds since the job was first due."""
        claimed = self.claimed
        return (claimed.token - claimed.first_us) / 1e6 + time.monotonic() - self.claimed_at

    def waited(self) -> float:
        """Seconds for which no worker that claimed it has served its task."""
        claimed = self.claimed
        since_us = claimed.missing_us or claimed.token
        return (claimed.token - since_us) / 1e6 + time.monotonic() - self.claimed_at
