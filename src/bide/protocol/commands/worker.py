"""The worker's side: claim, settle, extend, leave.

A claim carries a number, so that its repeat after a lost reply returns what the first took. A
settle carries the token of its claim: the server applies it if the job is still held under that
token, answers `ok` again to a repeat, and `lost` to a worker whose lease has passed to another.

The server remembers the last call of each consumer, with its number and what it took. So a call
whose reply was lost is repeated with the same number, and its reply has what the first one took.
The server remembers only one call of a consumer. So a session makes one call at a time, and
concurrent calls need sessions with different names.
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
"""Jobs per claim at most: bounds the time one call may take on the server."""

MAX_AHEAD_US: Final = 20_000
"""Microseconds: jobs that are due later are not claimed."""

MAX_POP: Final = 250
"""The same of a pop."""

MAX_SETTLES: Final = 250
MAX_ERRORS: Final = 128
MAX_ERROR_BYTES: Final = 500_000
MAX_SETTLE_BYTES: Final = 4_000_000
"""Bounds of one settle call: outcomes, errors (which take the server longer, by their number and by
their bytes), bytes of both."""

MAX_NOTED: Final = 12
"""Jobs to whose notes one `add_notes` or `items_reject` adds at most: notes may take 90 KB each,
and are read and written. (`settle` counts the bytes, and says which outcomes to send again.)"""

_LATER: Final = "later"
"""How a settle says that an outcome is to be sent again."""

_MORE: Final = 1
_LIMITED: Final = 2
"""How a claim says what is left."""

Outcome = Literal["complete", "retry", "fail", "snooze", "hold", "release", "cancel", "crash"]
Verdict = Literal["ok", "full", "lost", "gone"]
"""`full`: applied, and results that the queue kept had to be dropped to make room."""
Renewal = Literal["ok", "asked", "lost", "gone"]


class Lost(NamedTuple):
    """An attempt whose lease has ended without an outcome."""

    claimed: Claimed
    """The job as it was claimed then, without its body."""
    worker: str
    """Who held it."""
    has_failed: bool
    """It will not be run again: too many workers have died under it."""


class Claim(NamedTuple):
    """What a claim brought."""

    now_us: int
    """The server's time at the claim."""
    until_us: int
    """When to claim again unless woken before; 0 where the worker was left without free slots."""
    deadline_us: int
    """The next due time or end of a lease; 0 where there is none."""
    more: bool
    """More is due than was taken or looked at: claim again as soon as there is room."""
    alone: bool
    """The job taken is a suspect: nothing may be claimed beside it."""
    drain: bool
    """A suspect waits for a worker that runs nothing else: finish what runs, then claim."""
    jobs: list[Claimed]
    stale: bool = False
    """The server has seen a later claim of this worker."""
    post: bool = False
    """Something is to be told to, or asked of, another queue."""
    thin: Sequence[str] = ()
    """Schedules that want to be sent more of their times."""
    soon: bool = False
    """The deadline is the due time of a job, which can be claimed ahead."""
    limited: bool = False
    """More is due, and a limit of the queue holds it back: until the deadline, or a job's end."""
    read_us: int = 0
    """The server's time when the reply was on its way, if it is known; else 0."""
    lost: Sequence[Lost] = ()
    """Jobs whose leases this claim has found to have ended; a repeat does not name them again."""


class Popped(NamedTuple):
    """What a pop brought."""

    bodies: list[bytes]
    """What was taken, one of each of `ids`."""
    more: bool
    """Fewer than were asked for, though there may be more: pop again."""
    refused: int
    """How many jobs were met that are no data; they have failed by this."""
    lost: int = 0
    """Of how many items that the call took its repeat came too late."""
    not_data: bool = False
    """The queue holds jobs of a worker's, and no data; they are as they were."""
    stale: bool = False
    """The server has seen a later call of this consumer."""
    ids: Sequence[str] = ()


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a run ended."""

    outcome: Outcome
    due: str = ""
    """When the job is due again: `retry`, `snooze`, `hold`."""
    data: bytes = b""
    """Its result or its error; or, if the worker does not serve its task, that error."""
    keep: str = ""
    """How long to keep the job that has ended; by default as long as the queue keeps such jobs."""
    has_started: bool = False
    """Whether a job that is released has started, or may have."""

    def settle(self, job: Claimed, started_us: int = 0) -> Settle:
        """Return this outcome as that of a claimed job, which started then."""
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
    """How the run of one claimed job ended; the fields of `Ended` mean the same."""

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
    """Something that a running job says of itself."""

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
    """Take up to `count` due jobs, and jobs that are due a moment later.

    Args:
        keys: of the queue.
        worker: who claims.
        seq: the number of this claim; a repeat carries the same.
        count: how many at most.
        lease_us: how long they are held without being extended.
        busy: how many jobs the worker runs already.
        arm: 2: with free slots left it waits for what is due next; 1: it does if nothing was
            taken; 0: it does not, and another is called to keep the time; 3: as 2, and the reply
            is `limited` also if the rate of a group holds a due job back.
        flags: with "n" in it, the newest of the jobs that are due come first, of each priority.
            And of jobs that a worker without their task returned: with "e" in it, they are
            taken also before they are due again; with "s", this worker has run one.
        ahead_us: jobs are also taken that are due within this time, `MAX_AHEAD_US` at most. The
            worker starts each of them when it is due.
        slots: how many jobs may be taken if any of them is not due yet.
    """
    args = (worker, seq, min(count, MAX_CLAIM), lease_us, busy, arm, flags, ahead_us, slots)
    return command("claim", keys, args, _read_claim)


def server_time(keys: Keys) -> Command[int]:
    """The server's time in microseconds, read after the calls before it in a round trip."""
    return command("server_time", keys, (), lambda reply: int(reply[1]))


def pop(keys: Keys, consumer: str, seq: int, count: int, previous_us: int) -> Command[Popped]:
    """Take up to `count` items off the queue that were due `previous_us` ago, for good."""
    args = (consumer, seq, min(count, MAX_POP), previous_us)
    return command("pop", keys, args, _read_popped)


def reject_items(keys: Keys, refused: Sequence[tuple[str, bytes]]) -> Command[list[str]]:
    """Have items that were popped fail after all; `refused` is (id, error) of `MAX_NOTED` at most.

    For each `ok`, or `gone` for what retention has removed meanwhile.
    """
    args: list[Arg] = []
    for id, error in refused:
        args += (raw(id), error)
    return command("items_reject", keys, args, lambda reply: words(reply, 2))


def settle(keys: Keys, settles: Sequence[Settle], late: str = "") -> Command[list[Verdict]]:
    """Apply outcomes; one verdict for each.

    Args:
        keys: of the queue.
        settles: the outcomes.
        late: how late jobs have started since the last report: see `LatenessBuffer`.
    """
    return _settle(keys, settles, [_LATER] * len(settles), late)


def _settle(
    keys: Keys, settles: Sequence[Settle], before: Sequence[str], late: str = ""
) -> Command[list[Verdict]]:
    """Apply the outcomes that have no verdict yet, as often as the server leaves some for later."""
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
    """How many of the first settles fit one call: by count, by errors, by bytes after the first."""
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
    """Renew leases; `held` is (id, token) of each job, `late` the same as of `settle`."""
    args: list[Arg] = [lease_us]
    for id, token in held:
        args += (raw(id), f"{token:016d}")
    if late:
        args.append(late)
    return command("extend", keys, args, lambda reply: words(reply, 2))  # type: ignore[arg-type, return-value]


def add_notes(keys: Keys, said: Sequence[JobNote]) -> Command[None]:
    """Add what jobs say of themselves to their notes; not of one that another has claimed since."""
    args: list[Arg] = []
    for note in said:
        args += (raw(note.id), f"{note.token:016d}", note.kind, note.text)
    return command("add_notes", keys, args, lambda reply: None)


def worker_leave(keys: Keys, worker: str) -> Command[None]:
    """Drop what the queue remembers of a worker that stops."""
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
    """A consumer and its latest call: a worker at one queue, or one taker of data."""

    def __init__(self, consumer: str) -> None:
        self.consumer: Final = consumer
        self.pid: Final = os.getpid()
        """The process of the session. A forked child must not use it: both would get the same."""
        self.pending: Kind | None = None
        """The kind of a call whose reply has not been read: it may have taken something."""
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
        # Counted from the arrival of the reply, each wait would be longer by the reply's travel.
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
        """Whether a wake-up message is a reason to claim again.

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
