"""Items as users hold them, and the arguments of delay queues, without I/O."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

from bide.errors import UsageError
from bide.model.durations import Duration, from_us, to_us
from bide.model.ids import check_name, new_id, short_id
from bide.model.job import Claimed, Snapshot, State
from bide.model.limits import Retention
from bide.model.options import Durability, check_durability
from bide.model.payload.body import ErrorInfo, decode_item, encode_item, is_item
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared, when
from bide.protocol.commands.worker import Claim, Outcome
from bide.protocol.keys import DEFAULT_PRIORITY
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
    data: Any
    state: State
    due: datetime
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
        self.data: Final[Any] = data
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


class Batch(Sequence[I], Generic[I]):
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
        """The items that have no answer yet."""
        return [item for item in self._items if item.answer is None]


C = TypeVar("C")

RETENTION: Final = Retention(completed=0, cancelled=0)
"""Taken items are not kept, except for 15 s, so that a repeated call finds what it took."""

ANSWERS: Final[dict[str | None, str]] = {
    "complete": "ack",
    "retry": "nack",
    "fail": "fail",
    "release": "released",
}
"""How items are answered, in the words of users."""

FIRST_DELAY, LONGEST_DELAY = 1_000_000, 300_000_000
"""Microseconds before an item that `each` went past comes again: the first, and the longest after
doubling."""

LEASE: Final = 30.0
"""Seconds for which an item is held, unless its consumer says otherwise."""


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
        raise UsageError("lease=0 would hold nothing; give as long as the work on an item takes.")
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
            f"push_many wants a list of what is to be pushed, not {type(data).__name__}; "
            "push(...) pushes one."
        )
    due, checked = when(delay, at), check_durability(durability)
    bodies = [encode_item(one) for one in data]
    given = [new_id() for _ in bodies] if ids is None else checked_ids(ids)
    if len(given) != len(bodies):
        raise UsageError(f"There are {len(bodies)} data and {len(given)} ids; give one each.")
    return [
        Prepared(check_name(id, "id"), due, DEFAULT_PRIORITY, body, checked)
        for id, body in zip(given, bodies, strict=True)
    ]
