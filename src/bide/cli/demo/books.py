"""The books: an order-by-order check of what happened, from the CSV file and the journal alone.

    python -m bide.cli.demo.books ORDERS.csv JOURNAL

It asks no server and trusts no counter. For each order it holds the journal against these rules:

- The desk placed it, and both jobs are due when it asked for them: the server's clock lay between
  the desk's two looks at its own when it added the delay.
- The notification ran to its end once. A run more has a cause only if the run before it began in a
  process that was killed, and before that was killed.
- Either it was paid in time, and the cancellation never ran, or the cancellation ran to its end
  once, as above. The queue may refuse to take a cancellation back only once its deadline is there.
- Nothing began before it was due.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bide.cli.demo.journal import (
    CANCEL,
    NOTIFY,
    Begun,
    Finished,
    JournalContents,
    Killed,
    Kind,
    Opened,
    Order,
    Paid,
    Placed,
    read_journal,
    read_orders,
)
from bide.errors import BideError, UsageError
from bide.logs import printable

EARLY: Final = "early"
LOST: Final = "lost"
TWICE: Final = "run twice without a cause"
PAID_YET_CANCELLED: Final = "paid, and yet cancelled"
MISCOUNTED: Final = "not as agreed"
KINDS: Final = (EARLY, LOST, TWICE, PAID_YET_CANCELLED, MISCOUNTED)


@dataclass(frozen=True)
class Problem:
    """One thing that should not have happened."""

    kind: str
    text: str


@dataclass
class Books:
    """What the checker found."""

    orders: int = 0
    enqueued: int = 0
    run: int = 0
    """Jobs that ran to their end."""
    cancelled: int = 0
    """Jobs cancelled: the cancellations of orders that were paid in time."""
    redelivered: int = 0
    """Runs of a job whose earlier run ended because its process was killed."""
    lateness_us: list[int] = field(default_factory=list)
    """How long after its due time the first run of each job began."""
    redelivered_us: list[int] = field(default_factory=list)
    """How long after their due time redelivered runs began."""
    killed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Whether everything happened as it should have."""
        return not self.problems

    def count(self, kind: str) -> int:
        """How many problems there are of a kind."""
        return sum(problem.kind == kind for problem in self.problems)


def balance(orders_csv: Path, journal: Path) -> Books:
    """Check a journal against the orders.

    Raises:
        BideError: one of the files cannot be used.
    """
    orders = read_orders(orders_csv)
    read = read_journal(journal)
    checker = _Checker(read)
    books = checker.books
    if orders.bad:
        books.notes.append(f"{len(orders.bad)} bad rows of {orders_csv.name} were left out.")
    if read.torn:
        books.notes.append("The journal's last line is torn; it counts for nothing.")
    if checker.opened is None:
        checker.find(MISCOUNTED, "the journal does not say that a scenario was opened.")
    for number in read.unreadable:
        checker.find(MISCOUNTED, f"line {number} of the journal is not an event.")
    for order in orders.good:
        checker.check(order)
    checker.check_strangers({order.number for order in orders.good})
    return books


class _Checker:
    def __init__(self, read: JournalContents) -> None:
        self.books = Books()
        self.opened: Opened | None = None
        self._placed: defaultdict[str, list[Placed]] = defaultdict(list)
        self._paid: defaultdict[str, list[Paid]] = defaultdict(list)
        self._runs: defaultdict[tuple[str, Kind], list[Begun]] = defaultdict(list)
        self._done: set[tuple[str, Kind, int, int]] = set()
        self._killed: dict[int, Killed] = {}
        for event in read.events:
            match event:
                case Opened():
                    self.opened = event
                case Placed():
                    self._placed[event.order].append(event)
                case Paid():
                    self._paid[event.order].append(event)
                case Begun():
                    self._runs[event.order, event.kind].append(event)
                case Finished():
                    self._done.add((event.order, event.kind, event.token, event.pid))
                case Killed():
                    self._killed[event.pid] = event
        self.books.killed = list(self._killed)

    def find(self, kind: str, text: str) -> None:
        self.books.problems.append(Problem(kind, text))

    def check(self, order: Order) -> None:
        """Hold one order against the rules."""
        number = order.number
        self.books.orders += 1
        placed = self._placed[number]
        if len(placed) != 1:
            self.find(MISCOUNTED, f"order {number} was placed {len(placed)} times.")
            return
        self.books.enqueued += 2
        self._check_due(order, placed[0])
        self._check_job(number, NOTIFY, placed[0].notify_due_us)
        if self._is_paid(order, placed[0]):
            self.books.cancelled += 1
            if self._runs[number, CANCEL]:
                self.find(PAID_YET_CANCELLED, f"order {number} was paid in time, yet cancelled.")
        else:
            self._check_job(number, CANCEL, placed[0].cancel_due_us)

    def check_strangers(self, numbers: set[str]) -> None:
        """Check that the journal has only orders of the CSV file."""
        seen = {*self._placed, *self._paid, *(number for number, _ in self._runs)}
        for number in sorted(seen - numbers):
            self.find(MISCOUNTED, f"order {number} is in the journal, but not among the orders.")

    def _check_due(self, order: Order, placed: Placed) -> None:
        if self.opened is None:
            return
        for kind, after, due_us in (
            (NOTIFY, self.opened.notify_after, placed.notify_due_us),
            (CANCEL, order.deadline, placed.cancel_due_us),
        ):
            added_at = due_us - round(after / self.opened.speed * 1e6)
            if not placed.asked_us <= added_at <= placed.answered_us:
                off = min(added_at - placed.asked_us, added_at - placed.answered_us, key=abs)
                self.find(
                    MISCOUNTED,
                    f"the {kind} for order {order.number} is due {off:+} us from when it was "
                    "asked for.",
                )

    def _is_paid(self, order: Order, placed: Placed) -> bool:
        """Whether the queue said that the cancellation was taken back, when it could say so."""
        paid = self._paid[order.number]
        if len(paid) != (order.paid_after is not None):
            self.find(MISCOUNTED, f"order {order.number} was paid {len(paid)} times.")
            return any(payment.in_time for payment in paid)
        if not paid:
            return False
        if not paid[0].in_time and paid[0].answered_us < placed.cancel_due_us:
            self.find(
                MISCOUNTED,
                f"order {order.number} was paid before its deadline, but its cancellation could "
                "not be taken back.",
            )
        return paid[0].in_time

    def _check_job(self, number: str, kind: Kind, due_us: int) -> None:
        """See that a job ran to its end once, and never early."""
        what = f"the {kind} for order {number}"
        runs = sorted(self._runs[number, kind], key=lambda run: run.started_us)
        if not runs:
            self.find(LOST, f"{what} never ran.")
            return
        for run in runs:
            if run.started_us < min(due_us, run.due_us):
                early = min(due_us, run.due_us) - run.started_us
                self.find(EARLY, f"{what} began {early} us before it was due.")
            elif run.due_us != due_us:
                self.find(MISCOUNTED, f"{what} was due at another time than was agreed.")
        self.books.lateness_us.append(runs[0].started_us - due_us)
        for before, run in pairwise(runs):
            killed = self._killed.get(before.pid)
            if killed and before.started_us <= killed.ended_us and killed.at_us <= run.started_us:
                self.books.redelivered += 1
                self.books.redelivered_us.append(run.started_us - due_us)
            else:
                self.find(TWICE, f"{what} ran in process {before.pid}, and again in {run.pid}.")
        last = runs[-1]
        if (number, kind, last.token, last.pid) in self._done:
            self.books.run += 1
        elif last.pid in self._killed:
            self.find(LOST, f"{what} began in process {last.pid}, which was killed; never again.")
        else:
            self.find(LOST, f"{what} began in process {last.pid}, and never came to its end.")


def main() -> None:
    """Check two files and print the outcome; exits with 0 only if the books balance."""
    from bide.cli.demo.play import report

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
