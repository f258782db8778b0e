"""The journal: what happened, one JSON line an event, appended by the desk and by every job.

Each line goes out in a single `write` to a file opened with `O_APPEND`, so the lines of several
processes never mix, and what a process wrote before it was killed is there. All times are whole
microseconds since 1970.

    order,placed,deadline,paid_after
    A-0001,0.0,2.5,1.2
    A-0002,0.1,2.0,

`placed` counts in seconds from the start of the scenario; `deadline` (by when it must be paid) and
`paid_after` (when it is; empty for never) count from when the order was placed.

The books are not made from it: they are made afterwards, from the whole journal.
"""

from __future__ import annotations

import csv
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Final, Literal, NamedTuple, TextIO

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


class Finished(_Event, frozen=True):
    """A job finished."""

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


Event = Opened | Placed | Paid | Begun | Finished | Killed

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


class JournalContents(NamedTuple):
    """The events of a whole journal, and the lines that are not events."""

    events: list[Event]
    unreadable: list[int]
    """The numbers of lines that are not events."""
    torn: bool
    """The last line has no end, as if its writer was killed over it. It counts for nothing."""


def read_journal(path: Path) -> JournalContents:
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
    return JournalContents(events, unreadable, torn=bool(rest))


def _event(line: bytes) -> Event | None:
    """An event, or None if the line is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


COLUMNS: Final = ("order", "placed", "deadline", "paid_after")

_NUMBER: Final = re.compile(r"[\w.+-]{1,100}", re.ASCII)
_LONGEST: Final = 366 * 86_400.0


class OrdersError(BideError):
    """The file with the orders cannot be used; the message says what to do about it."""


class Order(NamedTuple):
    """One order; all times in seconds of the scenario."""

    number: str
    placed: float
    """Since the start of the scenario."""
    deadline: float
    """By when it must be paid, since it was placed."""
    paid_after: float | None
    """When it is paid, since it was placed; None for never."""


class Orders(NamedTuple):
    """What a file holds."""

    good: list[Order]
    bad: list[str]
    """One sentence for each row that was skipped, with the number of its line."""


def sample() -> Path:
    """The orders that come with bide."""
    return Path(str(resources.files("bide.cli.demo").joinpath("orders.csv")))


def read_orders(path: Path) -> Orders:
    """Read orders from a CSV file; bad rows are skipped and reported.

    Raises:
        OrdersError: the file cannot be read, has other columns, or has no valid order.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            orders = _read(path, file)
    except OSError as error:
        raise OrdersError(
            f"{path} cannot be read ({error.strerror}); give the path of a CSV file with the "
            f"columns {','.join(COLUMNS)}, or none to use the sample."
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise OrdersError(
            f"{path} is not a CSV file in UTF-8 ({error}); save it as one, with the columns "
            f"{','.join(COLUMNS)}."
        ) from None
    if not orders.good:
        raise OrdersError(
            f"{path} holds no usable order{_first(orders.bad)}; give it at least one row such as "
            "A-0001,0.0,2.5,1.2 under its header."
        )
    return orders


def scale(orders: list[Order], count: int) -> list[Order]:
    """Cut or repeat orders until there are `count`; what is repeated gets new numbers."""
    if count <= len(orders):
        return orders[:count]
    repeats = -(-count // len(orders))
    return [
        order._replace(number=f"{order.number}.{repeat}")
        for repeat in range(1, repeats + 1)
        for order in orders
    ][:count]


def write_orders(path: Path, orders: Iterable[Order]) -> None:
    """Write a CSV file that `read_orders` reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(orders)


def _read(path: Path, file: TextIO) -> Orders:
    rows = csv.reader(file)
    header = next(rows, None)
    if header is None:
        raise OrdersError(
            f"{path} is empty; its first line must be {','.join(COLUMNS)}, and each line after it "
            "an order."
        )
    names = [name.strip() for name in header]
    missing = [column for column in COLUMNS if names.count(column) != 1]
    if missing:
        raise OrdersError(
            f"{path} has the header {','.join(names)[:200]!r}, in which {', '.join(missing)} "
            f"should be, each once; make it {','.join(COLUMNS)}."
        )
    places = [names.index(column) for column in COLUMNS]
    good: list[Order] = []
    bad: list[str] = []
    lines: dict[str, int] = {}
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        try:
            if len(row) != len(names):
                raise _BadRow(f"has {len(row)} fields, not {len(names)}")
            order = _order(*(row[place].strip() for place in places))
            first = lines.setdefault(order.number, rows.line_num)
            if first != rows.line_num:
                raise _BadRow(f"has the order {order.number} again, which is on line {first}")
        except _BadRow as reason:
            bad.append(f"line {rows.line_num} {reason}; skipped.")
        else:
            good.append(order)
    return Orders(good, bad)


class _BadRow(ValueError):
    """What is wrong with a row."""


def _order(number: str, placed: str, deadline: str, paid_after: str) -> Order:
    if not _NUMBER.fullmatch(number):
        raise _BadRow(
            f"has the order number {number[:60]!r}, which is not 1 to 100 of A-Z a-z 0-9 . _ + -"
        )
    return Order(
        number,
        _seconds("placed", placed),
        _seconds("deadline", deadline),
        _seconds("paid_after", paid_after) if paid_after else None,
    )


def _seconds(column: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST:
        raise _BadRow(f"has {column} {text[:60]!r}, which is not a number of seconds, 0 or more")
    return seconds


def _first(bad: list[str]) -> str:
    return f" ({bad[0].removesuffix('; skipped.')})" if bad else ""


class Tally:
    """What has happened so far."""

    def __init__(self, orders: int) -> None:
        self.orders = orders
        self.placed = 0
        self.notified: set[str] = set()
        self.paid: set[str] = set()
        self.cancelled: set[str] = set()
        self.running: defaultdict[int, dict[tuple[str, str, int], int]] = defaultdict(dict)
        """Process id → its unfinished runs → when each began."""
        self.runs: Counter[int] = Counter()
        """Process id → how many runs it has begun."""
        self.held: dict[int, int] = {}
        """Process id of a worker that was killed → how many runs it left unfinished."""
        self.lateness_us: list[int] = []
        """Of each run that began, but for those after a kill."""
        self.last_due_us = 0
        self._settled: set[str] = set()
        self._started: set[tuple[str, str]] = set()

    @property
    def complete(self) -> bool:
        """Whether every order has been placed and notified of, and been paid or cancelled."""
        return self.placed == self.orders == len(self.notified) == len(self._settled)

    def add(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            match event:
                case Placed():
                    self.placed += 1
                    self.last_due_us = max(
                        self.last_due_us, event.notify_due_us, event.cancel_due_us
                    )
                case Paid(order=order, in_time=True):
                    self.paid.add(order)
                    self._settled.add(order)
                case Begun():
                    self._begun(event)
                case Finished():
                    run = (event.order, event.kind, event.token)
                    self.running[event.pid].pop(run, None)
                    if event.kind == NOTIFY:
                        self.notified.add(event.order)
                    else:
                        self.cancelled.add(event.order)
                        self._settled.add(event.order)
                case Killed(pid=pid):
                    self.held[pid] = len(self.running.pop(pid, ()))
                case _:
                    pass

    def victim(self, since_us: int, least: int) -> int | None:
        """The process that began most notifications since a moment, if `least` of them or more.

        A notification takes a while, so what has just begun is under way for certain.
        """
        fresh = Counter(
            {
                pid: sum(
                    kind == NOTIFY and started_us >= since_us
                    for (_, kind, _), started_us in runs.items()
                )
                for pid, runs in self.running.items()
            }
        )
        for pid, count in fresh.most_common(1):
            if count >= least:
                return pid
        return None

    def _begun(self, event: Begun) -> None:
        self.running[event.pid][event.order, event.kind, event.token] = event.started_us
        self.runs[event.pid] += 1
        job = (event.order, event.kind)
        if job not in self._started:
            self._started.add(job)
            self.lateness_us.append(event.started_us - event.due_us)
