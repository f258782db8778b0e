"""The items of delay queues, the arguments of their methods, and the claim sessions of a process.

Concurrent calls, in threads or tasks, need different sessions, so each call uses a free one.
Sessions belong to one process: a forked child starts with none, otherwise parent and child would
hand out the same items.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from bide.errors import PayloadError, ServerRefused, UsageError
from bide.logs import Log, count
from bide.model.durations import Duration, from_us, to_us
from bide.model.ids import check_name, new_id, short_id
from bide.model.job import Claimed, Snapshot, State
from bide.model.limits import Retention
from bide.model.options import Durability, check_durability
from bide.model.payload.body import ErrorInfo, decode_item, encode_error, encode_item, is_item
from bide.model.payload.signing import Seal
from bide.protocol.commands import Command
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared, when
from bide.protocol.commands.worker import Claim, ClaimSession, Kind, Outcome, Popped, Settle
from bide.protocol.keys import DEFAULT_PRIORITY, Keys
from bide.queue.binding import ServerBinding
from bide.queue.core import checked_ids

if TYPE_CHECKING:
    from bide.queue.job_view import JobView

I = TypeVar("I", bound="ItemCore")  # noqa: E741 - an item


class PushResult(NamedTuple):
    """The result of a push."""

    id: str
    """The item's id."""
    due: datetime | None
    """When the item is due, on the server's clock; None if the id already existed."""
    created: bool
    """False if the id already existed and nothing was changed."""
    confirmed: Durability = "local"
    """The durability that the server has confirmed."""


def pushed(job: JobView[Any]) -> PushResult:
    """Return the result of a push, from the enqueued job."""
    created = bool(job.created)
    return PushResult(job.id, job.due if created else None, created, job.confirmed or "local")


class ItemInfo(NamedTuple):
    """An item as it was when it was read."""

    id: str
    """The item's id."""
    data: Any
    """The data."""
    state: State
    """The state of the item."""
    due: datetime
    """When it is due, or was due, on the server's clock."""
    attempt: int
    """Number of deliveries that count as attempts."""
    error: ErrorInfo | None
    """The error of its last return to the queue, or of its failure, if it is known."""

    @classmethod
    def read(cls, snapshot: Snapshot | None) -> ItemInfo | None:
        """Convert a snapshot; return None for a missing item, and for a job."""
        if snapshot is None or not is_item(snapshot.raw_body):
            return None
        return cls(
            snapshot.id,
            decode_item(snapshot.raw_body),
            snapshot.state,
            from_us(snapshot.due_us),
            snapshot.attempt,
            snapshot.notes.error,
        )


class ItemCore:
    """An item under a lease."""

    def __init__(self, claimed: Claimed, data: Any, lease_us: int) -> None:
        self.id: Final = claimed.id
        """The item's id."""
        self.data: Final[Any] = data
        """The data."""
        self.due: Final = from_us(claimed.due_us)
        """When it was due, on the server's clock."""
        self.attempt: Final = claimed.attempt
        """1 for the first delivery; a delivery that was returned unused does not count."""
        self.reclaims: Final = claimed.reclaims
        """Number of leases that ended without an answer since the last answered delivery."""
        self.token: Final = claimed.token
        self.pid: Final = os.getpid()
        self.lease_us: Final = lease_us
        self.answer: Outcome | None = None
        """The answer, once there is one."""
        self.counted = False
        """Whether the answer came before another consumer got the lease."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {short_id(self.id)} {self.data!r}>"


class ItemBatch(Sequence[I], Generic[I]):
    """The items of one `take`, in the order in which they were due."""

    def __init__(self, items: Sequence[I]) -> None:
        self._items: Final = items

    @overload
    def __getitem__(self, index: int) -> I: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[I]: ...
    def __getitem__(self, index: int | slice) -> I | Sequence[I]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[I]:
        return iter(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    @property
    def unanswered(self) -> list[I]:
        """Return the items that have no answer yet."""
        return [item for item in self._items if item.answer is None]


C = TypeVar("C")

RETENTION: Final = Retention(completed=0, cancelled=0)
"""Taken items are kept for 15 s only, so that a repeated call returns the same items."""

ANSWERS: Final[dict[str | None, str]] = {
    "complete": "ack",
    "retry": "nack",
    "fail": "fail",
    "release": "released",
}
"""The answers of items, in the words of users."""

FIRST_DELAY, LONGEST_DELAY = 1_000_000, 300_000_000
"""Microseconds before an item that `each` went past comes again: the first, and the longest after
doubling."""

LEASE: Final = 30.0
"""The default lease of an item in seconds."""


class TakeOptions(NamedTuple):
    """The arguments of a `take`."""

    num: int
    lease_us: int
    wait: float | None
    """Seconds; None for no limit."""
    previous_us: int = 0
    """Only items that became due at least this long ago."""


def take_options(num: int, lease: Duration, wait: Duration | None, previous_us: int) -> TakeOptions:
    """Check the arguments of a `take`."""
    wait_us = None if wait is None else to_us(wait, "wait")
    seconds = None if wait_us is None else wait_us / 1e6
    count = checked_num(num, worker_commands.MAX_CLAIM)
    return TakeOptions(count, checked_lease(lease), seconds, previous_us)


LOOK_AT_LEAST_US, LOOK_AT_MOST_US = 2_000_000, 50_000
"""A consumer with `previous` claims again after this time at the latest, and at the earliest."""


def look_again(reply: Claim, previous_us: int) -> float:
    """Return after how many seconds a consumer with `previous` claims again.

    It waits for no wake-up message: an item that becomes due after its claim is for it only
    `previous` later. So it takes no message from consumers that want items at once.
    """
    pause_us = min(max(previous_us, LOOK_AT_MOST_US), LOOK_AT_LEAST_US)
    if reply.deadline_us:
        pause_us = min(pause_us, reply.deadline_us - reply.now_us)
    return pause_us / 1e6


def checked_num(num: int, most: int | None = None) -> int:
    """Check a number of items."""
    if isinstance(num, bool) or not isinstance(num, int) or num < 1 or (most and num > most):
        raise UsageError(
            f"num={num!r} is not a number of items; give 1 {f'to {most}' if most else 'or more'}."
        )
    return num


def checked_lease(lease: Duration) -> int:
    """Convert a lease to microseconds."""
    lease_us = to_us(lease, "lease")
    if lease_us == 0:
        raise UsageError("lease must be more than 0; give the time that the work on an item takes.")
    return lease_us


def delay_after(attempt: int) -> int:
    """Return the microseconds before an item that `each` went past comes again."""
    return min(FIRST_DELAY << min(attempt - 1, 20), LONGEST_DELAY)


def usable(binding: ServerBinding[C]) -> ServerBinding[C]:
    """Return the binding, unless this is eager mode, which has no server that could hold data."""
    if binding.fake_server is not None:
        raise UsageError(
            "bide.testing.eager() has no server that could hold data; test a DelayQueue with the "
            "fixture `bide_test`, or bide.testing.start()."
        )
    return binding


def prepare_items(
    data: Iterable[Any],
    delay: Duration | None,
    at: datetime | None,
    ids: Any,
    durability: Durability | None,
) -> list[Prepared]:
    """Prepare data for a push; arguments and errors as for `push_many`."""
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise UsageError(
            f"push_many needs a list of items, not {type(data).__name__}; push(...) adds one item."
        )
    due, checked = when(delay, at), check_durability(durability)
    bodies = [encode_item(one) for one in data]
    given = [new_id() for _ in bodies] if ids is None else checked_ids(ids)
    if len(given) != len(bodies):
        raise UsageError(
            f"There are {len(bodies)} items and {len(given)} ids; give one id for each item."
        )
    return [
        Prepared(check_name(id, "id"), due, DEFAULT_PRIORITY, body, checked)
        for id, body in zip(given, bodies, strict=True)
    ]


class ConsumerSessions:
    """The sessions of one delay queue in one process; shared by its threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free: list[ClaimSession] = []
        self.left_over: list[Any] = []
        """Data that calls popped and did not hand out."""
        self.unclaimed: list[Claimed] = []
        """Claimed items that are to be returned to the queue: their calls were cancelled."""
        self.held = 0
        """The number of items that the consumers of this process hold."""

    @contextmanager
    def locked(self) -> Iterator[ConsumerSessions]:
        """Hold the lock; after a fork, start with no sessions and no items: those of the parent."""
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            yield self

    def release(self, items: Sequence[ItemCore]) -> list[ItemCore]:
        """Stop counting items; return those that this process held, not its parent."""
        with self.locked():
            mine = [item for item in items if item.pid == self._pid]
            self.held -= len(mine)
            return mine

    def take(self, kind: Kind) -> ClaimSession:
        """Take a free session: one with a pending reply of this kind, otherwise one with none.

        The caller owns it until `put`.
        """
        with self.locked():
            for pending in (kind, None):
                for i, session in enumerate(self._free):
                    if session.pending == pending:
                        return self._free.pop(i)
        return ClaimSession(f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}")

    def put(self, session: ClaimSession) -> None:
        """Return a session for other calls."""
        with self.locked():
            if session.pid == self._pid:
                self._free.append(session)

    def unread(self) -> tuple[int, int]:
        """Return the number of popped items that no call has returned, and of unanswered pops."""
        with self.locked():
            return len(self.left_over), sum(one.pending == "pop" for one in self._free)

    def take_all(self) -> list[ClaimSession]:
        """Take all free sessions."""
        with self.locked():
            taken, self._free = self._free, []
        return taken

    def take_unfinished(self) -> list[ClaimSession]:
        """Take the free sessions that may hold unread items, or that the server relies on."""
        taken = self.take_all()
        for session in taken:
            if session.pending != "claim" and not session.is_timekeeper:
                self.put(session)
        return [session for session in taken if session.pending == "claim" or session.is_timekeeper]


log = Log("bide.queue.delay")

Held = tuple[Claimed, Any]
"""A claimed item and its data."""

Refused = tuple[str, bytes]
"""An item's id, and the error that it fails with."""


MOST_REFUSED: Final = 12
"""Jobs among the data that one call fails at most; `lua/pop.lua` has the same limit."""


class CheckedReply(NamedTuple):
    """The checked reply to a claim."""

    items: list[Held]
    settles: list[Settle]
    """Unreadable items fail; surplus items return to the queue."""
    not_data: list[Claimed]
    """Jobs among the items: only a worker can run them."""


def check_reply(seal: Seal, reply: Claim, count: int) -> CheckedReply:
    """Check the reply to a claim; `seal` checks signatures before items are decoded."""
    keys = seal.keys
    found = CheckedReply([], [], [])
    for job in reply.jobs:
        if not is_item(job.body):
            found.not_data.append(job)
            continue
        try:
            seal.check("item", job.id, job.body)
            data = decode_item(job.body)
        except PayloadError as error:
            log.warning("queue %s: item %s has failed: %s", keys.queue, short_id(job.id), error)
            found.settles.append(Settle(job.id, job.token, "fail", data=encode_error(error)))
            continue
        if len(found.items) < count:
            found.items.append((job, data))
        else:  # the reply to an earlier call with a larger number
            found.settles.append(release(job))
    return found


def decide(
    keys: Keys, not_data: Sequence[Claimed], has_items: bool, is_data: bool
) -> tuple[list[Settle], UsageError | None]:
    """Decide what happens with jobs that a delay queue has claimed, and which error to raise.

    If the queue holds data, the jobs fail, a few at a time. If it holds only jobs, the consumer is
    at the wrong queue, and the jobs return to the queue unchanged.
    """
    if not has_items and not is_data:
        return [release(job) for job in not_data], only_jobs(keys)
    failing, rest = not_data[:MOST_REFUSED], not_data[MOST_REFUSED:]
    _warn(keys, len(failing))
    settles = [Settle(job.id, job.token, "fail", data=_refusal(job)) for job in failing]
    settles += [release(job) for job in rest]
    crowd = not has_items and len(failing) == MOST_REFUSED
    return settles, _crowd(keys) if crowd else None


def warn_of_lost(keys: Keys, reply: Popped) -> None:
    """Log lost items, and jobs among the data; raise if there were only jobs."""
    if reply.lost:
        log.error(
            "queue %s: lost %s: a call that takes items had no answer, and it was repeated more "
            "than 15 s later; use take() for items that must not be lost",
            keys.queue,
            count(reply.lost, "item"),
        )
    if reply.refused:
        _warn(keys, reply.refused)
    if reply.not_data:
        raise only_jobs(keys)
    if reply.refused == MOST_REFUSED and not reply.bodies:
        raise _crowd(keys)


def warn_of_unread(queue: str, sessions: ConsumerSessions) -> None:
    """Log, as a consumer closes, what its pops have removed and not returned."""
    items, calls = sessions.unread()
    if items or calls:
        log.error(
            "queue %s: closed with %s that an interrupted pop() has removed, and %s of pop() "
            "without an answer; they are lost unless this process calls pop() again; use take() "
            "for items that must not be lost",
            queue,
            count(items, "item"),
            count(calls, "call"),
        )


def _warn(keys: Keys, number: int) -> None:
    log.warning(
        "queue %s: found and failed %s among the data; retry failed jobs when a Worker serves the "
        "queue",
        keys.queue,
        count(number, "job"),
    )


def only_jobs(keys: Keys) -> UsageError:
    """Return the error of a delay queue that has the name of a queue of jobs."""
    return UsageError(
        f"Queue {keys.queue} holds jobs, and no data; give the DelayQueue a name of its own, or "
        "have a Worker serve this queue."
    )


def _crowd(keys: Keys) -> UsageError:
    return UsageError(
        f"Queue {keys.queue} holds data, but also jobs, of which {MOST_REFUSED} have failed now; "
        f"enqueue functions to another queue, and call again for the data."
    )


def _refusal(job: Claimed) -> bytes:
    try:
        decode_item(job.body)
    except PayloadError as error:
        return encode_error(error)
    raise AssertionError(job)


def release(job: Claimed) -> Settle:
    """Return a job to the queue as if it had not been taken."""
    return Settle(job.id, job.token, "release")


def settles_of(keys: Keys, settles: Sequence[Settle]) -> list[Command[Any]]:
    """Return the calls that apply any number of outcomes."""
    commands: list[Command[Any]] = []
    while settles:
        size = worker_commands.fitting(settles)
        commands.append(worker_commands.settle(keys, settles[:size]))
        settles = settles[size:]
    return commands


def check_stale(reply: Claim | Popped) -> None:
    """Refuse a reply without items to a call that was not the session's latest."""
    if reply.stale:
        raise ServerRefused("The server has seen a later call of this consumer.")


def decoded(seal: Seal, reply: Popped) -> tuple[list[Any], list[Refused]]:
    """Return the data, and the items that cannot be handed out: badly signed, or not JSON."""
    data: list[Any] = []
    refused: list[Refused] = []
    for id, body in zip(reply.ids, reply.bodies, strict=True):
        try:
            seal.check("item", id, body)
            data.append(decode_item(body))
        except PayloadError as error:
            log.warning("queue %s: item %s has failed: %s", seal.keys.queue, short_id(id), error)
            refused.append((id, encode_error(error)))
    return data, refused


def refusals(keys: Keys, refused: Sequence[Refused]) -> list[Command[Any]]:
    """Return the calls that fail popped items; these stay unchanged, for `retry`."""
    size = worker_commands.MAX_NOTED
    return [
        worker_commands.reject_items(keys, refused[i : i + size])
        for i in range(0, len(refused), size)
    ]
