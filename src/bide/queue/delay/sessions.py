"""The names under which a process takes items, and what it has in hand.

The server remembers what each consumer last took, so that a call whose reply was lost can be sent
again. It remembers one call of each: so calls that are under way at once, in threads or tasks, need
a name each. Such a name with its count of calls is a seat; whoever takes something sits down on a
free one.

All of this is one process's: a child that was forked begins with nothing, or both would hand out
the same.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from bide.errors import PayloadError, UsageError
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import decode_item, encode_error, is_item
from bide.model.payload.signing import Seal
from bide.protocol.command import Command
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Claim, Popped, Settle
from bide.protocol.keys import Keys
from bide.queue.delay.items import ItemCore, Steps, ask_all

Kind = Literal["claim", "pop"]


class ConsumerSession:
    """One name, and its latest call."""

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        self.name: Final = f"{socket.gethostname()}.{self.pid}.{secrets.token_hex(3)}"
        self.owes: Kind | None = None
        """A call was sent whose reply has not been seen: it may have taken items."""
        self.keeps_time = False
        """The server counts on this one to come back."""
        self._seq = 1
        self._echoed = False

    def claim(self, keys: Keys, count: int, lease_us: int, busy: int, arm: int) -> Command[Claim]:
        """The next claim; the same again until `answered`."""
        self.owes, self.keeps_time = "claim", arm > 0
        return worker_commands.claim(keys, self.name, self._seq, count, lease_us, busy, arm)

    def pop(self, keys: Keys, count: int, previous_us: int) -> Command[Popped]:
        """The next pop; the same again until `answered`."""
        self.owes = "pop"
        return worker_commands.pop(keys, self.name, self._seq, count, previous_us)

    def answered(self) -> None:
        """The reply to the latest call has come."""
        self._seq += 1
        self.owes = None

    def is_news(self, caller: str) -> bool:
        """Whether a wake hint is a reason to look.

        One that this seat pushed itself, to call another to keep the time with it, may come back to
        it: it calls again, and if it hears itself once more, nobody else is there.
        """
        if caller == self.name and self._echoed:
            self._echoed = False
            return False
        self._echoed = caller == self.name
        return True


class ConsumerSessions:
    """The seats of one delay queue in one process; shared by its threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free: list[ConsumerSession] = []
        self._left_over: deque[Any] = deque()
        self._orphans: list[Claimed] = []
        self._held = 0

    def _check_process(self) -> None:
        """A process that was forked has nothing of its parent's, and owes it nothing."""
        if self._pid != os.getpid():
            self._begin()

    @property
    def held(self) -> int:
        """How many items the consumers of this process hold."""
        with self._lock:
            self._check_process()
            return self._held

    def hold(self, items: Sequence[ItemCore]) -> None:
        """Items were handed out under a lease."""
        with self._lock:
            self._check_process()
            self._held += len(items)

    def let_go(self, items: Sequence[ItemCore]) -> list[ItemCore]:
        """They are held no more; those of them that this process held, and not its parent."""
        with self._lock:
            self._check_process()
            mine = [item for item in items if item.pid == self._pid]
            self._held -= len(mine)
            return mine

    def take_left_over(self, count: int) -> list[Any]:
        """Some of the data that were popped and not handed out."""
        with self._lock:
            self._check_process()
            left = self._left_over
            return [left.popleft() for _ in range(min(count, len(left)))]

    def leave_over(self, data: Sequence[Any]) -> None:
        """Keep data that were popped for who comes next."""
        with self._lock:
            self._check_process()
            self._left_over.extend(data)

    @property
    def has_orphans(self) -> bool:
        """Whether something is to be given back."""
        with self._lock:
            self._check_process()
            return bool(self._orphans)

    def take_orphans(self) -> list[Claimed]:
        """What was claimed by calls that did not live to hand it out."""
        with self._lock:
            self._check_process()
            taken, self._orphans = self._orphans, []
            return taken

    def orphan(self, jobs: Sequence[Claimed]) -> None:
        """Keep what was claimed until it can be given back."""
        with self._lock:
            self._check_process()
            self._orphans += jobs

    def take(self, kind: Kind) -> ConsumerSession:
        """A free seat for such a call: one that still owes it an answer, else one that owes none.

        Until it is put back, nobody else has it.
        """
        with self._lock:
            self._check_process()
            for owes in (kind, None):
                for i, seat in enumerate(self._free):
                    if seat.owes == owes:
                        return self._free.pop(i)
        return ConsumerSession()

    def put(self, seat: ConsumerSession) -> None:
        """Leave a seat to others."""
        with self._lock:
            self._check_process()
            if seat.pid == self._pid:
                self._free.append(seat)

    def take_all(self) -> list[ConsumerSession]:
        """All free seats."""
        with self._lock:
            self._check_process()
            taken, self._free = self._free, []
        return taken

    def take_unfinished(self) -> list[ConsumerSession]:
        """Those which may hold items that nobody knows of, or on which others count in vain."""
        taken = self.take_all()
        for seat in taken:
            if seat.owes != "claim" and not seat.keeps_time:
                self.put(seat)
        return [seat for seat in taken if seat.owes == "claim" or seat.keeps_time]


log = Log("bide.queue.delay")

Held = tuple[Claimed, Any]
"""What was claimed, and its data."""

Refused = tuple[str, bytes]
"""An item's id, and the error that it fails with."""


MOST_REFUSED: Final = 12
"""Jobs that one call fails at most because they are no data; `lua/pop.lua` has it too."""


class CheckedReply(NamedTuple):
    """What a claim brought."""

    items: list[Held]
    settles: list[Settle]
    """What cannot be read has failed, and what is too much is given back."""
    strangers: list[Claimed]
    """Jobs, of which a worker should have been told."""


def check_reply(seal: Seal, reply: Claim, count: int) -> CheckedReply:
    """What a claim brought; `seal` checks the signatures of items before they are decoded."""
    keys = seal.keys
    found = CheckedReply([], [], [])
    for job in reply.jobs:
        if not is_item(job.body):
            found.strangers.append(job)
            continue
        try:
            seal.check("item", job.id, job.body)
            data = decode_item(job.body)
        except PayloadError as error:
            log.warning("queue %s: item %s has failed: %s", keys.queue, short_id(job.id), error)
            found.settles.append(Settle(job.id, job.token, "fail", "", encode_error(error)))
            continue
        if len(found.items) < count:
            found.items.append((job, data))
        else:  # of a repeated call that had asked for more
            found.settles.append(release(job))
    return found


def decide(
    keys: Keys, strangers: Sequence[Claimed], has_items: bool, is_data: bool
) -> tuple[list[Settle], UsageError | None]:
    """What becomes of jobs that a delay queue has met, and what to raise.

    Where there are data, they fail, a few at a time. Who meets nothing but jobs is at the wrong
    queue, and leaves them as they were.
    """
    if not has_items and not is_data:
        return [release(job) for job in strangers], _astray(keys)
    failing, rest = strangers[:MOST_REFUSED], strangers[MOST_REFUSED:]
    _warn(keys, len(failing))
    settles = [Settle(job.id, job.token, "fail", "", _refusal(job)) for job in failing]
    settles += [release(job) for job in rest]
    crowd = not has_items and len(failing) == MOST_REFUSED
    return settles, _crowd(keys) if crowd else None


def warn_of_lost(keys: Keys, reply: Popped) -> None:
    """Say what a pop met besides data.

    Raises:
        UsageError: there were jobs, and no data.
    """
    if reply.lost:
        log.error(
            "queue %s: %d items are lost: the call that took them had no answer, and it was "
            "repeated more than 15 s later; use take() for what must not be lost",
            keys.queue,
            reply.lost,
        )
    if reply.refused:
        _warn(keys, reply.refused)
    if reply.astray:
        raise _astray(keys)
    if reply.refused == MOST_REFUSED and not reply.bodies:
        raise _crowd(keys)


def _warn(keys: Keys, count: int) -> None:
    log.warning(
        "queue %s: met %d jobs, which are no data; they have failed, and stay to be retried "
        "once a Worker serves the queue",
        keys.queue,
        count,
    )


def _astray(keys: Keys) -> UsageError:
    return UsageError(
        f"Queue {keys.queue} holds jobs, and no data; give the DelayQueue a name of its own, or "
        "have a Worker serve this queue."
    )


def _crowd(keys: Keys) -> UsageError:
    return UsageError(
        f"Queue {keys.queue} holds data, but jobs stood before them, and {MOST_REFUSED} have "
        "failed; enqueue functions to another queue, and call again for what is behind them."
    )


def _refusal(job: Claimed) -> bytes:
    try:
        decode_item(job.body)
    except PayloadError as error:
        return encode_error(error)
    raise AssertionError(job)


def release(job: Claimed) -> Settle:
    """Given back as if it had not been taken."""
    return Settle(job.id, job.token, "release")


def settle_all(keys: Keys, settles: Sequence[Settle]) -> Steps[list[worker_commands.Verdict]]:
    """Apply any number of outcomes; one verdict for each."""
    commands: list[Command[Any]] = []
    while settles:
        size = worker_commands.fitting(settles)
        commands.append(worker_commands.settle(keys, settles[:size]))
        settles = settles[size:]
    return [verdict for verdicts in (yield from ask_all(commands)) for verdict in verdicts]


def decoded(seal: Seal, reply: Popped) -> tuple[list[Any], list[Refused]]:
    """The data, and what cannot be given out: not signed as it has to be, or not JSON."""
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


def refuse_all(keys: Keys, refused: Sequence[Refused]) -> Steps[None]:
    """What was popped and cannot be given out has failed: it stays as it is, for `retry`."""
    size = worker_commands.MAX_NOTED
    commands = [
        worker_commands.reject_items(keys, refused[i : i + size])
        for i in range(0, len(refused), size)
    ]
    yield from ask_all(commands)
