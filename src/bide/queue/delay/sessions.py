"""The claim sessions of a process that takes items, and the items that it has.

Concurrent calls, in threads or tasks, need different sessions, so each call uses a free one.
Sessions belong to one process: a forked child starts with none, otherwise parent and child would
hand out the same items.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from bide.errors import PayloadError, ServerRefused, UsageError
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import decode_item, encode_error, is_item
from bide.model.payload.signing import Seal
from bide.protocol.command import Command
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Claim, ClaimSession, Kind, Popped, Settle
from bide.protocol.keys import Keys
from bide.queue.delay.items import ItemCore


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
        else:  # the reply to a repeated call that asked for more items
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
        return [release(job) for job in not_data], _only_jobs(keys)
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
            "queue %s: %d items are lost: the call that took them had no answer, and it was "
            "repeated more than 15 s later; use take() for what must not be lost",
            keys.queue,
            reply.lost,
        )
    if reply.refused:
        _warn(keys, reply.refused)
    if reply.not_data:
        raise _only_jobs(keys)
    if reply.refused == MOST_REFUSED and not reply.bodies:
        raise _crowd(keys)


def _warn(keys: Keys, count: int) -> None:
    log.warning(
        "queue %s: met %d jobs, which are no data; they have failed, and stay to be retried "
        "once a Worker serves the queue",
        keys.queue,
        count,
    )


def _only_jobs(keys: Keys) -> UsageError:
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
