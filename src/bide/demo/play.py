"""Conducts a run: server, workers, desk, one kill, the wait for the last job, the books."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.text import Text

from bide import Queue
from bide.clock import describe
from bide.demo.books import Books, balance
from bide.demo.crew import LEASE, QUEUE, Crew
from bide.demo.desk import Desk
from bide.demo.journal import Journal, Tail, now_us
from bide.demo.orders import read_orders, sample, scale, write_orders
from bide.demo.report import SHOWN
from bide.demo.tally import Tally
from bide.demo.view import View
from bide.embedded import Server
from bide.errors import UsageError

WORKERS: Final = 3
JOURNAL: Final = "journal.jsonl"
PATIENCE: Final = 3 * LEASE
"""Seconds without any event, once all is due, after which missing jobs are given up."""

_LOOK_EVERY: Final = 0.01
_FRESH_US: Final = 60_000
"""A notification takes 100 ms or more: one that began this recently is under way."""


def play(path: Path | None, count: int | None, speed: float, keep: Path | None) -> Books:
    """Play the orders of a file, and balance the books.

    Args:
        path: the CSV file; None for the sample.
        count: how many orders to play, cutting or repeating what the file holds; None for all.
        speed: how many seconds of the scenario pass in one.
        keep: a directory in which journal and logs stay; None for a temporary one.

    Raises:
        BideError: something that is needed is not there.
    """
    source = path.name if path else "the sample"
    path = path or sample()
    read = read_orders(path)
    with ExitStack() as stack:
        if keep:
            _prepare(keep)
        server = stack.enter_context(Server.start())
        view = stack.enter_context(View())
        view.title("bide demo: an order desk")
        _tell_of(read.bad, source, view)
        view.say(
            "server",
            Text.assemble(
                f"{server.flavour.capitalize()} {server.version}, ",
                ("embedded: not for production", "yellow"),
            ),
        )
        # The server's directory is a temporary one: it goes with the server, whatever happens.
        directory = keep or server.directory
        journal_path = directory / JOURNAL
        journal = Journal(journal_path)
        stack.callback(journal.close)
        orders = read.good if count is None else scale(read.good, count)
        if keep or count is not None:
            path = directory / "orders.csv"
            write_orders(path, orders)
        crew = stack.enter_context(Crew(server.url, WORKERS, journal_path, directory))
        crew.ready()
        view.say("workers", f"{WORKERS} processes: {', '.join(map(str, crew.pids))}")
        queue = Queue(QUEUE, url=server.url)
        stack.callback(queue.close)
        desk = Desk(queue, journal, orders, speed)
        seconds = max(o.placed + max(o.deadline, o.paid_after or 0) for o in orders) / speed
        view.say("orders", f"{len(orders):,} from {source}, in {describe(seconds)}")
        run = _Run(view, queue, journal, Tail(journal_path), crew, desk, len(orders))
        run.run()
        crew.stop()
        view.close()
        if keep:
            view.say("journal", f"python -m bide.demo.books {path} {journal_path}")
        view.console.print()
        return balance(path, journal_path)


class _Run:
    def __init__(
        self,
        view: View,
        queue: Queue,
        journal: Journal,
        tail: Tail,
        crew: Crew,
        desk: Desk,
        orders: int,
    ) -> None:
        self._view = view
        self._queue = queue
        self._journal = journal
        self._tail = tail
        self._crew = crew
        self._desk = desk
        self._tally = Tally(orders)
        self._heard = time.monotonic()

    def run(self) -> None:
        """Play until every job has run, or those that are missing are given up."""
        started = time.monotonic()
        self._desk.open()
        while True:
            elapsed = time.monotonic() - started
            self._desk.step(elapsed)
            self._listen()
            self._crew.check()
            if not self._tally.held:
                self._kill_one()
            self._view.show(self._tally, elapsed, self._crew.pids)
            next_at = self._desk.next_at
            if next_at is None and self._ended():
                break
            elapsed = time.monotonic() - started
            until_next = max(0.0, next_at - elapsed) if next_at is not None else math.inf
            time.sleep(min(_LOOK_EVERY, until_next))
        if not self._tally.held:
            self._view.say("killed", "no worker: none was caught at work")

    def _listen(self) -> None:
        events = self._tail.read()
        if events:
            self._heard = time.monotonic()
            self._tally.add(events)

    def _kill_one(self) -> None:
        """Kill the worker that has most under way, once a third of the orders is placed."""
        tally = self._tally
        if tally.placed * 3 < tally.orders:
            return
        least = 2 if tally.placed * 5 < tally.orders * 3 else 1
        victim = tally.victim(now_us() - _FRESH_US, least)
        if victim is not None:
            self._journal.write(self._crew.kill(victim))
            self._listen()
            held = tally.held[victim]
            jobs = "job" if held == 1 else "jobs"
            self._view.say(
                "killed",
                f"worker {victim} (SIGKILL) while it ran {held:,} {jobs}",
                "red",
            )

    def _ended(self) -> bool:
        """Whether nothing more is to come, or not in time."""
        if self._tally.complete:
            counts = self._queue.counts()
            if not counts.delayed + counts.waiting + counts.active:
                return True
        silent = time.monotonic() - self._heard
        overdue = (now_us() - self._tally.last_due_us) / 1e6
        if min(silent, overdue) < PATIENCE:
            return False
        counts = self._queue.counts()
        self._view.say(
            "given up",
            f"after {PATIENCE:g} s without a sign of the jobs that are missing: "
            f"{counts.active} active, {counts.waiting} waiting, {counts.failed} failed",
            "red",
        )
        return True


def _tell_of(bad: list[str], source: str, view: View) -> None:
    for row in bad[:SHOWN]:
        view.say("skipped", f"{source} {row}", "yellow")
    if len(bad) > SHOWN:
        view.say("", f"... and {len(bad) - SHOWN:,} more rows")


def _prepare(keep: Path) -> None:
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--keep {keep}: it cannot be made ({error.strerror}); give a directory of your own."
        ) from None
    if (keep / JOURNAL).exists():
        raise UsageError(f"--keep {keep}: it holds a journal already; give another directory.")
