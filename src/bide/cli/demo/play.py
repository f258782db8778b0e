"""Runs the demo: a server, workers, the desk, one kill, and the wait for the last job.

The desk places each order at its time. It enqueues two jobs for each order: a notification a little
later, and a cancellation at the payment deadline. When the order is paid, the desk cancels the
cancellation; the reply shows whether that was in time. Each job records its start and its end in
the journal.

The workers (`bide worker bide.cli.demo.play`) run in sessions of their own, so that Ctrl-C in a
terminal reaches only the demo, which then ends them. If the demo is killed, their standard input, a
pipe from the demo, closes, and they end too.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bide import Queue, current_job
from bide.cli.demo import books
from bide.cli.screen import at_terminal
from bide.embedded import Server
from bide.errors import UsageError
from bide.logs import count
from bide.model.durations import at_to_us, describe
from bide.views._sync import Site

JOURNAL: Final = "BIDE_DEMO_JOURNAL"
"""The environment variable with the path of the journal, for the demo's workers."""


async def notify(order: str) -> None:
    """Notify a customer about an order; this takes 100 to 300 ms, like a call of a mail server."""
    with journaled(books.NOTIFY, order):
        await asyncio.sleep(0.1 + zlib.crc32(order.encode()) % 200 / 1000)


def cancel_unpaid(order: str) -> None:
    """Cancel an order whose payment deadline has passed."""
    with journaled(books.CANCEL, order):
        pass  # a shop would return the goods to its stock here


@contextmanager
def journaled(kind: books.Kind, order: str) -> Iterator[None]:
    """Record the start and the end of a job."""
    started_us = now_us()
    job = current_job()
    run = (order, kind, job.id, job.attempt, job.token, os.getpid())
    _journal().write(books.Begun(*run, due_us=at_to_us(job.due), started_us=started_us))
    yield
    _journal().write(books.Finished(*run, done_us=now_us()))


@cache
def _journal() -> books.Journal:
    return books.Journal(Path(os.environ[JOURNAL]))


def _end_with_the_demo() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if JOURNAL in os.environ:
    threading.Thread(target=_end_with_the_demo, name="bide-demo-leash", daemon=True).start()


def now_us() -> int:
    """Return this machine's time, which is also the embedded server's."""
    return time.time_ns() // 1000


QUEUE: Final = "orders"
WORKERS: Final = 3
LEASE: Final = 2.0
"""Seconds of a lease; short, so that the killed worker's jobs run again soon."""

START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 5.0


class Workers:
    """The worker processes."""

    def __init__(self, logs: Path) -> None:
        """Set up; the workers log to files in that directory."""
        self._logs = logs
        self.pids: list[int] = []
        """The process ids of all workers, including the killed one."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        """The workers that should be running."""

    def start(self, url: str, journal: Path) -> None:
        """Start the workers, and wait until the server knows all of them."""
        options = ["-u", url, "-q", QUEUE, "--lease", f"{LEASE:g}s"]
        for number in range(1, WORKERS + 1):
            with (self._logs / f"worker-{number}.log").open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, "-m", "bide", "worker", "bide.cli.demo.play", *options],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, JOURNAL: str(journal.absolute())},
                    start_new_session=True,
                )
            self.pids.append(process.pid)
            self._processes[process.pid] = process
        site = Site(url, None)
        deadline = time.monotonic() + START_TIMEOUT
        while not {*self.pids} <= {worker.about.pid for worker in site.workers()}:
            self.check()
            if time.monotonic() > deadline:
                raise books.DemoError(
                    f"The workers were not ready within {START_TIMEOUT:g} s; this machine is "
                    "very busy: try again."
                )
            time.sleep(_LOOK_EVERY)

    def check(self) -> None:
        """Check that all workers that should run are running."""
        for pid, process in self._processes.items():
            if process.poll() is not None:
                log = self._logs / f"worker-{self.pids.index(pid) + 1}.log"
                said = log.read_text(errors="replace").splitlines()[-8:]
                ended = f"Worker {pid} ended by itself (code {process.returncode}):"
                raise books.DemoError("\n    ".join([ended, *said]))

    def kill(self, pid: int) -> books.Killed:
        """Kill a worker (SIGKILL) and wait for its end."""
        process, at_us = self._processes.pop(pid), now_us()
        process.kill()
        process.communicate()
        return books.Killed(pid, at_us, now_us())

    def end(self, error: type[BaseException] | None, *_: object) -> None:
        """End all workers; after a complete run, with a request and some time first."""
        deadline = time.monotonic() + (0.0 if error else STOP_TIMEOUT)
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.communicate()


REDRAW_EVERY: Final = 0.1
LINE_EVERY: Final = 2.0
"""Seconds between two lines of progress without a terminal."""


class View:
    """Shows the progress of a run."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._next = 0.0 if at_terminal() else time.monotonic() + LINE_EVERY

    def say(self, what: str, text: str | Text, style: str = "") -> None:
        """Print a line, above the live progress if there is one."""
        self.console.print(Text.assemble("  ", (f"{what:9}", style), " ", text), soft_wrap=True)

    def show(self, record: books.Record, orders: int, elapsed: float, pids: list[int]) -> None:
        """Show the progress, unless it was shown a moment ago."""
        now = time.monotonic()
        if now < self._next:
            return
        if at_terminal():
            self._next = now + REDRAW_EVERY
            self._live.start()
            self._live.update(_picture(record, orders, elapsed, pids), refresh=True)
        else:
            self._next = now + LINE_EVERY
            counts = _counts(record)
            self.say(f"{elapsed:.1f} s", ", ".join(f"{n:,} {name}" for name, n, _ in counts))

    def end(self) -> None:
        """Remove the live progress."""
        self._live.stop()


def _counts(record: books.Record) -> list[tuple[str, int, str]]:
    finished = Counter(kind for _, kind in record.finished)
    paid = sum(payment.in_time for paid in record.paid.values() for payment in paid)
    return [
        ("placed", len(record.placed), "white"),
        ("notified", finished[books.NOTIFY], "cyan"),
        ("paid", paid, "green"),
        ("unpaid", finished[books.CANCEL], "magenta"),
    ]


def _picture(record: books.Record, orders: int, elapsed: float, pids: list[int]) -> Group:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=15)
    grid.add_column(width=44, no_wrap=True, overflow="ellipsis")
    grid.add_column(width=10, justify="right")
    for name, number, style in _counts(record):
        bar = ProgressBar(orders, number, complete_style=style, finished_style=style)
        grid.add_row(f"  {name}", bar, f"{number:,}")
    grid.add_row()
    begun = Counter(run.pid for runs in record.runs.values() for run in runs)
    running = Counter(run.pid for run in record.unfinished.values())
    for pid in pids:
        if pid in record.killed:
            state = Text(f"killed while it ran {running[pid]:,}", "red")
        else:
            state = Text("●" * running[pid], "yellow")
        grid.add_row(f"  worker {pid}", state, f"{begun[pid]:,} jobs")
    late = Text(f"  {elapsed:.1f} s", "dim")
    if record.runs:
        values = sorted(runs[0].started_us - runs[0].due_us for runs in record.runs.values())
        late.append(
            f"   lateness p50 {describe(books.percentile(values, 50) / 1e6)}, "
            f"p99 {describe(books.percentile(values, 99) / 1e6)}"
        )
    return Group("", grid, "", late)


NOTIFY_AFTER: Final = 0.4
"""Seconds of the scenario from an order to its notification."""

BATCH: Final = 200
"""Maximum number of orders that are placed in one round trip."""

PATIENCE: Final = 3 * LEASE
"""Seconds without an event, once all jobs are due, after which missing jobs count as lost."""

_LOOK_EVERY: Final = 0.01
_FRESH_US: Final = 60_000
"""A notification takes at least 100 ms, so one that started within this time is still running."""


@dataclass
class Desk:
    """Runs a scenario: places the orders, pays them, and kills a worker meanwhile."""

    queue: Queue
    journal: books.Journal
    record: books.Record
    workers: Workers
    view: View
    orders: list[books.Order]
    speed: float

    def __post_init__(self) -> None:
        todo = [(order.placed, False, order) for order in self.orders]
        todo += [
            (order.placed + order.paid_after, True, order)
            for order in self.orders
            if order.paid_after is not None
        ]
        self._todo = deque(sorted(todo, key=itemgetter(0)))
        """The steps: the time in the scenario, whether the order is paid (otherwise placed), the
        order."""
        self._last_due_us = 0
        self._taken_back = 0
        """Number of cancellations that were cancelled because the order was paid in time."""
        self._heard = time.monotonic()

    def run(self) -> None:
        """Run until every job has run, or the missing jobs count as lost."""
        started = time.monotonic()
        self.journal.write(books.Opened(now_us(), self.speed, NOTIFY_AFTER))
        while self._todo or not self._ended():
            elapsed = time.monotonic() - started
            due: dict[bool, list[books.Order]] = {False: [], True: []}
            while self._todo and self._todo[0][0] <= elapsed * self.speed:
                _, is_paid, order = self._todo.popleft()
                due[is_paid].append(order)
            for first in range(0, len(due[False]), BATCH):
                self._place(due[False][first : first + BATCH])
            for order in due[True]:
                self._pay(order.number)
            self._listen()
            self.workers.check()
            if not self.record.killed:
                self._kill_one()
            self.view.show(self.record, len(self.orders), elapsed, self.workers.pids)
            next_at = self._todo[0][0] / self.speed if self._todo else math.inf
            until_next = next_at - (time.monotonic() - started)
            time.sleep(max(0.0, min(_LOOK_EVERY, until_next)))
        if not self.record.killed:
            self.view.say("killed", "no worker: none was caught at work")

    def _place(self, orders: list[books.Order]) -> None:
        prepare, prepared = self.queue.prepare, []
        for order in orders:
            args, id = (order.number,), cancellation_of(order.number)
            prepared += [
                prepare(notify, args, delay=self._scaled(NOTIFY_AFTER)),
                prepare(cancel_unpaid, args, delay=self._scaled(order.deadline), job_id=id),
            ]
        asked_us = now_us()
        jobs = self.queue.enqueue_many(prepared)
        answered_us = now_us()
        for order, *both in zip(orders, jobs[::2], jobs[1::2], strict=True):
            dues_us = [at_to_us(job.due) for job in both]
            self._last_due_us = max(self._last_due_us, *dues_us)
            self.journal.write(books.Placed(order.number, asked_us, answered_us, *dues_us))

    def _pay(self, number: str) -> None:
        asked_us = now_us()
        in_time = self.queue.cancel(cancellation_of(number), running=False)
        self._taken_back += in_time
        self.journal.write(books.Paid(number, asked_us, now_us(), in_time))

    def _scaled(self, seconds: float) -> timedelta:
        return timedelta(microseconds=round(seconds / self.speed * 1e6))

    def _listen(self) -> None:
        if self.record.read():
            self._heard = time.monotonic()

    def _kill_one(self) -> None:
        """Kill the worker with the most running jobs, once a third of the orders is placed.

        A notification takes some time, so one that has just started is certainly still running.
        """
        placed = len(self.record.placed)
        if placed * 3 < len(self.orders):
            return
        least = 2 if placed * 5 < len(self.orders) * 3 else 1
        since_us = now_us() - _FRESH_US
        fresh = Counter(
            run.pid
            for run in self.record.unfinished.values()
            if run.kind == books.NOTIFY and run.started_us >= since_us
        )
        for victim, number in fresh.most_common(1):
            if number >= least:
                self.journal.write(self.workers.kill(victim))
                self._listen()
                held = sum(run.pid == victim for run in self.record.unfinished.values())
                says = f"worker {victim} (SIGKILL) while it ran {count(held, 'job')}"
                self.view.say("killed", says, "red")

    def _ended(self) -> bool:
        is_complete = len(self.record.finished) + self._taken_back >= 2 * len(self.orders)
        silent = time.monotonic() - self._heard
        overdue = (now_us() - self._last_due_us) / 1e6
        is_given_up = min(silent, overdue) >= PATIENCE
        if not (is_complete or is_given_up):
            return False
        counts = self.queue.counts()
        if is_complete and not counts.delayed + counts.waiting + counts.active:
            return True
        if is_given_up:
            self.view.say(
                "given up",
                f"after {PATIENCE:g} s without a sign of the jobs that are missing: "
                f"{counts.active} active, {counts.waiting} waiting, {counts.failed} failed",
                "red",
            )
        return is_given_up


def cancellation_of(number: str) -> str:
    """Return the id of an order's cancellation; the desk chooses it, so that a payment knows it."""
    return f"cancel-{number}"


JOURNAL_FILE: Final = "journal.jsonl"


def play(path: Path | None, number: int | None, speed: float, keep: Path | None) -> books.Books:
    """Run the orders of a file, or of the sample, and check the journal.

    The file is cut or repeated to `number` orders. Journal and logs stay in the directory `keep`.
    """
    source = path.name if path else "the sample"
    path = path or books.sample()
    read = books.read_orders(path)
    orders = read.good if number is None else books.scale(read.good, number)
    if keep:
        _prepare(keep)
    with Server.start() as server, closing(Queue(QUEUE, url=server.url)) as queue:
        # The server's directory is temporary: it is always removed with the server.
        directory = keep or server.directory
        file = directory / JOURNAL_FILE
        view, workers = View(), Workers(directory)
        with ExitStack() as stack:
            journal = stack.enter_context(closing(books.Journal(file)))
            stack.callback(view.end)
            stack.push(workers.end)
            view.console.print("  [bold]bide demo: an order desk[/bold]\n")
            for row in read.bad[: books.SHOWN]:
                view.say("skipped", f"{source} {row}", "yellow")
            if len(read.bad) > books.SHOWN:
                view.say("", f"... and {len(read.bad) - books.SHOWN:,} more rows")
            release = f"{server.flavour.capitalize()} {server.version}, "
            warning = ("embedded: not for production", "yellow")
            view.say("server", Text.assemble(release, warning))
            if keep or number is not None:
                path = directory / "orders.csv"
                books.write_orders(path, orders)
            workers.start(server.url, file)
            view.say("workers", f"{WORKERS} processes: {', '.join(map(str, workers.pids))}")
            seconds = max(o.placed + max(o.deadline, o.paid_after or 0) for o in orders) / speed
            view.say("orders", f"{len(orders):,} from {source}, in {describe(seconds)}")
            Desk(queue, journal, books.Record(file), workers, view, orders, speed).run()
        if keep:
            view.say("journal", f"python -m bide.cli.demo.books {path} {file}")
        view.console.print()
        return books.balance(path, file)


def _prepare(keep: Path) -> None:
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--keep {keep}: it cannot be made ({error.strerror}); give a directory of your own."
        ) from None
    if (keep / JOURNAL_FILE).exists():
        raise UsageError(f"--keep {keep}: it holds a journal already; give another directory.")
