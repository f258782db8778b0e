"""One queue, as a worker sees it: what is to be sent to it, and when to look at it again."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from bide.command import Command
from bide.keys import Keys
from bide.ops.consume import (
    Claim,
    Settle,
    Verdict,
    claim,
    fitting,
    note,
    settle,
)
from bide.payload.signing import Keyring, Seal
from bide.worker.figures import Figures
from bide.worker.saying import Sayings

_LOG_EVERY: Final = 30
"""Failures in a row after which the reason is logged again, whether it is new or not."""

_NUMBER: Final = re.compile(r"\d+")


class Station:
    """The worker's side of one queue."""

    def __init__(
        self,
        keys: Keys,
        worker: str,
        lease_us: int,
        keyring: Keyring | None = None,
        figures: Figures | None = None,
    ) -> None:
        self.keys = keys
        self.seal: Final = Seal(keyring, keys)
        """What checks the signatures of the queue's jobs."""
        self.queue = keys.queue or ""
        self.worker: Final = worker
        """The name of the worker."""
        self.figures: Final = figures
        """What is counted; None where nobody asks."""
        self.settles: deque[Settle] = deque()
        """Outcomes that are not on their way to the server; each takes a slot until it is."""
        self.said: Final = Sayings()
        """What running jobs have said of themselves; any thread adds."""
        self.check = True
        """Whether to claim as soon as there is a free slot."""
        self.limited = False
        """Something is due that a limit of the queue holds back."""
        self.hinted = False
        """A hint came that nobody has acted upon yet."""
        self.unanswered = False
        """A claim was sent whose reply has not been seen: it may have taken jobs."""
        self.quiet_until = 0.0
        """Until when not to warn again that results are dropped (`time.monotonic()`)."""
        self.failures = 0
        """How many round trips have failed in a row."""
        self._reasons: set[str] = set()
        """Why they failed, without the numbers in it."""
        self.resting = False
        """Nothing is sent for a little while, because a round trip failed."""
        self.exact = False
        """Whether `until` is a deadline, which wants punctuality, or only a time to look again."""
        self.until = 0.0
        """When to claim even if nothing was heard (`time.monotonic()`); 0 for not armed."""
        self._lease_us = lease_us
        self.lease: Final = lease_us / 1e6
        self._seq = 1
        self._clock = (0, 0.0)
        self._fresh = False  # a hint came since the claim under way was made
        self._echoed = False

    def failed(self, reason: str) -> bool:
        """Count a round trip that failed; return whether to log the reason.

        A reason that is new in this outage is logged at once. Numbers in it do not make it new.
        """
        reason = _NUMBER.sub("", reason)
        is_new = reason not in self._reasons
        self._reasons.add(reason)
        self.failures += 1
        return is_new or self.failures % _LOG_EVERY == 1

    def succeeded(self) -> None:
        """Note that a round trip worked: the next failure begins another outage."""
        self.failures = 0
        self._reasons.clear()

    def hint(self, caller: str) -> None:
        """A wake hint for this queue came to this worker.

        One that the worker pushed itself, to call a backup, went to the one that had listened
        longest: itself. It calls again, now as the last in the line; if it hears itself once more,
        nobody else is there.
        """
        if caller == self.worker and self._echoed:
            self._echoed = False
            return
        self._echoed = caller == self.worker
        self.hinted = self._fresh = self.check = True

    def is_due(self, now: float, settles: Sequence[Settle] = ()) -> bool:
        """Whether to look at the queue, in a round trip that takes these outcomes along."""
        return self.check or self.promised(now) or any(map(_is_due_again, settles))

    def promised(self, now: float) -> bool:
        """Whether the time has come at which this worker said that it would look."""
        return not self.check and 0 < self.until <= now

    def take_settles(self) -> list[Settle]:
        """As many of the gathered outcomes as fit one call; put them back if it fails."""
        return [self.settles.popleft() for _ in range(fitting(self.settles))]

    def put_back(self, settles: Sequence[Settle]) -> None:
        """Send these again, ahead of the others."""
        self.settles.extendleft(reversed(settles))

    def take_said(self) -> list[Command[None]]:
        """The calls that add what jobs have said to their notes."""
        return [note(self.keys, said) for said in self.said.take()]

    def settle(self, settles: Sequence[Settle]) -> Command[list[Verdict]]:
        """The call that applies outcomes."""
        return settle(self.keys, settles)

    def claim(self, count: int, busy: int, burst: bool = False) -> Command[Claim]:
        """The next claim; the same one again until `claimed` has been told its reply."""
        self._fresh = False
        self.unanswered = True
        arm = 3 if burst else 2
        return claim(self.keys, self.worker, self._seq, count, self._lease_us, busy, arm)

    def now_us(self) -> int:
        """The server's time, as far as the latest claim has told."""
        told_us, at = self._clock
        return told_us + round((time.monotonic() - at) * 1e6)

    def claimed(self, reply: Claim, sent: float) -> None:
        """Note the reply to the latest claim, which was sent at `sent` (`time.monotonic()`)."""
        self._seq += 1
        if self.figures is not None:
            self.figures.note_claim(reply)
        self.unanswered = False
        self.limited = reply.limited
        if not reply.stale:
            self._clock = reply.now_us, sent
        self.hinted = self._fresh  # what came meanwhile may not have been there for the claim
        if reply.stale:
            self.check = True
        elif reply.until_us:
            self.check = reply.more or self._fresh
            # Counted from the reply's arrival, every alarm would be late by the reply's way back.
            self.until = sent + (reply.until_us - reply.now_us) / 1e6
            self.exact = reply.until_us == reply.deadline_us
        else:
            self.check = True
            self.until = 0.0


def _is_due_again(settle: Settle) -> bool:
    """Whether an outcome makes its job due at once: the claim that goes with it finds it."""
    again = settle.outcome in ("retry", "snooze") and settle.when == "+0"
    return again or settle.outcome == "release"
