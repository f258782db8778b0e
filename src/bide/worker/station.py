"""One queue, as a worker sees it: what is to be sent to it, and when to look at it again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bide.command import Command
from bide.job import Claimed
from bide.keys import Keys
from bide.ops.consume import (
    DEFAULT_RETENTION,
    Claim,
    Outcome,
    Settle,
    Verdict,
    claim,
    settle,
    settle_chunks,
)


class Station:
    """The worker's side of one queue."""

    def __init__(self, keys: Keys, worker: str, lease_us: int) -> None:
        self.keys = keys
        self.queue = keys.queue or ""
        self.settles: list[Settle] = []
        self.check = True
        """Whether to claim as soon as there is a free slot."""
        self.hinted = False
        """A hint came that nobody has acted upon yet."""
        self.until = 0.0
        """When to claim even if nothing was heard (`time.monotonic()`); 0 for not armed."""
        self._worker = worker
        self._lease_us = lease_us
        self._seq = 1

    def hint(self) -> None:
        """Someone pushed a wake hint for this queue to this worker."""
        self.hinted = True
        self.check = True

    def is_due(self, now: float) -> bool:
        """Whether the queue should be looked at."""
        return self.check or (self.until > 0 and now >= self.until)

    def settle(self, job: Claimed, outcome: Outcome, when: str = "", data: bytes = b"") -> None:
        """Have an outcome sent with the next round trip."""
        self.settles.append(Settle(job.id, job.token, outcome, when, data))

    def settle_commands(self, settles: Sequence[Settle]) -> list[Command[list[Verdict]]]:
        """The calls that apply outcomes, within the bounds of one call each."""
        chunks = settle_chunks(settles)
        return [settle(self.keys, chunk, DEFAULT_RETENTION) for chunk in chunks]

    def claim(self, count: int, busy: int) -> Command[Claim]:
        """The next claim; the same one again until `claimed` has been told its reply."""
        return claim(self.keys, self._worker, self._seq, count, self._lease_us, busy)

    def claimed(self, reply: Claim) -> None:
        """Note the reply to the latest claim."""
        self._seq += 1
        self.hinted = False
        if reply.stale:
            self.check = True
        elif reply.until_us:
            self.check = reply.more
            self.until = time.monotonic() + (reply.until_us - reply.now_us) / 1e6
        else:
            self.check = True
            self.until = 0.0
