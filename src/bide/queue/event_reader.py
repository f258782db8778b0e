"""The logic that blocking and awaited event listeners share, without I/O.

`EventReader.next` returns the events that were read. If there are none, the listener holds the
stream open again where that is `needs_renewal`, and otherwise reads on in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from bide.client.execute import MOST_READ, Entries
from bide.client.url import RECONNECT_PAUSE
from bide.errors import UsageError
from bide.model.durations import SECOND_US, Duration, to_us
from bide.model.ids import check_name, new_id
from bide.model.job import (
    GAP,
    OF_QUEUE,
    Event,
    before,
    check_after,
    check_kinds,
    follows,
    gap,
    read_event,
)
from bide.protocol.commands import Command
from bide.protocol.commands.jobs import Position, listen
from bide.protocol.keys import Keys

RENEW_EVERY: Final = 5.0
"""Seconds after which a listener renews its hold on the stream, and learns whether events were
lost. If no event reveals a gap, the gap is reported within this time."""

WAIT: Final = 2.0
"""Seconds for which one read waits for an event; within a reply's time-out."""


class EventReader:
    """The position and the filters of a listener."""

    def __init__(
        self,
        keys: Keys,
        name: str | None,
        after: str | None,
        kinds: str | Iterable[str] | None,
        job_id: str | Iterable[str] | None,
        timeout: Duration | None,
    ) -> None:
        """Set up; arguments and errors as for `Queue.events`."""
        self.keys: Final = keys
        self.is_named: Final = name is not None
        self.name: Final = new_id() if name is None else check_name(name, "The listener's name")
        self.after = check_after(after)
        self._kinds = check_kinds(kinds)
        self._job_ids = _checked_job_ids(job_id)
        self._timeout = float("inf") if timeout is None else to_us(timeout, "timeout") / SECOND_US
        self._renew_at = 0.0
        self._gap: Event | None = None
        """A gap that the server has reported, to be handed out first."""
        self._entries: deque[tuple[str, bytes]] = deque()
        """The entries that were read and not parsed yet."""
        self._has_all = False
        """Whether the latest read found the end of the stream, and no event since."""
        self._until: float | None = None
        """When the time-out ends; None while events are handed out."""

    @property
    def stream(self) -> str:
        """The key of the events."""
        return self.keys["events"]

    def hold(self) -> Command[Position]:
        """Return the command that holds the stream open."""
        return listen(self.keys, self.name, self.after)

    def release(self) -> Command[Position]:
        """Return the command that stops holding the stream open."""
        return listen(self.keys, self.name, self.after, 0)

    def held(self, position: Position) -> None:
        """Note the reply to `hold`, which may report lost events."""
        self._renew_at = time.monotonic() + RENEW_EVERY
        last, self.after = self.after, position.after
        if position.gap:
            self._gap = gap(last, position.after)

    def next(self) -> Event | None:
        """Return the next event that was read; None if there is none, so that the wait begins."""
        event, self._gap = self._gap, None
        while event is None and self._entries:
            event = self._look_at(*self._entries[0])
        if event is not None:
            self._has_all, self._until = False, None
        elif self._until is None:
            self._until = self._timeout + time.monotonic()
        return event

    @property
    def job_ids_ahead(self) -> list[str]:
        """The ids of jobs in the entries that were read and not handed out yet."""
        parts = (line.decode("utf-8", "ignore").split(" ", 4) for _, line in self._entries)
        return [each[3] for each in parts if len(each) == 5 and each[0] not in OF_QUEUE]

    def is_over(self) -> bool:
        """Whether no event came within the time-out; if so, the next wait is a new one."""
        if not self._has_all or self._until is None or time.monotonic() < self._until:
            return False
        self._has_all, self._until = False, None
        return True

    @property
    def needs_renewal(self) -> bool:
        """Whether the stream has to be held open again before it is read."""
        return time.monotonic() >= self._renew_at

    @property
    def wait(self) -> float:
        """Seconds for which the next read waits for an event."""
        left = WAIT if self._until is None else self._until - time.monotonic()
        return min(WAIT, max(left, 0.0))

    def read(self, entries: Entries | None) -> float:
        """Note the entries, None if the connection broke; return seconds to pause."""
        self._entries.extend(entries or ())
        self._has_all = len(self._entries) < MOST_READ
        if entries is not None:
            return 0.0
        self._renew_at = 0.0  # after a restart, the server may have lost its latest writes
        return RECONNECT_PAUSE

    def _look_at(self, id: str, line: bytes) -> Event | None:
        """Return the event of the first entry; or a gap, if entries are missing before it."""
        if not follows(id, self.after):
            last, self.after = self.after, before(id)
            return gap(last, self.after)
        self._entries.popleft()
        last, self.after = self.after, id
        try:
            event = read_event(id, line)
        except ValueError:  # of another version, or another program
            event = gap(last, id)
        return event if self._wants(event) else None

    def _wants(self, event: Event) -> bool:
        if event.kind == GAP:
            return True
        if self._kinds is not None and event.kind not in self._kinds:
            return False
        if self._job_ids is None or event.job_id in self._job_ids or event.kind == "purged":
            return True
        return event.kind in OF_QUEUE and self._kinds is not None


def _checked_job_ids(job_id: str | Iterable[str] | None) -> frozenset[str] | None:
    if job_id is None:
        return None
    if not isinstance(job_id, Iterable):
        raise UsageError(f"job_id must be the id of a job, such as job.id, not {job_id!r}.")
    found = frozenset([job_id] if isinstance(job_id, str) else job_id)
    for id in found:
        check_name(id, "job_id")
    if not found:
        raise UsageError("job_id names no job; leave it out for the events of all jobs.")
    return found


def not_entered(with_: str) -> UsageError:
    """Return the error for reading outside of the context, which `with_` enters."""
    return UsageError(f"Read events within their context: `{with_} queue.events() as events:`.")
