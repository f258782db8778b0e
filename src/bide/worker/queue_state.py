"""A worker's view of one queue, the order in which queues are polled, and prefetch.

A queue is **ready** while it may have due jobs: no reply has shown yet that it has none.

- Strict: all slots go to the first ready queue, in the order given.
- By weight: each queue has a virtual time, the number of jobs taken divided by its weight. A slot
  goes to the ready queue with the earliest time (stride scheduling: Waldspurger and Weihl, 1995).
  A queue that becomes ready starts at the time of the queues that are ready already. So it does not
  catch up for the time that it was empty, and jobs taken while it was alone do not count.

A prefetched job waits for this worker's own jobs, while another worker may be free. So a worker
prefetches no more than a few milliseconds of work, by its recent run times. If no job ends for some
time, it releases the prefetched jobs.

A buffer holds the log lines and the progress of running jobs until the next round trip. It keeps as
much of each job as the server would: its latest lines and its latest progress. So a job that floods
the log loses only its own lines.
"""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final, Literal

from bide.errors import UsageError
from bide.model.history import MAX_LINES, PROGRESS
from bide.model.latency import FINEST, LAST
from bide.model.payload.signing import Keyring, Seal
from bide.protocol.commands import Command
from bide.protocol.commands.worker import (
    MAX_AHEAD_US,
    MAX_NOTED,
    Claim,
    ClaimSession,
    JobNote,
    Settle,
    Verdict,
    add_notes,
    fitting,
    settle,
)
from bide.protocol.keys import Keys
from bide.worker.metrics import WorkerMetrics

MAX_BYTES: Final = 500_000
"""Bytes of notes in one round trip; after that, the notes of further jobs wait for the next."""

_Key = tuple[str, int]


class _OneJob:
    """The notes of one run."""

    __slots__ = ("lines", "progress")

    def __init__(self) -> None:
        self.lines: deque[JobNote] = deque(maxlen=MAX_LINES)
        self.progress: JobNote | None = None

    def __iter__(self) -> Iterator[JobNote]:
        yield from self.lines
        if self.progress is not None:
            yield self.progress


class NoteBuffer:
    """The notes of one queue's jobs; any thread adds, and the loop takes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: dict[_Key, _OneJob] = {}
        self.waiting = False
        """Whether there are notes to send."""

    def __iter__(self) -> Iterator[JobNote]:
        """Iterate over the waiting notes, job by job."""
        for job in self._jobs.values():
            yield from job

    def add(self, note: JobNote) -> bool:
        """Add a note; return whether it is the first since `take`, so the loop must be woken."""
        with self._lock:
            job = self._jobs.setdefault((note.id, note.token), _OneJob())
            if note.kind == PROGRESS:
                job.progress = note
            else:
                job.lines.append(note)
            first, self.waiting = not self.waiting, True
            return first

    def take(self) -> list[list[JobNote]]:
        """Return the notes for each call of the next round trip, a few jobs each."""
        calls: list[list[JobNote]] = []
        size, count = 0, 0
        with self._lock:
            while self._jobs and size < MAX_BYTES:
                job = self._jobs.pop(next(iter(self._jobs)))
                if count % MAX_NOTED == 0:
                    calls.append([])
                count += 1
                for note in job:
                    calls[-1].append(note)
                    size += len(note.text)
            self.waiting = bool(self._jobs)
        return calls


class LatenessBuffer:
    """How late jobs have started since the last report; any thread adds and takes."""

    def __init__(self) -> None:
        self._late_us: deque[float] = deque()
        self.add: Final = self._late_us.append
        """Count one start, so many microseconds after its job was due."""

    def take(self) -> str:
        """Return the report for the next `settle` or `extend`, and begin a new one."""
        taken: list[float] = []
        with suppress(IndexError):  # another thread may take at the same time
            while self._late_us:
                taken.append(self._late_us.popleft())
        buckets = Counter([bisect(_BOUNDS_US, late_us) for late_us in taken])
        return " ".join(f"{bucket}={count}" for bucket, count in buckets.items())


_BOUNDS_US: Final = [FINEST * 1e6 * 2**bucket for bucket in range(LAST)]


class AheadWindow:
    """How long before a due time a worker claims its job, and for which due times.

    The claim must arrive before the job is due, and its reply back here. So the lead grows with the
    round trips, and with how much they differ: their mean and deviation are smoothed as TCP does
    it (RFC 6298). All jobs that become due before another claim can arrive come with the same one.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        """Seconds that a round trip takes."""
        self._deviation = 0.0

    def note(self, seconds: float) -> None:
        """Record the time of a round trip."""
        if not self.mean:
            self.mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += 0.25 * (abs(seconds - self.mean) - self._deviation)
        self.mean += 0.125 * (seconds - self.mean)

    @property
    def lead(self) -> float:
        """Seconds before the due time at which to claim."""
        return min(LEAD + self.mean / 2 + 4 * self._deviation, LONGEST_LEAD)

    @property
    def length(self) -> float:
        """Seconds from a claim to the latest due time for which it takes jobs."""
        return min(self.lead + self.mean + SPAN, MAX_AHEAD_US / 1e6)


LEAD: Final = 0.0018
"""Seconds: the first steps of a process that has slept are slow, and so is a busy server."""

LONGEST_LEAD: Final = 0.015

SPAN: Final = 0.003
"""Seconds of due times that one claim takes. A longer span saves claims; but a job that is claimed
earlier is longer in a worker that may die."""

_LOG_EVERY: Final = 30
"""Consecutive failures after which a reason is logged again although it has not changed."""

_CHANGE_EVERY: Final = 5
"""Consecutive failures after which a reason is logged again that has returned after another one.
Reasons that alternate would otherwise fill the log."""

_TRY_EVERY: Final = 1.0
"""Seconds between claims for jobs of unknown tasks, while this worker lacks a task."""

_NUMBER: Final = re.compile(r"\d+")


class QueueState:
    """The worker's side of one queue."""

    def __init__(
        self,
        keys: Keys,
        worker: str,
        lease_us: int,
        keyring: Keyring | None = None,
        metrics: WorkerMetrics | None = None,
        lifo: bool = False,
    ) -> None:
        self.keys = keys
        self._flags = "n" if lifo else ""
        self.seal: Final = Seal(keyring, keys)
        """Checks the signatures of the queue's jobs."""
        self.queue = keys.queue or ""
        self.worker: Final = worker
        """The name of the worker."""
        self.metrics: Final = metrics
        """The queue's metrics; None if the worker counts none."""
        self.settles: deque[Settle] = deque()
        """Outcomes that are not sent yet; each occupies a slot until it is sent."""
        self.lateness: Final = LatenessBuffer()
        """How late the queue's jobs have started here."""
        self.notes: Final = NoteBuffer()
        """The notes of running jobs; any thread may add."""
        self.check = True
        """Whether to claim as soon as there is a free slot."""
        self.limited = False
        """Whether a job is due that a limit of the queue holds back."""
        self.is_woken = False
        """Whether a wake-up message came and no claim has followed yet."""
        self._lacked = False
        """Whether a job has ended, since the last try, whose task is not served here."""
        self._tried_at = 0.0
        self._served = False
        """Whether a job has run, since the last claim, that a worker without its task released."""
        self.quiet_until = 0.0
        """No warning about dropped results before this time (`time.monotonic()`)."""
        self.failures = 0
        """How many consecutive round trips have failed."""
        self._reasons: set[str] = set()
        """The reasons of these failures, without their numbers."""
        self._logged = 0, ""
        """The last of these failures that was logged, and its reason."""
        self.resting = False
        """Whether sending is paused for a short time, because a round trip failed."""
        self.exact = False
        """Whether `claim_at` is a deadline, for which precision counts, or only a time to poll."""
        self.claim_at = 0.0
        """When to claim without a wake-up message (`time.monotonic()`); 0 if not set."""
        self.lead = 0.0
        """How long before the next due time `claim_at` is."""
        self._lease_us = lease_us
        self.lease: Final = lease_us / 1e6
        self._session = ClaimSession(worker)
        self._window = AheadWindow()
        self._ahead_us = 0
        self.clock = (0, 0.0)
        self._woken_since_claim = False  # a wake-up message came after the claim was built

    @property
    def unanswered(self) -> bool:
        """Whether a claim was sent whose reply is missing: it may have taken jobs."""
        return self._session.pending is not None

    def failed(self, reason: str) -> bool:
        """Count a round trip that failed; return whether to log the reason.

        A reason that is new in this outage is logged immediately, and one that returns soon. Other
        numbers in the text do not make it another reason.
        """
        reason = _NUMBER.sub("", reason)
        self.failures += 1
        last, logged = self._logged
        is_new = reason not in self._reasons
        has_returned = reason != logged and self.failures - last >= _CHANGE_EVERY
        if not (is_new or has_returned or self.failures % _LOG_EVERY == 1):
            return False
        self._reasons.add(reason)
        self._logged = self.failures, reason
        return True

    def succeeded(self) -> None:
        """Reset the failures after a successful round trip; the next failure starts an outage."""
        self.failures = 0
        self._reasons.clear()
        self._logged = 0, ""

    def on_wakeup(self, caller: str) -> None:
        """Handle a wake-up message for this queue, which a claim of `caller` has sent."""
        if self._session.is_news(caller):
            self.is_woken = self._woken_since_claim = self.check = True

    @property
    def until(self) -> float:
        """When this worker must claim (`time.monotonic()`), with or without a slot; 0: never."""
        return self._session.until

    def is_due(self, now: float, settles: Sequence[Settle] = (), has_slot: bool = True) -> bool:
        """Whether to claim from the queue, in a round trip that also sends these outcomes.

        Without a free slot (`has_slot`), nothing is claimed ahead.
        """
        if self.check or any(map(_is_due_again, settles)):
            return True
        if not has_slot:
            return self.is_timekeeper_due(now)
        # The next round trip starts after this one has ended.
        return 0 < self.claim_at <= (now + self._window.mean if settles else now)

    def is_timekeeper_due(self, now: float) -> bool:
        """Whether the time has come at which this worker must claim as the timekeeper or backup."""
        return not self.check and 0 < self.until <= now

    def take_settles(self) -> list[Settle]:
        """Take as many outcomes as fit one call; if it fails, use `put_back`."""
        count = fitting(self.settles)
        if count < len(self.settles):
            return [self.settles.popleft() for _ in range(count)]
        taken = list(self.settles)
        self.settles.clear()
        return taken

    def put_back(self, settles: Sequence[Settle]) -> None:
        """Queue these outcomes again, before the others."""
        self.settles.extendleft(reversed(settles))

    def take_notes(self) -> list[Command[None]]:
        """Take the buffered notes; return the calls that store them."""
        return [add_notes(self.keys, notes) for notes in self.notes.take()]

    def settle(self, settles: Sequence[Settle]) -> Command[list[Verdict]]:
        """Return the call that records outcomes."""
        return settle(self.keys, settles, self.lateness.take())

    def claim(self, count: int, busy: int, slots: int = 0, burst: bool = False) -> Command[Claim]:
        """Return the next claim; it stays the same claim until `claimed` receives its reply.

        It takes up to `slots` jobs ahead.
        """
        self._woken_since_claim = False
        flags, now = f"{self._flags}s" if self._served else self._flags, time.monotonic()
        self._served = False
        if not self._lacked or now - self._tried_at >= _TRY_EVERY:
            flags += "e"
            self._lacked, self._tried_at = False, now
        arm = 3 if burst else 2
        self._ahead_us = round(self._window.length * 1e6) if slots > 0 else 0
        return self._session.claim(
            self.keys, count, self._lease_us, busy, arm, flags, self._ahead_us, slots
        )

    @property
    def is_quiet(self) -> bool:
        """Whether the next round trip will carry nothing but a claim, and an ordinary one."""
        is_claim_special = self._served or self._lacked or self.unanswered
        return not (is_claim_special or self.settles or self.notes.waiting or self.failures)

    def foresee(self, count: int, slots: int) -> Command[Claim]:
        """Return the claim that `claim` will return if the queue stays quiet and the worker idle.

        It counts as sent after `foreseen_sent`.
        """
        command = self.claim(count, 0, slots)
        self._session.pending = None
        return command

    def foreseen_sent(self) -> None:
        """Note that the claim that `foresee` returned is being sent."""
        self._session.pending = "claim"
        self._woken_since_claim = False
        self._tried_at = time.monotonic()

    def note_task(self, *, served: bool) -> None:
        """Record the end of a job that a worker without its task has released, here or before."""
        self._served = self._served or served
        self._lacked = self._lacked or not served

    def now_us(self) -> int:
        """Return the server's time, derived from the reply to the latest claim."""
        return self.server_us(time.monotonic())

    def server_us(self, at: float) -> int:
        """Return the server's time at `at` (`time.monotonic()`), derived from the latest claim.

        The claim is taken to have been as long on its way as its reply.
        """
        server_us, claimed_at = self.clock
        return server_us + round((at - claimed_at) * 1e6)

    def claimed(self, reply: Claim, sent: float, arrived: float) -> None:
        """Process the reply to the latest claim; both times are those of `time.monotonic()`."""
        self._session.claimed(reply, sent)
        self._window.note(arrived - sent)
        if self.metrics is not None:
            self.metrics.note_claim(reply)
        self.limited = reply.limited
        if not reply.stale:
            read_us = reply.read_us or reply.now_us
            ways = max(0.0, arrived - sent - (read_us - reply.now_us) / 1e6)
            at = arrived - ways / 2
            # If the clock was read once, the work of the claim counts as a part of the ways. So an
            # earlier and more exact clock is kept, unless the server's clock has been set since.
            if reply.read_us or abs(read_us - self.server_us(at)) > ways * 1e6:
                self.clock = read_us, at
        # The claim may have missed the jobs of a message that came after it.
        self.is_woken = self._woken_since_claim
        self.check = not reply.until_us or reply.more or self._woken_since_claim
        self.exact = reply.until_us == reply.deadline_us
        # What this claim has not taken ahead, the next one does not take ahead either.
        is_ahead = reply.soon and reply.deadline_us - reply.now_us > self._ahead_us
        self.lead = self._window.lead if self.exact and is_ahead else 0.0
        self.claim_at = self.until - self.lead
        if self.claim_at <= arrived:
            self.claim_at, self.lead = self.until, 0.0


def _is_due_again(settle: Settle) -> bool:
    """Whether an outcome makes its job due immediately, so that the next claim may return it."""
    again = settle.outcome in ("retry", "snooze") and settle.due == "+0"
    return again or settle.outcome == "release"


Strategy = Literal["strict", "fair"] | Mapping[str, int]
"""The argument `strategy` of a worker: a name, or the weight of each of its queues."""

HEAVIEST: Final = 1_000_000

_STRATEGIES: Final = "'strict', 'fair', or a weight for each queue such as {'high': 6, 'low': 1}"


class PollingOrder:
    """Divides slots among queues, which are given by their indexes in the worker's list.

    Slots go to a queue only while all queues before it have no due job.
    """

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """Return how many free slots each queue may fill; 0 for a queue that is not ready."""
        shares = [0] * len(ready)
        if any(ready):
            shares[ready.index(True)] = slots
        return shares

    def note_taken(self, queue: int, jobs: int) -> None:
        """Count jobs that were claimed from a queue."""


class Weighted(PollingOrder):
    """Gives each queue its share of the claimed jobs while it has work."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._times = [0.0] * len(weights)
        self._were_ready = [False] * len(weights)

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """Give each slot to the ready queue whose virtual time is earliest."""
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
        """Advance the queue's virtual time."""
        self._times[queue] += jobs / self._weights[queue]

    def _admit(self, ready: Sequence[bool]) -> None:
        """Start a queue that becomes ready at the time of the queues that were ready already."""
        both = [
            self._times[i] for i, is_ready in enumerate(ready) if is_ready and self._were_ready[i]
        ]
        now = min(both, default=max(self._times))
        for i, is_ready in enumerate(ready):
            if is_ready and not self._were_ready[i]:
                self._times[i] = max(self._times[i], now)
        self._were_ready = list(ready)


def make_order(choice: Strategy, queues: Sequence[str]) -> PollingOrder:
    """Return the polling order for a `strategy` argument.

    Args:
        choice: the argument.
        queues: the worker's queues, in the order in which they were given.

    Raises:
        UsageError: the argument is invalid; the message says how to write it.
    """
    if isinstance(choice, Mapping):
        return Weighted(_weights(choice, queues))
    if choice == "strict":
        return PollingOrder()
    if choice == "fair":
        return Weighted([1] * len(queues))
    raise UsageError(f"strategy must be {_STRATEGIES}, not {choice!r}.")


def read_strategy(text: str) -> Strategy:
    """Parse a strategy: `strict`, `fair`, or weights such as `high=6,low=1`.

    Raises:
        UsageError: the text is none of these.
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
                f"strategy {text!r} is invalid; write strict, fair, or a weight for each queue "
                "such as high=6,low=1."
            )
        if queue in weights:
            raise UsageError(f"strategy {text!r} gives {queue!r} two weights; give it one.")
        weights[queue] = int(weight)
    return weights


def _weights(given: Mapping[Any, Any], queues: Sequence[str]) -> list[int]:
    for queue, weight in given.items():
        if queue not in queues:
            raise UsageError(
                f"strategy gives a weight to {queue!r}, which is none of the worker's queues "
                f"({', '.join(queues)}); add it to them, or take its weight out."
            )
        whole = isinstance(weight, int) and not isinstance(weight, bool)
        if not whole or not 1 <= weight <= HEAVIEST:
            raise UsageError(
                f"The weight of {queue!r} must be a whole number from 1 to {HEAVIEST:,}, not "
                f"{weight!r}; to serve it only when the others are empty, put it last in a worker "
                "whose strategy is 'strict'."
            )
    missing = [queue for queue in queues if queue not in given]
    if missing:
        raise UsageError(
            f"strategy gives no weight to {', '.join(map(repr, missing))}; give each of the "
            "worker's queues one."
        )
    return [given[queue] for queue in queues]


AHEAD: Final = 0.005
"""Seconds of work that may wait for a slot."""

STALE: Final = 0.05
"""Seconds without a free slot and without a job's end, after which waiting jobs are released: other
workers may have free slots."""

_WEIGHT: Final = 0.1


class Prefetch:
    """Estimates recent run times, and so how many jobs to prefetch."""

    def __init__(self) -> None:
        self._mean = 0.0

    def note_run(self, seconds: float) -> None:
        """Record the run time of a job that has ended."""
        self._mean += (_WEIGHT if self._mean else 1.0) * (seconds - self._mean)

    def note_running(self, seconds: float) -> None:
        """Record how long a job has been running that has not ended.

        Without an estimate this has no effect: the job may have started just now.
        """
        if self._mean:
            self._mean = max(self._mean, seconds)

    def ahead(self, most: int) -> int:
        """Return how many jobs may wait for one slot; 0 while there is no estimate."""
        return min(most, int(AHEAD / self._mean)) if self._mean else 0
