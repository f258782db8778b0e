"""The worker's side: claim, settle, extend, leave.

A settle contains the token of its claim. The server applies it if the job is still held under that
token. It answers `ok` again to a repeat, and `lost` to a worker whose lease has passed to another.

The server stores the latest claim or pop of each consumer, with its number and the jobs that it
took. If a reply was lost, the call is repeated with the same number, and returns the same jobs. The
server stores only one call of a consumer. So a session makes one call at a time, and concurrent
calls need sessions with different names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import msgspec

from bide.model.job import Claimed
from bide.protocol.commands import Arg, Command, command, pieces, raw, text, words
from bide.protocol.keys import Keys

MAX_CLAIM: Final = 250
"""Maximum jobs per claim, which limits the time of a call on the server."""

MAX_AHEAD_US: Final = 20_000
"""Maximum microseconds before its due time at which a job is claimed."""

MAX_POP: Final = 250
"""Maximum items per pop, for the same reason."""

MAX_SETTLES: Final = 250
MAX_ERRORS: Final = 128
MAX_ERROR_BYTES: Final = 500_000
MAX_SETTLE_BYTES: Final = 4_000_000
"""Maximum of one settle call: outcomes, errors, bytes of errors, and bytes of all. Errors take the
server longer."""

MAX_NOTED: Final = 12
"""Maximum jobs per call of `add_notes` or `items_reject`: each reads and writes up to 90 KB of
notes. (`settle` counts the bytes, and returns which outcomes to send again.)"""

_LATER: Final = "later"
"""The verdict for an outcome that must be sent again."""

_MORE: Final = 1
_LIMITED: Final = 2
"""The values of a claim's field for the jobs that are left."""

Outcome = Literal["complete", "retry", "fail", "snooze", "hold", "release", "cancel", "crash"]
Verdict = Literal["ok", "full", "lost", "gone"]
"""`full`: applied, but older results of the queue were dropped to make room."""
Renewal = Literal["ok", "asked", "lost", "gone"]


class Lost(NamedTuple):
    """An attempt whose lease has ended without an outcome."""

    claimed: Claimed
    """The job as that attempt claimed it, without its body."""
    worker: str
    """The name of the worker that held it."""
    has_failed: bool
    """Whether it has failed, because too many workers have died while they ran it."""


class Claim(NamedTuple):
    """The reply to a claim."""

    now_us: int
    """The server's time at the claim."""
    until_us: int
    """When to claim again without a wake-up message; 0 if the worker has no free slots left."""
    deadline_us: int
    """The next due time or end of a lease; 0 if there is none."""
    more: bool
    """Whether more jobs are due than the claim took or read: claim again as soon as a slot is
    free."""
    alone: bool
    """Whether the claimed job is a suspect: no other job may run beside it."""
    drain: bool
    """Whether a suspect waits for an idle worker: finish the running jobs, then claim."""
    jobs: list[Claimed]
    stale: bool = False
    """Whether the server has seen a later claim of this worker."""
    post: bool = False
    """Whether there are messages to other queues: see `enqueue.read_outbox`."""
    thin: Sequence[str] = ()
    """Schedules of which the server needs more times."""
    soon: bool = False
    """Whether the deadline is the due time of a job, which can be claimed ahead."""
    limited: bool = False
    """Whether a limit holds back due jobs, until the deadline or the end of a job."""
    read_us: int = 0
    """The server's time when it sent the reply; 0 if it is not known."""
    lost: Sequence[Lost] = ()
    """Attempts whose leases this claim has found ended; a repeat of the claim does not name
    them."""


class Popped(NamedTuple):
    """The reply to a pop."""

    bodies: list[bytes]
    """The removed items, in the order of `ids`."""
    more: bool
    """Whether there may be more items although the reply has fewer than requested: pop again."""
    refused: int
    """Number of jobs among the items; the pop has failed them."""
    lost: int = 0
    """Number of items that the call removed, and that its repeat, which came too late, has lost."""
    not_data: bool = False
    """Whether the queue holds jobs and no data; the jobs are unchanged."""
    stale: bool = False
    """Whether the server has seen a later call of this consumer."""
    ids: Sequence[str] = ()


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a run."""

    outcome: Outcome
    due: str = ""
    """When the job is due again, for `retry`, `snooze` and `hold`."""
    data: bytes = b""
    """The result or the error, also the error of a worker that does not serve the task."""
    keep: str = ""
    """How long to keep the finished job; by default as the queue is configured."""
    has_started: bool = False
    """Whether a released job has started, or may have."""

    def settle(self, job: Claimed, started_us: int = 0) -> Settle:
        """Return this as the outcome of a claimed job, which started at `started_us`."""
        return Settle(
            job.id,
            job.token,
            self.outcome,
            self.due,
            self.data,
            self.keep,
            self.has_started,
            started_us,
        )


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The outcome of the run of a claimed job; fields as in `Ended`."""

    id: str
    token: int
    outcome: Outcome
    due: str = ""
    data: bytes = b""
    keep: str = ""
    has_started: bool = False
    started_us: int = 0
    """When the job's first statement ran, on the server's clock; 0 if that is not known."""


class JobNote(msgspec.Struct, frozen=True, gc=False):
    """A log line, or the progress, of a running job."""

    id: str
    token: int
    kind: str
    text: bytes


def claim(
    keys: Keys,
    worker: str,
    seq: int,
    count: int,
    lease_us: int,
    busy: int,
    arm: int = 2,
    flags: str = "",
    ahead_us: int = 0,
    slots: int = 0,
) -> Command[Claim]:
    """Claim up to `count` due jobs, and jobs that are due a moment later.

    Args:
        keys: the keys of the queue.
        worker: the name of the worker.
        seq: the number of this claim; a repeat has the same number.
        count: maximum number of jobs.
        lease_us: how long the jobs are held if their leases are not renewed.
        busy: number of jobs that the worker runs already.
        arm: whether the worker waits for the next due time. 2: if it has free slots left. 1: if it
            claimed nothing. 0: no, and another worker is woken as the timekeeper. 3: as 2, and the
            reply is `limited` also if the rate of a group holds back a due job.
        flags: letters. "n": of each priority, claim the newest due jobs first. "e": claim jobs that
            a worker without their task returned, even before they are due again. "s": this worker
            has run such a job.
        ahead_us: also claim jobs that are due within this time, at most `MAX_AHEAD_US`. The worker
            starts each of them when it is due.
        slots: maximum number of jobs if any of them is not due yet.
    """
    args = (worker, seq, min(count, MAX_CLAIM), lease_us, busy, arm, flags, ahead_us, slots)
    return command("claim", keys, args, _read_claim)


def server_time(keys: Keys) -> Command[int]:
    """Read the server's time in microseconds, after the calls before it in the round trip."""
    return command("server_time", keys, (), lambda reply: int(reply[1]))


def pop(keys: Keys, consumer: str, seq: int, count: int, previous_us: int) -> Command[Popped]:
    """Remove and return up to `count` items that became due at least `previous_us` ago."""
    args = (consumer, seq, min(count, MAX_POP), previous_us)
    return command("pop", keys, args, _read_popped)


def reject_items(keys: Keys, refused: Sequence[tuple[str, bytes]]) -> Command[list[str]]:
    """Fail popped items; `refused` has id and error of at most `MAX_NOTED` items.

    The result for each is `ok`, or `gone` if its retention has ended meanwhile.
    """
    args: list[Arg] = []
    for id, error in refused:
        args += (raw(id), error)
    return command("items_reject", keys, args, lambda reply: words(reply, 2))


def settle(keys: Keys, settles: Sequence[Settle], late: str = "") -> Command[list[Verdict]]:
    """Record outcomes; return a verdict for each.

    Args:
        keys: the keys of the queue.
        settles: the outcomes.
        late: the lateness of jobs that have started since the last report: see `LatenessBuffer`.
    """
    return _settle(keys, settles, [_LATER] * len(settles), late)


def _settle(
    keys: Keys, settles: Sequence[Settle], before: Sequence[str], late: str = ""
) -> Command[list[Verdict]]:
    """Record the outcomes without a verdict; repeat this while the server leaves some for later."""
    args: list[Arg] = []
    for settle, verdict in zip(settles, before, strict=True):
        if verdict == _LATER:
            detail = settle.due or settle.keep or ("+0" if settle.has_started else "")
            started = f"{settle.started_us:016d}" if settle.started_us else ""
            token = f"{settle.token:016d}{started}"
            args += (raw(settle.id), token, settle.outcome, detail, settle.data)
    if late:
        args.append(late)

    def parse(reply: list[Any]) -> list[Any]:
        new = words(reply, 2)
        if len(new) == len(before):
            return new
        rest = iter(new)
        return [next(rest) if verdict == _LATER else verdict for verdict in before]

    def followup(reply: list[Any]) -> Command[list[Verdict]] | None:
        if _LATER.encode() not in reply:
            return None
        return _settle(keys, settles, parse(reply))

    return command("settle", keys, args, parse, followup=followup)


def fitting(settles: Iterable[Settle]) -> int:
    """Return how many settles fit one call, by count, errors and bytes; at least one."""
    size = errors = error_size = count = 0
    for settle in islice(settles, MAX_SETTLES):
        size += len(settle.data)
        if settle.outcome != "complete" and settle.data:
            errors += 1
            error_size += len(settle.data)
        too_many = errors > MAX_ERRORS or error_size > MAX_ERROR_BYTES
        if count and (too_many or size > MAX_SETTLE_BYTES):
            break
        count += 1
    return count


def extend(
    keys: Keys, lease_us: int, held: Sequence[tuple[str, int]], late: str = ""
) -> Command[list[Renewal]]:
    """Renew leases; `held` has id and token of each job; `late` as for `settle`."""
    args: list[Arg] = [lease_us]
    for id, token in held:
        args += (raw(id), f"{token:016d}")
    if late:
        args.append(late)
    return command("extend", keys, args, lambda reply: words(reply, 2))  # type: ignore[arg-type, return-value]


def add_notes(keys: Keys, said: Sequence[JobNote]) -> Command[None]:
    """Add notes to jobs, except jobs that another worker has claimed since."""
    args: list[Arg] = []
    for note in said:
        args += (raw(note.id), f"{note.token:016d}", note.kind, note.text)
    return command("add_notes", keys, args, lambda reply: None)


def worker_leave(keys: Keys, worker: str) -> Command[None]:
    """Remove the queue's data about a worker that stops."""
    return command("worker_leave", keys, (worker,), lambda reply: None)


def _read_claim(reply: list[Any]) -> Claim:
    if reply[0] == b"stale":
        return Claim(0, 0, 0, True, False, False, [], stale=True)
    jobs = [_read_claimed(*fields) for fields in pieces(reply, 11, 5)]
    now_us, until_us, deadline_us, more, alone, drain, thin, post, lost, soon = reply[1:11]
    is_more, limited = more == _MORE, more == _LIMITED
    alone, drain = bool(alone), bool(drain)
    claim = Claim(
        now_us, until_us, deadline_us, is_more, alone, drain, jobs, soon=bool(soon), limited=limited
    )
    if thin or post or lost:
        names = text(thin).split(" ") if thin else ()
        told = [_read_lost(*fields) for fields in pieces(lost, 0, 6)]
        return claim._replace(thin=names, post=bool(post), lost=told)
    return claim


def _read_popped(reply: list[Any]) -> Popped:
    if reply[0] == b"stale":
        return Popped([], False, 0, stale=True)
    status, _, more, refused, lost, *items = reply
    ids, bodies = [text(id) for id in items[::2]], items[1::2]
    return Popped(bodies, bool(more), refused, lost, not_data=status == b"not_data", ids=ids)


def _read_claimed(id: bytes, body: bytes, token: int, tries: int | bytes, due_us: int) -> Claimed:
    if isinstance(tries, int):
        return Claimed(text(id), body, token, tries, 0, due_us, due_us)
    attempt, reclaims, first_us, *rest = map(int, tries.split())
    return Claimed(text(id), body, token, attempt, reclaims, first_us, due_us, *rest)


def _read_lost(
    id: bytes, token: bytes, tries: bytes, due_us: int, worker: bytes, has_failed: int
) -> Lost:
    return Lost(_read_claimed(id, b"", int(token), tries, due_us), text(worker), bool(has_failed))


Kind = Literal["claim", "pop"]


class ClaimSession:
    """A consumer and its latest call: a worker at one queue, or a consumer of a delay queue."""

    def __init__(self, consumer: str) -> None:
        self.consumer: Final = consumer
        self.pid: Final = os.getpid()
        """The process of the session. A forked child must not use it: both would receive the same
        jobs."""
        self.pending: Kind | None = None
        """The kind of a call whose reply was not read: it may have taken jobs."""
        self.is_timekeeper = False
        """Whether the server relies on this consumer to claim again at the next due time."""
        self.until = 0.0
        """When to claim without a wake-up message (`time.monotonic()`); 0 if not set."""
        self._seq = 1
        self._echoed = False

    def claim(
        self,
        keys: Keys,
        count: int,
        lease_us: int,
        busy: int,
        arm: int,
        flags: str = "",
        ahead_us: int = 0,
        slots: int = 0,
    ) -> Command[Claim]:
        """Return the next claim; it has the same number until `claimed` receives its reply."""
        self.pending, self.is_timekeeper = "claim", arm > 0
        return claim(
            keys,
            self.consumer,
            self._seq,
            count,
            lease_us,
            busy,
            arm,
            flags,
            ahead_us,
            slots,
        )

    def claimed(self, reply: Claim, sent: float) -> None:
        """Note the reply to the latest claim, which was sent at `sent` (`time.monotonic()`)."""
        self._answered()
        if not reply.stale:
            self.is_timekeeper = reply.until_us > 0
        # Counted from the arrival of the reply, each wait would include the reply's transfer time.
        self.until = sent + (reply.until_us - reply.now_us) / 1e6 if reply.until_us else 0.0

    def pop(self, keys: Keys, count: int, previous_us: int) -> Command[Popped]:
        """Return the next pop; it has the same number until `popped` receives its reply."""
        self.pending = "pop"
        return pop(keys, self.consumer, self._seq, count, previous_us)

    def popped(self) -> None:
        """Note that the reply to the latest pop was read."""
        self._answered()

    def _answered(self) -> None:
        self._seq += 1
        self.pending = None

    def is_news(self, caller: str) -> bool:
        """Return whether a wake-up message is a reason to claim again.

        The server sends such a message to find a backup for a timekeeper. It goes to the consumer
        that has listened longest, which may be the timekeeper itself. Then it claims again, and is
        now the last in line. If it receives its own message twice in a row, there is no other
        consumer.

        Args:
            caller: the consumer whose claim has sent the message, or `-`.
        """
        if caller == self.consumer and self._echoed:
            self._echoed = False
            return False
        self._echoed = caller == self.consumer
        return True
