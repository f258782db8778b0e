"""The journal of `bide demo`, and the check of the journal, order by order.

    python -m bide.cli.demo.books ORDERS.csv JOURNAL

The desk and every job append events to the journal, one line of JSON for each. Each line is a
single `write` to a file opened with `O_APPEND`. So the lines of several processes never mix, and
the lines of a killed process remain. All times are integer microseconds since 1970.

The orders come from a CSV file:

    order,placed,deadline,paid_after
    A-0001,0.0,2.5,1.2
    A-0002,0.1,2.0,

`placed` is in seconds from the start of the scenario. `deadline`, by which the order must be paid,
and `paid_after`, empty if it is never paid, are in seconds from `placed`.

The check uses no server and no counter: it reads only the CSV file and the journal. For each order
it checks these rules:

- The desk placed it, and the due times of both jobs are correct: the server added the delay to a
  time between two readings of the desk's clock.
- The notification finished once. Another run has a cause only if the run before it started in a
  process that was killed later.
- Either it was paid in time, and the cancellation never ran, or the cancellation finished once, as
  above. The queue may refuse to cancel a cancellation only from its deadline on.
- No job started before it was due.
"""

from __future__ import annotations

import csv
import errno
import math
import os
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bide.errors import BideError, UsageError
from bide.logs import printable
from bide.model.durations import describe

Kind = Literal["notification", "cancellation"]
NOTIFY: Final[Kind] = "notification"
CANCEL: Final[Kind] = "cancellation"


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    pass


class Opened(_Event, frozen=True):
    """The scenario has started."""

    at_us: int
    speed: float
    """Seconds of the scenario per second."""
    notify_after: float
    """Seconds of the scenario from the placement of an order until its notification is due."""


class Placed(_Event, frozen=True):
    """An order was placed: its two jobs were enqueued, with these due times."""

    order: str
    asked_us: int
    answered_us: int
    notify_due_us: int
    cancel_due_us: int


class Paid(_Event, frozen=True):
    """An order was paid; in time, if its cancellation could be cancelled."""

    order: str
    asked_us: int
    answered_us: int
    in_time: bool


class _Run(_Event, frozen=True):
    order: str
    kind: Kind
    job: str
    attempt: int
    token: int
    pid: int

    @property
    def key(self) -> tuple[str, Kind, int, int]:
        """The key that the start and the end of one run share."""
        return self.order, self.kind, self.token, self.pid


class Begun(_Run, frozen=True):
    """A job has started."""

    due_us: int
    started_us: int


class Finished(_Run, frozen=True):
    """A job has finished."""

    done_us: int


class Killed(_Event, frozen=True):
    """A worker was killed between `at_us` and `ended_us`."""

    pid: int
    at_us: int
    ended_us: int


Event = Opened | Placed | Paid | Begun | Finished | Killed

_decoder: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


class DemoError(BideError):
    """The demo cannot use a file or its workers; the message names the fix."""


class Journal:
    """Appends events."""

    def __init__(self, path: Path) -> None:
        """Open a journal, and create it if necessary."""
        self._path = path
        with self._explained():
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: Event) -> None:
        """Append one event, in a single `write`."""
        line = msgspec.json.encode(event) + b"\n"
        with self._explained():
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, "it took only a part of a line")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DemoError(
                f"{self._path} cannot be written ({error.strerror}); make room there, or give "
                "--keep a directory of your own."
            ) from None


class Record:
    """The events of a journal, by order and by process; readable while the journal grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._lines = 0
        self.unreadable: list[int] = []
        """The numbers of lines that are not events."""
        self.torn = False
        """Whether the last line is incomplete, as of a killed writer. It is ignored."""
        self.opened: Opened | None = None
        self.placed: defaultdict[str, list[Placed]] = defaultdict(list)
        self.paid: defaultdict[str, list[Paid]] = defaultdict(list)
        self.runs: defaultdict[tuple[str, Kind], list[Begun]] = defaultdict(list)
        self.unfinished: dict[tuple[str, Kind, int, int], Begun] = {}
        self.finished: set[tuple[str, Kind]] = set()
        self.killed: dict[int, Killed] = {}

    def read(self) -> list[Event]:
        """Read the lines added since the last call, without an incomplete last line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                *lines, rest = file.read().split(b"\n")
                self._at = file.tell() - len(rest)
        except OSError as error:
            raise DemoError(
                f"{self._path} cannot be read ({error.strerror}); `bide demo --keep DIR` keeps a "
                "journal."
            ) from None
        self.torn = bool(rest)
        events: list[Event] = []
        for number, line in enumerate(lines, start=self._lines + 1):
            try:
                events.append(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.unreadable.append(number)
        self._lines += len(lines)
        for event in events:
            match event:
                case Opened():
                    self.opened = event
                case Placed():
                    self.placed[event.order].append(event)
                case Paid():
                    self.paid[event.order].append(event)
                case Begun():
                    self.runs[event.order, event.kind].append(event)
                    self.unfinished[event.key] = event
                case Finished():
                    self.finished.add((event.order, event.kind))
                    self.unfinished.pop(event.key, None)
                case Killed():
                    self.killed[event.pid] = event
        return events


COLUMNS: Final = ("order", "placed", "deadline", "paid_after")

_NUMBER: Final = re.compile(r"[\w.+-]{1,100}", re.ASCII)
_LONGEST: Final = 366 * 86_400.0


class Order(NamedTuple):
    """An order; all times are in seconds of the scenario."""

    number: str
    placed: float
    """Since the start of the scenario."""
    deadline: float
    """The deadline of the payment, from `placed`."""
    paid_after: float | None
    """When it is paid, from `placed`; None for never."""


class Orders(NamedTuple):
    """The contents of a file."""

    good: list[Order]
    bad: list[str]
    """One sentence for each row that was skipped, with the number of its line."""


def sample() -> Path:
    """Return the orders that are part of bide."""
    return Path(str(resources.files("bide.cli.demo").joinpath("orders.csv")))


def read_orders(path: Path) -> Orders:
    """Read orders from a CSV file; bad rows are skipped and reported."""
    columns = ",".join(COLUMNS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except OSError as error:
        raise DemoError(
            f"{path} cannot be read ({error.strerror}); give the path of a CSV file with the "
            f"columns {columns}, or none to use the sample."
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DemoError(
            f"{path} is not a CSV file in UTF-8 ({error}); save it as one, with the columns "
            f"{columns}."
        ) from None
    if not rows:
        raise DemoError(
            f"{path} is empty; its first line must be {columns}, and each line after it an order."
        )
    (_, names), *rows = rows
    if missing := [column for column in COLUMNS if names.count(column) != 1]:
        raise DemoError(
            f"{path} has the header {','.join(names)[:200]!r}, in which {', '.join(missing)} "
            f"should be, each once; make it {columns}."
        )
    orders = Orders([], [])
    lines: dict[str, int] = {}
    for line, cells in rows:
        if not any(cells):
            continue
        try:
            if len(cells) != len(names):
                raise ValueError(f"has {len(cells)} fields, not {len(names)}")
            order = _order(*(cells[names.index(name)] for name in COLUMNS))
            first = lines.setdefault(order.number, line)
            if first != line:
                raise ValueError(f"has the order {order.number} again, which is on line {first}")
            orders.good.append(order)
        except ValueError as reason:
            orders.bad.append(f"line {line} {reason}; skipped.")
    if not orders.good:
        why = f" ({orders.bad[0].removesuffix('; skipped.')})" if orders.bad else ""
        raise DemoError(
            f"{path} holds no usable order{why}; give it at least one row such as "
            "A-0001,0.0,2.5,1.2 under its header."
        )
    return orders


def _order(number: str, placed: str, deadline: str, paid_after: str) -> Order:
    if not _NUMBER.fullmatch(number):
        raise ValueError(
            f"has the order number {number[:60]!r}, which is not 1 to 100 of A-Z a-z 0-9 . _ + -"
        )
    paid = _seconds("paid_after", paid_after) if paid_after else None
    return Order(number, _seconds("placed", placed), _seconds("deadline", deadline), paid)


def _seconds(column: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(f"has {column} {text[:60]!r}, which is not a number of seconds, 0 or more")
    return seconds


def scale(orders: list[Order], count: int) -> list[Order]:
    """Cut or repeat orders until there are `count`; repeated orders get new numbers."""
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


EARLY: Final = "early"
LOST: Final = "lost"
TWICE: Final = "run twice without a cause"
PAID_YET_CANCELLED: Final = "paid, and yet cancelled"
MISCOUNTED: Final = "not as agreed"
KINDS: Final = (EARLY, LOST, TWICE, PAID_YET_CANCELLED, MISCOUNTED)


class Problem(NamedTuple):
    """A broken rule."""

    kind: str
    text: str


@dataclass
class Books:
    """The result of the check."""

    orders: int = 0
    enqueued: int = 0
    run: int = 0
    """Number of jobs that have finished."""
    cancelled: int = 0
    """Number of cancelled jobs: the cancellations of orders that were paid in time."""
    redelivered: int = 0
    """Number of runs of a job whose earlier run was in a killed process."""
    lateness_us: list[int] = field(default_factory=list)
    """Microseconds from the due time of each job to its first run."""
    redelivered_us: list[int] = field(default_factory=list)
    """Microseconds from the due time to each redelivered run."""
    killed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Whether no rule was broken."""
        return not self.problems

    def find(self, kind: str, text: str) -> None:
        """Record a problem."""
        self.problems.append(Problem(kind, text))


def balance(orders_csv: Path, journal: Path) -> Books:
    """Check a journal against the orders."""
    orders = read_orders(orders_csv)
    record = Record(journal)
    record.read()
    books = Books(killed=list(record.killed))
    if orders.bad:
        books.notes.append(f"{len(orders.bad)} bad rows of {orders_csv.name} were left out.")
    if record.torn:
        books.notes.append("The journal's last line is torn; it counts for nothing.")
    if record.opened is None:
        books.find(MISCOUNTED, "the journal does not say that a scenario was opened.")
    for line in record.unreadable:
        books.find(MISCOUNTED, f"line {line} of the journal is not an event.")
    for order in orders.good:
        _check_order(books, record, order)
    seen = {*record.placed, *record.paid, *(number for number, _ in record.runs)}
    for number in sorted(seen.difference(order.number for order in orders.good)):
        books.find(MISCOUNTED, f"order {number} is in the journal, but not among the orders.")
    return books


def _check_order(books: Books, record: Record, order: Order) -> None:
    number = order.number
    books.orders += 1
    times = record.placed.get(number, [])
    if len(times) != 1:
        books.find(MISCOUNTED, f"order {number} was placed {len(times)} times.")
        return
    placed = times[0]
    books.enqueued += 2
    for kind, due_us in ((NOTIFY, placed.notify_due_us), (CANCEL, placed.cancel_due_us)):
        if record.opened is None:
            break
        after = order.deadline if kind == CANCEL else record.opened.notify_after
        added_at = due_us - round(after / record.opened.speed * 1e6)
        if not placed.asked_us <= added_at <= placed.answered_us:
            off = min(added_at - placed.asked_us, added_at - placed.answered_us, key=abs)
            what = f"the {kind} for order {number}"
            books.find(MISCOUNTED, f"{what} is due {off:+} us from when it was asked for.")
    _check_job(books, record, number, NOTIFY, placed.notify_due_us)
    paid = record.paid.get(number, [])
    if len(paid) != (order.paid_after is not None):
        books.find(MISCOUNTED, f"order {number} was paid {len(paid)} times.")
    elif paid and not paid[0].in_time and paid[0].answered_us < placed.cancel_due_us:
        books.find(
            MISCOUNTED,
            f"order {number} was paid before its deadline, but its cancellation could not be "
            "stopped.",
        )
    if not any(payment.in_time for payment in paid):
        _check_job(books, record, number, CANCEL, placed.cancel_due_us)
        return
    books.cancelled += 1
    if (number, CANCEL) in record.runs:
        books.find(PAID_YET_CANCELLED, f"order {number} was paid in time, yet cancelled.")


def _check_job(books: Books, record: Record, number: str, kind: Kind, due_us: int) -> None:
    what = f"the {kind} for order {number}"
    runs = sorted(record.runs.get((number, kind), []), key=lambda run: run.started_us)
    if not runs:
        books.find(LOST, f"{what} never ran.")
        return
    for run in runs:
        early = min(due_us, run.due_us) - run.started_us
        if early > 0:
            books.find(EARLY, f"{what} began {early} us before it was due.")
        elif run.due_us != due_us:
            books.find(MISCOUNTED, f"{what} was due at another time than was agreed.")
    books.lateness_us.append(runs[0].started_us - due_us)
    for before, run in pairwise(runs):
        killed = record.killed.get(before.pid)
        if killed and before.started_us <= killed.ended_us and killed.at_us <= run.started_us:
            books.redelivered += 1
            books.redelivered_us.append(run.started_us - due_us)
        else:
            books.find(TWICE, f"{what} ran in process {before.pid}, and again in {run.pid}.")
    last = runs[-1]
    if last.key not in record.unfinished:
        books.run += 1
    elif last.pid in record.killed:
        books.find(
            LOST, f"{what} started in process {last.pid}, which was killed, and did not run again."
        )
    else:
        books.find(LOST, f"{what} began in process {last.pid}, and did not finish.")


SHOWN: Final = 10
"""Maximum number of problems that are listed."""

BAR: Final = 36
"""The width of the longest bar, in characters."""

EDGES_US: Final = [step * 10**power for power in range(8) for step in (1, 2, 5)]
"""The bounds of the buckets of the histogram."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def report(books: Books, console: Console | None = None) -> None:
    """Print the result."""
    console = console or Console(highlight=False)
    console.print(Text("\n").join([*_table(books), Text()]))
    if books.lateness_us:
        values = sorted(books.lateness_us)
        text = Text.assemble(
            ("  Lateness", "bold"),
            (" of first runs: from the due time to the start\n\n", "dim"),
            " ",
        )
        for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
            text.append(f" {name} ", "dim")
            text.append(f"{describe(percentile(values, percent) / 1e6):8}")
        text.rstrip()
        console.print(text, "", *histogram(books, console.options.ascii_only), "", sep="\n")
    for note in books.notes:
        console.print(f"  {escape(note)}")
    for problem in books.problems[:SHOWN]:
        console.print(f"  [red]{problem.kind}[/red]: {escape(problem.text)}")
    if len(books.problems) > SHOWN:
        console.print(f"  ... and {len(books.problems) - SHOWN:,} more")
    if books.balanced:
        console.print(
            "  [bold green]The books balance:[/bold green] nothing early, nothing lost, nothing "
            "twice without a cause."
        )
    else:
        console.print("  [bold red]The books do not balance.[/bold red]")


def _table(books: Books) -> Iterator[Text]:
    killed = ", ".join(map(str, books.killed))
    cause = f"started by worker {killed}, which was killed" if killed else "no worker was killed"
    yield Text("  The books, order by order\n", "bold")
    yield _row("enqueued", books.enqueued, "", "2 for each order")
    yield _row("run", books.run, "", "to their end")
    yield _row("cancelled", books.cancelled, "", "the order was paid in time")
    yield _row("redelivered", books.redelivered, "yellow", cause)
    yield Text()
    counts = Counter(problem.kind for problem in books.problems)
    for kind in KINDS:
        if counts[kind] or kind in (EARLY, LOST, TWICE):
            yield _row(kind, counts[kind], "bold red" if counts[kind] else "bold green")


def _row(name: str, count: int, style: str, remark: str = "") -> Text:
    return Text.assemble(f"  {name:26}", (f"{count:>8,}", style), (f"  {remark}".rstrip(), "dim"))


def percentile(sorted_values: Sequence[int], percent: float) -> int:
    """Return the smallest value that `percent` of all values do not exceed."""
    return sorted_values[max(0, math.ceil(len(sorted_values) * percent / 100) - 1)]


def histogram(books: Books, ascii_only: bool = False) -> Iterator[Text]:
    """Yield a bar for each bucket; `...` stands for two or more empty buckets in a row."""
    first = Counter(bisect_right(EDGES_US, value) for value in books.lateness_us)
    redelivered = Counter(bisect_right(EDGES_US, value) for value in books.redelivered_us)
    both = first + redelivered
    axis, used = "|" if ascii_only else "│", sorted(both)
    for before, last in pairwise([used[0] - 1, *used]):
        if last - before > 2:
            yield Text(f"{'...':>9}{axis:>10}", "dim")
        for place in (last - 1, last) if last - before == 2 else (last,):
            n, again = first[place], redelivered[place]
            width = both[place] / max(both.values()) * BAR
            eighths = max(1, round(width * 8)) if width else 0  # every non-empty bucket is visible
            bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
            bar = "#" * math.ceil(width) if ascii_only else bar
            low = describe(EDGES_US[place - 1] / 1e6) if place else "less"
            label = f"  over {low}"
            if place < len(EDGES_US):
                label = f"{low:>5} - {describe(EDGES_US[place] / 1e6)}"
            yield Text.assemble(
                f"  {label:15} ",
                (axis, "dim"),
                (bar, "yellow" if again > n else "cyan"),
                f" {n:,}" if n else "",
                (f" {again:,} redelivered" if again else "", "yellow"),
            )


def main() -> None:
    """Check a journal against its orders; print the result, and exit with 0 if it is good."""
    try:
        if len(sys.argv) != 3:
            raise UsageError("Usage: python -m bide.cli.demo.books ORDERS.csv JOURNAL")
        books = balance(Path(sys.argv[1]), Path(sys.argv[2]))
    except BideError as error:
        print(f"Error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    report(books)
    sys.exit(0 if books.balanced else 1)


if __name__ == "__main__":
    main()
