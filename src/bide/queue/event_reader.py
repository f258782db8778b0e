"""The logic that blocking and awaited event listeners share, without I/O.

`steps` is a generator, like `bide.client.execute`. It yields an `Event` to hand out, or one of
these, and receives its result:

    Command         run it: the stream is held open, and the server says where to read on
    Read(...)       read on in the stream; entries, or None where the connection broke
    Pause(seconds)  wait
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple

from bide.client.execute import MOST_READ
from bide.client.url import RECONNECT_PAUSE
from bide.errors import UsageError
from bide.model.durations import SECOND_US, Duration, to_us
from bide.model.events import (
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
from bide.model.ids import check_name, new_id
from bide.protocol.command import Command
from bide.protocol.commands.jobs import Position, listen
from bide.protocol.keys import Keys

RENEW_EVERY: Final = 5.0
"""Seconds after which a listener renews its hold on the stream, and learns whether events were
lost. If no event reveals a gap, the gap is reported within this time."""

WAIT: Final = 2.0
"""Seconds for which one read waits for an event; within a reply's time-out."""


class Read(NamedTuple):
    """Read on in the stream."""

    stream: str
    after: str
    seconds: float


class Pause(NamedTuple):
    """Wait."""

    seconds: float


Steps = Generator[Event | Command[Position] | Read | Pause, Any, None]


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
        self._timeout = None if timeout is None else to_us(timeout, "timeout") / SECOND_US
        self._renew_at = 0.0
        self._first_gap: Event | None = None

    def hold(self) -> Command[Position]:
        """Return the command that holds the stream open."""
        return listen(self.keys, self.name, self.after)

    def let_go(self) -> Command[Position]:
        """Return the command that stops holding the stream open."""
        return listen(self.keys, self.name, self.after, 0)

    def held(self, position: Position) -> Event | None:
        """Note the reply to `hold`; return a gap event if the server reports lost events."""
        self._renew_at = time.monotonic() + RENEW_EVERY
        last, self.after = self.after, position.after
        return gap(last, position.after) if position.gap else None

    def began(self, position: Position) -> None:
        """Note the reply to the first `hold`."""
        self._first_gap = self.held(position)

    def steps(self) -> Steps:
        """Read events until none was handed out within the time-out."""
        until = self._until()
        if self._first_gap is not None:
            first_gap, self._first_gap = self._first_gap, None
            yield first_gap
            until = self._until()
        while True:
            if time.monotonic() >= self._renew_at:
                lost = self.held((yield self.hold()))
                if lost is not None:
                    yield lost
                    until = self._until()
            left = until - time.monotonic()
            entries = yield Read(self.keys["events"], self.after, min(WAIT, max(left, 0.0)))
            if entries is None:
                self._renew_at = 0.0  # after a restart, the server may have lost its latest writes
                yield Pause(RECONNECT_PAUSE)
            handed_out = False
            for id, line in entries or ():
                for event in self._read(id, line):
                    yield event
                    handed_out, until = True, self._until()
            is_all = len(entries or ()) < MOST_READ
            if is_all and not handed_out and time.monotonic() >= until:
                return

    def _until(self) -> float:
        return float("inf") if self._timeout is None else time.monotonic() + self._timeout

    def _read(self, id: str, line: bytes) -> Iterable[Event]:
        """Yield the event of an entry, after a gap event if entries are missing before it."""
        if not follows(id, self.after):
            last, self.after = self.after, before(id)
            yield gap(last, self.after)
        last, self.after = self.after, id
        try:
            event = read_event(id, line)
        except ValueError:  # of another version, or another program
            event = gap(last, id)
        if self._wants(event):
            yield event

    def _wants(self, event: Event) -> bool:
        if event.kind == GAP:
            return True
        if self._kinds is not None and event.kind not in self._kinds:
            return False
        if self._job_ids is None or event.job_id in self._job_ids or event.kind == "emptied":
            return True
        return event.kind in OF_QUEUE and self._kinds is not None


def _checked_job_ids(job_id: str | Iterable[str] | None) -> frozenset[str] | None:
    if job_id is None:
        return None
    found = frozenset([job_id] if isinstance(job_id, str) else job_id)
    for id in found:
        check_name(id, "job_id")
    if not found:
        raise UsageError("job_id names no job; leave it out for the events of all.")
    return found


def not_entered(with_: str) -> UsageError:
    """Return the error for reading outside of the context."""
    return UsageError(f"Read events within their context: `{with_} queue.events() as events:`.")


def entered_already() -> UsageError:
    """Return the error for entering the context twice."""
    return UsageError("These events are being read already; ask queue.events() for others.")
