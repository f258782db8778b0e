"""Send rows to the server, and say what becomes of each.

A row ends in one of three ways. SENT: the server has answered. LATER: it may succeed later, so the
row stays. REFUSED: a repeat cannot succeed, so the row stays with its error until someone retries
or deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from bide.client import aio, blocking
from bide.contrib.outbox.rows import AnyQueue, Row, shifted
from bide.errors import (
    AccessDenied,
    BideError,
    ClientTooOld,
    DurabilityTimeout,
    DurabilityUnavailable,
    JobNotFound,
    ServerFull,
    ServerReadOnly,
    ServerUnavailable,
)
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Receipt
from bide.queue import AsyncQueue, Queue
from bide.queue.items import RETENTION

DOWN: Final = (ServerUnavailable, ServerFull, ServerReadOnly, AccessDenied)
"""Errors that concern all rows: nothing can be sent until the server, or its settings, change."""

PASSING: Final = (ClientTooOld, DurabilityTimeout, DurabilityUnavailable)
"""Errors of one row that may not occur later."""

REPLY_TIMEOUT: Final = 1.0
"""Seconds to wait for a reply: the rows are locked meanwhile."""


class Written(NamedTuple):
    """A row that was read from the table, and is locked."""

    number: int
    elapsed_us: int
    """The time since the row was written, by the clock of the database."""
    row: Row


class Sent(NamedTuple):
    """The outcomes of rows that were sent together."""

    errors: dict[int, BideError]
    """By the number of the row; a row without an error was sent."""
    down: BideError | None
    """The error because of which no more can be sent now."""


class _Queue(Queue):
    """A queue whose replies are not waited for as long."""

    def _make_client(self, url: str, clock: str) -> blocking.Client:
        made = super()._make_client(url, clock)
        if type(made) is not blocking.Client:
            return made  # eager mode
        return blocking.Client(url, retry_for=0, reply_timeout=REPLY_TIMEOUT, clock=clock)


class _AsyncQueue(AsyncQueue):
    """The same for an event loop."""

    def _make_client(self, url: str, clock: str) -> aio.AsyncClient:
        made = super()._make_client(url, clock)
        if type(made) is not aio.AsyncClient:
            return made
        return aio.AsyncClient(url, retry_for=0, reply_timeout=REPLY_TIMEOUT, clock=clock)


class Sender:
    """Sends rows, with blocking queues or, given a `wait` for their coroutines, awaited ones."""

    def __init__(self, url: str | None, wait: Callable[[Any], Any] | None = None) -> None:
        self._url = url
        self._is_async = wait is not None
        self._wait: Callable[[Any], Any] = wait or (lambda result: result)
        self._queues: dict[tuple[str, str], AnyQueue] = {}

    def send(self, rows: Sequence[Written]) -> Sent:
        """Send rows of different jobs, and return what became of each."""
        errors: dict[int, BideError] = {}
        down: BideError | None = None
        by_queue: dict[tuple[str, str], list[Written]] = {}
        for written in sorted(rows):
            by_queue.setdefault((written.row.prefix, written.row.queue), []).append(written)
        for place, some in by_queue.items():
            if down is None:
                down = self._send_to(self.queue(*place), some, errors)
            else:
                errors |= dict.fromkeys((written.number for written in some), down)
        return Sent(errors, down)

    def queue(self, prefix: str, name: str) -> AnyQueue:
        """Return the queue of a row."""
        found = self._queues.get((prefix, name))
        if found is None:
            kind = _AsyncQueue if self._is_async else _Queue
            found = kind(name, url=self._url, prefix=prefix, retry_for=0)
            self._queues[prefix, name] = found
        return found

    def close(self) -> None:
        """Close the connections."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            self._wait(queue.close())

    def _send_to(
        self, queue: AnyQueue, rows: Sequence[Written], errors: dict[int, BideError]
    ) -> BideError | None:
        adding = [written for written in rows if written.row.verb in ("enqueue", "push")]
        changing = [written for written in rows if written.row.verb not in ("enqueue", "push")]
        down: BideError | None = None
        if any(written.row.verb == "push" for written in adding):
            mark = job_commands.mark_data(queue.keys, RETENTION, True)
            down = _down(self._run(queue, [mark]))
        if down is None:
            down = self._add(queue, adding, errors)
        else:
            errors |= dict.fromkeys((written.number for written in adding), down)
        if down is not None:
            _note(changing, [down] * len(changing), errors)
            return down
        commands = [_change(queue, written) for written in changing]
        return _note(changing, self._run(queue, commands), errors)

    def _add(
        self, queue: AnyQueue, rows: Sequence[Written], errors: dict[int, BideError]
    ) -> BideError | None:
        """Add jobs: all in as few round trips as can be, and after a refusal, one by one."""
        if not rows:
            return None
        jobs = [written.row.prepared(written.elapsed_us) for written in rows]
        if queue._binding.fake_server is not None:  # eager mode: runs them
            self._wait(queue._send(jobs))
            return None
        replies = self._wait(queue._attempt(jobs))
        replies += [None] * (len(rows) - len(replies))  # after a refusal, no more were sent
        down = _down(replies)
        unsent = [
            written
            for written, reply in zip(rows, replies, strict=True)
            if not isinstance(reply, Receipt)
        ]
        if len(rows) == 1 and down is None:
            return _note(rows, replies, errors)
        for i, written in enumerate(unsent):
            if down is not None:
                return _note(unsent[i:], [down] * len(unsent[i:]), errors)
            down = self._add(queue, [written], errors)
        return down

    def _run(self, queue: AnyQueue, commands: Sequence[Command[Any]]) -> list[Any]:
        if not commands:
            return []
        try:
            replies: list[Any] = self._wait(queue._client.attempt_many(commands))
        except BideError as error:
            return [error] * len(commands)
        return replies


def is_final(error: BideError) -> bool:
    """Whether a repeat of the row cannot succeed."""
    return not isinstance(error, DOWN + PASSING)


def waits_for_parent(error: BideError) -> bool:
    """Whether the row may only have been sent before a parent that is a row itself."""
    return isinstance(error, JobNotFound)


def _down(replies: Iterable[Any]) -> BideError | None:
    return next((reply for reply in replies if isinstance(reply, DOWN)), None)


def _note(
    rows: Sequence[Written], replies: Sequence[Any], errors: dict[int, BideError]
) -> BideError | None:
    for written, reply in zip(rows, replies, strict=True):
        if isinstance(reply, BideError):
            errors[written.number] = reply
    return _down(replies)


def _change(queue: AnyQueue, written: Written) -> Command[Any]:
    row = written.row
    keys, ids = queue.keys, [row.job_id]
    if row.verb == "reschedule":
        return job_commands.reschedule(keys, ids, shifted(row.due, written.elapsed_us))
    if row.verb == "promote":
        return job_commands.promote(keys, ids)
    return job_commands.cancel(keys, ids, row.verb == "cancel")
