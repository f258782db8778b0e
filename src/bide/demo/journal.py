"""The journal: what happened, one JSON line an event, appended by the desk and by every job.

Each line goes out in a single `write` to a file opened with `O_APPEND`, so the lines of several
processes never mix, and what a process wrote before it was killed is there. All times are whole
microseconds since 1970.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from bide.errors import BideError

Kind = Literal["notification", "cancellation"]
NOTIFY: Final[Kind] = "notification"
CANCEL: Final[Kind] = "cancellation"


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    pass


class Opened(_Event, frozen=True):
    """The scenario began."""

    at_us: int
    speed: float
    """How many seconds of the scenario pass in one."""
    notify_after: float
    """When a notification is due, in seconds of the scenario after its order was placed."""


class Placed(_Event, frozen=True):
    """An order was placed: its two jobs were asked for, and answered with their due times."""

    order: str
    asked_us: int
    answered_us: int
    notify_due_us: int
    cancel_due_us: int


class Paid(_Event, frozen=True):
    """An order was paid; in time, if the cancellation could be taken back."""

    order: str
    asked_us: int
    answered_us: int
    in_time: bool


class Begun(_Event, frozen=True):
    """A job began."""

    order: str
    kind: Kind
    job: str
    attempt: int
    token: int
    pid: int
    due_us: int
    started_us: int


class Done(_Event, frozen=True):
    """A job came to its end."""

    order: str
    kind: Kind
    job: str
    attempt: int
    token: int
    pid: int
    done_us: int


class Killed(_Event, frozen=True):
    """A worker was killed: not before `at_us`, and it had ended by `ended_us`."""

    pid: int
    at_us: int
    ended_us: int


Event = Opened | Placed | Paid | Begun | Done | Killed

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


class JournalError(BideError):
    """The journal cannot be read or written."""


def now_us() -> int:
    """This machine's clock, which is the embedded server's too."""
    return time.time_ns() // 1000


def to_us(moment: datetime) -> int:
    """A moment, as the journal has it."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Journal:
    """Appends events."""

    def __init__(self, path: Path) -> None:
        """Open a journal; made if need be.

        Raises:
            JournalError: it cannot be written.
        """
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._failed(error.strerror) from None

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            JournalError: it could not be written whole.
        """
        line = _encoder.encode(event) + b"\n"
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise self._failed(error.strerror) from None
        if written != len(line):
            raise self._failed("it took only a part of a line")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _failed(self, reason: str | None) -> JournalError:
        return JournalError(
            f"{self._path} cannot be written ({reason}); make room there, or give --keep a "
            "directory of your own."
        )


class Tail:
    """Reads along while the journal grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Event]:
        """The events since the last call; a line that has no end yet waits for the next."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        return [event for line in data[:end].splitlines() if (event := _event(line))]


class Read(NamedTuple):
    """A whole journal."""

    events: list[Event]
    unreadable: list[int]
    """The numbers of lines that are not events."""
    torn: bool
    """The last line has no end, as if its writer was killed over it. It counts for nothing."""


def read_journal(path: Path) -> Read:
    """Read a journal to its end.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(
            f"{path} cannot be read ({error.strerror}); `bide demo --keep DIR` keeps a journal."
        ) from None
    *lines, rest = data.split(b"\n")
    events: list[Event] = []
    unreadable: list[int] = []
    for number, line in enumerate(lines, start=1):
        event = _event(line)
        if event:
            events.append(event)
        else:
            unreadable.append(number)
    return Read(events, unreadable, torn=bool(rest))


def _event(line: bytes) -> Event | None:
    """An event, or None if the line is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
