"""One queue, as a worker sees it: what is to be sent to it, and when to look at it again.

A queue is **ready** while it may have due jobs: nothing has shown yet that it has none.

- Strict: all slots go to the first ready queue, in the order given.
- By weight: each queue has a virtual time, the jobs taken from it over its weight. A slot goes to
  the ready queue whose time is earliest (stride scheduling: Waldspurger and Weihl, 1995). A queue
  that becomes ready begins where those are that are ready already, so what it did not use while it
  was empty is not made up for, and what it used alone is not held against it.

What waits in the worker waits behind its own jobs, while others may be free. So it is no more than
a few milliseconds of work, as jobs have been lately; and what waits though nothing moves goes back.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from bide.errors import UsageError
from bide.model.payload.signing import Keyring, Seal
from bide.protocol.command import Command
from bide.protocol.commands.worker import Claim, Settle, Verdict, add_notes, claim, fitting, settle
from bide.protocol.keys import Keys
from bide.worker.metrics import WorkerMetrics
from bide.worker.notes import NoteBuffer

_LOG_EVERY: Final = 30
"""Failures in a row after which the reason is logged again, whether it is new or not."""

_TRY_EVERY: Final = 1.0
"""Seconds until a worker that lacked a task tries again whether it has the tasks of other jobs."""

_NUMBER: Final = re.compile(r"\d+")


class QueueState:
    """The worker's side of one queue."""

    def __init__(
        self,
        keys: Keys,
        worker: str,
        lease_us: int,
        keyring: Keyring | None = None,
        figures: WorkerMetrics | None = None,
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
        self.said: Final = NoteBuffer()
        """What running jobs have said of themselves; any thread adds."""
        self.check = True
        """Whether to claim as soon as there is a free slot."""
        self.limited = False
        """Something is due that a limit of the queue holds back."""
        self.hinted = False
        """A hint came that nobody has acted upon yet."""
        self.unanswered = False
        """A claim was sent whose reply has not been seen: it may have taken jobs."""
        self._lacked = False
        """Whether a job has ended since the last try whose task is not served here."""
        self._tried_at = 0.0
        self._served = False
        """Whether a job has run, since the last claim, that a worker without its task gave back."""
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
        return [add_notes(self.keys, said) for said in self.said.take()]

    def settle(self, settles: Sequence[Settle]) -> Command[list[Verdict]]:
        """The call that applies outcomes."""
        return settle(self.keys, settles)

    def claim(self, count: int, busy: int, burst: bool = False) -> Command[Claim]:
        """The next claim; the same one again until `claimed` has been told its reply."""
        self._fresh = False
        self.unanswered = True
        unserved, now = "s" if self._served else "", time.monotonic()
        self._served = False
        if not self._lacked or now - self._tried_at >= _TRY_EVERY:
            unserved += "e"
            self._lacked, self._tried_at = False, now
        arm = 3 if burst else 2
        return claim(self.keys, self.worker, self._seq, count, self._lease_us, busy, arm, unserved)

    def note_task(self, *, served: bool) -> None:
        """A job has ended that a worker without its task gave back, here or before."""
        self._served = self._served or served
        self._lacked = self._lacked or not served

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


OrderChoice = Literal["strict", "fair"] | Mapping[str, int]
"""What a worker may be asked for: a word, or the weight of each of its queues."""

HEAVIEST: Final = 1_000_000

_HINT: Final = "'strict', 'fair', or a weight for each queue such as {'high': 6, 'low': 1}"


class PollingOrder(Protocol):
    """Shares slots out among queues, which are known by their places in the list of all."""

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """How many of the free slots each queue is to fill; 0 for one that is not ready."""
        ...

    def note_taken(self, queue: int, jobs: int) -> None:
        """So many jobs have been taken from a queue."""


class Strict:
    """A queue gets slots only while all before it have nothing that is due."""

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """All of them for the first that is ready."""
        shares = [0] * len(ready)
        if any(ready):
            shares[ready.index(True)] = slots
        return shares

    def note_taken(self, queue: int, jobs: int) -> None:
        """Changes nothing."""


class Weighted:
    """Of the jobs taken, each queue has its share while it has work."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._times = [0.0] * len(weights)
        self._were_ready = [False] * len(weights)

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """One by one to the ready queue whose virtual time is earliest."""
        self._admit(ready)
        shares = [0] * len(ready)
        heap = [(self._times[i], i) for i, is_ready in enumerate(ready) if is_ready]
        if len(heap) == 1:
            shares[heap[0][1]] = slots
            return shares
        heapq.heapify(heap)
        for _ in range(slots if heap else 0):
            at, i = heap[0]
            shares[i] += 1
            heapq.heapreplace(heap, (at + 1 / self._weights[i], i))
        return shares

    def note_taken(self, queue: int, jobs: int) -> None:
        """Move the queue's virtual time on."""
        self._times[queue] += jobs / self._weights[queue]

    def _admit(self, ready: Sequence[bool]) -> None:
        """Let those that have become ready begin where those are that have been so all along."""
        both = [
            self._times[i] for i, is_ready in enumerate(ready) if is_ready and self._were_ready[i]
        ]
        now = min(both, default=max(self._times))
        for i, is_ready in enumerate(ready):
            if is_ready and not self._were_ready[i]:
                self._times[i] = max(self._times[i], now)
        self._were_ready = list(ready)


def make_order(choice: OrderChoice, queues: Sequence[str]) -> PollingOrder:
    """The order that is asked for, of queues in the order in which they were given.

    Raises:
        UsageError: it cannot be meant; the message says how to write it.
    """
    if isinstance(choice, Mapping):
        return Weighted(_weights(choice, queues))
    if choice == "strict":
        return Strict()
    if choice == "fair":
        return Weighted([1] * len(queues))
    raise UsageError(f"order must be {_HINT}, not {choice!r}.")


def read_order(text: str) -> OrderChoice:
    """An order as it is typed: `strict`, `fair`, or weights such as `high=6,low=1`.

    Raises:
        UsageError: it is none of these.
    """
    if text == "strict":
        return "strict"
    if text == "fair":
        return "fair"
    weights: dict[str, int] = {}
    for part in text.split(","):
        queue, equals, weight = part.strip().rpartition("=")
        if not equals or not queue or not weight.strip().lstrip("+-").isdecimal():
            raise UsageError(
                f"order {text!r} cannot be meant; write strict, fair, or a weight for each queue "
                "such as high=6,low=1."
            )
        if queue in weights:
            raise UsageError(f"order {text!r} gives {queue!r} two weights; give it one.")
        weights[queue] = int(weight)
    return weights


def _weights(given: Mapping[Any, Any], queues: Sequence[str]) -> list[int]:
    for queue, weight in given.items():
        if queue not in queues:
            raise UsageError(
                f"order gives a weight to {queue!r}, which is none of the worker's queues "
                f"({', '.join(queues)}); add it to them, or take its weight out."
            )
        whole = isinstance(weight, int) and not isinstance(weight, bool)
        if not whole or not 1 <= weight <= HEAVIEST:
            raise UsageError(
                f"The weight of {queue!r} must be a whole number from 1 to {HEAVIEST:,}, not "
                f"{weight!r}; to serve it only when the others are empty, put it last in a worker "
                "whose order is 'strict'."
            )
    missing = [queue for queue in queues if queue not in given]
    if missing:
        raise UsageError(
            f"order gives no weight to {', '.join(map(repr, missing))}; give each of the worker's "
            "queues one."
        )
    return [given[queue] for queue in queues]


AHEAD: Final = 0.005
"""Seconds of work that may wait for a slot."""

STALE: Final = 0.05
"""Seconds without a free slot, or a job's end, after which what waits is given back: other workers
may have a slot that is free."""

_WEIGHT: Final = 0.1


class Prefetch:
    """How long jobs have been taking."""

    def __init__(self) -> None:
        self._mean = 0.0

    def note_run(self, seconds: float) -> None:
        """A job has ended, so long after it began."""
        self._mean += (_WEIGHT if self._mean else 1.0) * (seconds - self._mean)

    def note_running(self, seconds: float) -> None:
        """A job has been running for so long, and has not ended.

        That says nothing where nothing is known: it may have begun just now.
        """
        if self._mean:
            self._mean = max(self._mean, seconds)

    def ahead(self, most: int) -> int:
        """How many jobs may wait for one slot; none while nothing is known of them."""
        return min(most, int(AHEAD / self._mean)) if self._mean else 0
