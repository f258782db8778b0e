"""Conducts a run: server, workers, desk, one kill, the wait for the last job, the books.

They run in sessions of their own, so that Ctrl-C in a terminal reaches the demo alone, which then
ends them. Should the demo be killed, they see the end of their standard input and follow it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bide import Queue
from bide.cli.demo import tasks
from bide.cli.demo.books import EARLY, KINDS, LOST, TWICE, Books, balance
from bide.cli.demo.desk import Desk
from bide.cli.demo.journal import (
    Journal,
    Killed,
    Tail,
    Tally,
    now_us,
    read_orders,
    sample,
    scale,
    write_orders,
)
from bide.embedded import Server
from bide.errors import BideError, UsageError
from bide.model.durations import describe

QUEUE: Final = "orders"
LEASE: Final = 2.0
"""Seconds for which a job is held; short, so that the killed worker's jobs are due again soon."""

START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 5.0


class CrewError(BideError):
    """The workers did not start, or one ended by itself; the message ends with its last words."""


class Crew:
    """Some worker processes."""

    def __init__(self, url: str, count: int, journal: Path, logs: Path) -> None:
        """Start them; `ready` waits until they serve.

        Args:
            url: the server.
            count: how many.
            journal: where their jobs write.
            logs: the directory for what they say.
        """
        self._url = url
        self._env = {k: v for k, v in os.environ.items() if k not in ("BIDE_URL", "BIDE_PREFIX")}
        self._env[tasks.JOURNAL] = str(journal.absolute())
        self._logs: dict[int, Path] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._killed: set[int] = set()
        try:
            for number in range(1, count + 1):
                self._start(logs / f"worker-{number}.log")
        except BaseException:
            self.kill_all()
            raise

    @property
    def pids(self) -> list[int]:
        """Their process ids, also of those that have been killed."""
        return list(self._processes)

    def ready(self) -> None:
        """Wait until all of them are seen by `bide info`.

        Raises:
            CrewError: they do not come.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not set(self.pids) <= self._seen():
            self.check()
            if time.monotonic() > deadline:
                raise CrewError(
                    f"The workers were not ready within {START_TIMEOUT:g} s; this machine is "
                    "very busy: try again."
                )

    def check(self) -> None:
        """See that all those run that should.

        Raises:
            CrewError: one has ended by itself.
        """
        for pid, process in self._processes.items():
            if pid not in self._killed and process.poll() is not None:
                said = self._logs[pid].read_text(errors="replace").splitlines()[-8:]
                raise CrewError(
                    "\n    ".join(
                        [f"Worker {pid} ended by itself (code {process.returncode}):", *said]
                    )
                )

    def kill(self, pid: int) -> Killed:
        """Kill one (SIGKILL) and wait for its end."""
        self._killed.add(pid)
        at_us = now_us()
        self._processes[pid].kill()
        self._processes[pid].wait()
        return Killed(pid, at_us, now_us())

    def stop(self) -> None:
        """Ask all to stop, and wait until they have."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_all(self) -> None:
        """End all at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def _start(self, log: Path) -> None:
        options = ["-u", self._url, "-q", QUEUE, "--lease", f"{LEASE:g}s"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "bide", "worker", "bide.cli.demo.tasks", *options],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,
            )
        self._processes[process.pid] = process
        self._logs[process.pid] = log

    def _seen(self) -> set[int]:
        info = [sys.executable, "-m", "bide", "info", "--json", "-u", self._url]
        told = subprocess.run(info, capture_output=True, text=True, env=self._env)
        if told.returncode != 0:
            raise CrewError(f"`bide info` failed: {told.stderr.strip()}")
        return {worker["pid"] for worker in json.loads(told.stdout)["workers"]}


SHOWN: Final = 10
"""Problems that are shown one by one."""

BAR: Final = 36
"""The width of the longest bar, in characters."""

EDGES_US: Final = [step * 10**power for power in range(8) for step in (1, 2, 5)]
"""Where one bucket of the histogram ends and the next begins."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Bucket(NamedTuple):
    """A bar of the histogram."""

    label: str
    first: int
    """First runs in it."""
    redelivered: int


def report(books: Books, console: Console | None = None) -> None:
    """Print it all."""
    console = console or Console(highlight=False)
    console.print(_table(books))
    if books.lateness_us:
        console.print(_lateness(books))
        for line in histogram(books, console.options.ascii_only):
            console.print(line)
        console.print()
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


def percentile(sorted_values: Sequence[int], percent: float) -> int:
    """The least value that `percent` of all do not exceed."""
    return sorted_values[max(0, ceil(len(sorted_values) * percent / 100) - 1)]


def buckets(first_us: Sequence[int], redelivered_us: Sequence[int]) -> list[Bucket | None]:
    """Bars from the least to the greatest lateness; None for a stretch of two or more empty."""
    counts: dict[int, list[int]] = {}
    for which, values in enumerate((first_us, redelivered_us)):
        for value in values:
            counts.setdefault(bisect_right(EDGES_US, value), [0, 0])[which] += 1
    bars: list[Bucket | None] = []
    empty = 0
    for place in range(min(counts), max(counts) + 1):
        if place in counts:
            if empty == 1:
                bars.append(Bucket(_label(place - 1), 0, 0))
            elif empty:
                bars.append(None)
            empty = 0
            bars.append(Bucket(_label(place), *counts[place]))
        else:
            empty += 1
    return bars


def histogram(books: Books, ascii_only: bool = False) -> Iterator[Text]:
    """The lines of the histogram of lateness."""
    bars = buckets(books.lateness_us, books.redelivered_us)
    highest = max(bar.first + bar.redelivered for bar in bars if bar)
    axis = "|" if ascii_only else "│"
    for bar in bars:
        if bar is None:
            yield Text(f"{'...':>9}{axis:>10}", "dim")
            continue
        count = bar.first + bar.redelivered
        width = count / highest * BAR
        yield Text.assemble(
            f"  {bar.label:15} ",
            (axis, "dim"),
            (
                "#" * ceil(width) if ascii_only else _blocks(width),
                "yellow" if bar.redelivered > bar.first else "cyan",
            ),
            f" {bar.first:,}" if bar.first else "",
            (f" {bar.redelivered:,} redelivered" if bar.redelivered else "", "yellow"),
        )


def _label(place: int) -> str:
    """Where a bucket begins and ends; `place` is its position in `EDGES_US`, as `bisect` has it."""
    if place == len(EDGES_US):
        return f"  over {describe(EDGES_US[-1] / 1e6)}"
    low = describe(EDGES_US[place - 1] / 1e6) if place else "less"
    return f"{low:>5} - {describe(EDGES_US[place] / 1e6)}"


def _blocks(width: float) -> str:
    """A bar in eighths of a character; whatever there is, is seen."""
    eighths = max(1, round(width * 8)) if width else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _table(books: Books) -> Text:
    killed = ", ".join(map(str, books.killed))
    rows = [
        Text("  The books, order by order\n", "bold"),
        _row("enqueued", books.enqueued, "", "2 for each order"),
        _row("run", books.run, "", "to their end"),
        _row("cancelled", books.cancelled, "", "taken back: the order was paid in time"),
        _row(
            "redelivered",
            books.redelivered,
            "yellow",
            f"begun by worker {killed}, which was killed" if killed else "no worker was killed",
        ),
        Text(),
    ]
    for kind in KINDS:
        count = books.count(kind)
        if count or kind in (EARLY, LOST, TWICE):
            rows.append(_row(kind, count, "bold red" if count else "bold green"))
    return Text("\n").join([*rows, Text()])


def _row(name: str, count: int, style: str, remark: str = "") -> Text:
    return Text.assemble(f"  {name:26}", (f"{count:>8,}", style), (f"  {remark}".rstrip(), "dim"))


def _lateness(books: Books) -> Text:
    values = sorted(books.lateness_us)
    text = Text.assemble(
        ("  Lateness", "bold"), (" of first runs, from due to begun\n\n", "dim"), " "
    )
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        text.append(f" {name} ", "dim").append(f"{describe(percentile(values, percent) / 1e6):8}")
    text.rstrip()
    return text.append("\n")


REDRAW_EVERY: Final = 0.1
LINE_EVERY: Final = 2.0
"""Seconds between the plain lines."""


class View:
    """Shows a run while it goes on."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._next = 0.0 if self.console.is_terminal else time.monotonic() + LINE_EVERY

    def title(self, text: str) -> None:
        """Print a title."""
        self.console.print(f"  [bold]{text}[/bold]\n")

    def say(self, what: str, text: str | Text, style: str = "") -> None:
        """Print a line, above the live picture if there is one."""
        self.console.print(Text.assemble("  ", (f"{what:9}", style), " ", text), soft_wrap=True)

    def show(self, tally: Tally, elapsed: float, pids: list[int]) -> None:
        """Show how far the run is, if it has not been shown just now."""
        now = time.monotonic()
        if now < self._next:
            return
        if self.console.is_terminal:
            self._next = now + REDRAW_EVERY
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(_picture(tally, elapsed, pids), refresh=True)
        else:
            self._next = now + LINE_EVERY
            self.say(f"{elapsed:.1f} s", _line(tally))

    def close(self) -> None:
        """Take the live picture away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(tally: Tally) -> str:
    return ", ".join(f"{count:,} {name}" for name, count, _ in _counts(tally))


def _counts(tally: Tally) -> list[tuple[str, int, str]]:
    """What is counted, how many, and in what colour."""
    return [
        ("placed", tally.placed, "white"),
        ("notified", len(tally.notified), "cyan"),
        ("paid", len(tally.paid), "green"),
        ("unpaid", len(tally.cancelled), "magenta"),
    ]


def _picture(tally: Tally, elapsed: float, pids: list[int]) -> Group:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=15)
    grid.add_column(width=44, no_wrap=True, overflow="ellipsis")
    grid.add_column(width=10, justify="right")
    for name, count, style in _counts(tally):
        bar = ProgressBar(tally.orders, count, complete_style=style, finished_style=style)
        grid.add_row(f"  {name}", bar, f"{count:,}")
    grid.add_row()
    for pid in pids:
        if pid in tally.held:
            state = Text(f"killed while it ran {tally.held[pid]:,}", "red")
        else:
            state = Text("●" * len(tally.running[pid]), "yellow")
        grid.add_row(f"  worker {pid}", state, f"{tally.runs[pid]:,} jobs")
    late = Text(f"  {elapsed:.1f} s", "dim")
    if tally.lateness_us:
        values = sorted(tally.lateness_us)
        late.append(
            f"   lateness p50 {describe(percentile(values, 50) / 1e6)}, "
            f"p99 {describe(percentile(values, 99) / 1e6)}"
        )
    return Group("", grid, "", late)


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
            view.say("journal", f"python -m bide.cli.demo.books {path} {journal_path}")
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
