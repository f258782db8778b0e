"""How late jobs start, beside how late a bare `time.sleep` wakes in the same run.

A job's lateness is taken by the job itself, as its first statement, in the worker's process: what
the claim, the reply, the decoding and the event loop cost is all in it. Worker, producer and
sleeper are processes of their own and read the same machine's clock. A job is due at the moment of
the call that enqueues it, and its delay. Peers take turns, bide among them, each with a worker of
its own, on the same server.

`time.sleep` is the floor: nobody can wake a process more punctually than the system does. It is
measured between bide's jobs, in turn with them, so that whatever else the machine does meets both.

- *idle*: single jobs, each enqueued 0.4 to 0.7 s ahead, with silence in between; the sleeper wakes
  once in the middle of each silence, after having slept as long.
- *immediate*: single jobs due at once on an idle server, from just before the call that enqueues
  them; the floor is a push to a list that another process waits for with BLPOP.
- *stream*: 200 jobs a second at random moments (a Poisson process), each delayed by 500 ms; the
  sleeper wakes at 200 other random moments a second.

A job that starts before it is due would be an error: they are counted.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import NamedTuple

import redis

from benchmarks.child import child, tell
from benchmarks.lab import Lab
from benchmarks.peer import LONGEST_S, Marks, Peer
from benchmarks.report import Aim, Report, Row, Rows, difference, percentiles, thinned
from benchmarks.rounds import company, in_turn
from benchmarks.tasks import read_log

QUICK_S, THOROUGH_S = 60, 260
RATE = 200
DELAY_S = 0.5
AHEAD_S = 0.3
FLOOR_KEY = "bench-floor"
AT_LENGTH = ("bide", "celery")
"""Those that are held against one another; the others have a third of their time."""

BOUNDS: dict[str, Row] = {
    "stream": {"p50": 0.15, "p99": 0.5},
    "idle": {"p50": 0.2, "p99": 0.5},
    "immediate": {"p50": 0.9},
}
"""How late jobs of bide may be above the floor, in ms."""

Late = dict[str, dict[str, list[float]]]
"""Kind → worker or floor → ms."""


class Visit(NamedTuple):
    """One peer whose worker is idle, for some seconds."""

    lab: Lab
    peer: Peer
    worker: str
    marks: Marks
    floor: Path | None
    """Where the sleeper notes when it woke: with bide only."""

    def seconds(self, quick: float, thorough: float) -> float:
        """How long to measure."""
        return self.lab.seconds(quick, thorough) / (1 if self.peer.key in AT_LENGTH else 3)

    def lateness(self, number: int, due_ns: int) -> float:
        """How late a job was that has run, in ms."""
        return (self.marks.times(number, 1)[0] - due_ns) / 1e6


def run(lab: Lab) -> list[Report]:
    """Each kind by each peer, in turn."""
    late: Late = defaultdict(lambda: defaultdict(list))
    peers = company(lab).peers.values()
    measures = {
        worker: partial(_visit, lab, peer, worker, late)
        for peer in peers
        for worker in peer.punctual
    }
    in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    best = {peer.best for peer in peers if peer.name == "bide"}
    return [_report(kind, late[kind], best) for kind in KINDS if late[kind]]


def _report(kind: str, late: dict[str, list[float]], best: set[str]) -> Report:
    rows: Rows = {}
    aims: list[Aim] = []
    for name, times in late.items():
        early = sum(one < 0 for one in times)
        rows[name] = percentiles(times) | {"early": early, "earliest": min(min(times), 0.0)}
    for name in best & rows.keys():
        if floors := [other for other in rows if other.startswith("floor")]:
            above = difference(rows[name], rows[floors[0]])
            rows[f"  {name}, above the floor"] = above
            aims += [
                Aim(f"late, {kind}: {share} above the floor, ms", above[share], at_most=most)
                for share, most in BOUNDS[kind].items()
            ]
        aims.append(Aim(f"late, {kind}: early jobs", rows[name]["early"], at_most=0))
        aims += [
            Aim(f"late, {kind}: {share}, ms; than Celery", rows[name][share], at_most=row[share])
            for other, row in rows.items()
            if other.startswith("Celery") and kind != "immediate"
            for share in ("p50", "p99")
        ]
    return Report(
        f"Lateness in ms, {KINDS[kind][0]}",
        rows,
        "worker",
        "from due to the job's first statement; earliest: how much before it was due, at most",
        aims,
        {name: thinned(times) for name, times in late.items()},
    )


def _visit(lab: Lab, peer: Peer, worker: str, late: Late) -> Row:
    """Each kind in turn by one worker of a peer's."""
    lab.empty()
    marks = company(lab).marks
    marks.clear()
    with TemporaryDirectory() as directory, peer.warm(worker, marks):
        for kind, (_, measure) in KINDS.items():
            floor = Path(directory, kind) if peer.key == "bide" else None
            floor_name, times = measure(Visit(lab, peer, worker, marks, floor))
            late[kind][worker] += times
            if floor is not None:
                _, *notes = read_log(floor)  # by the first, it said that it was there
                late[kind][f"floor: {floor_name}"] += [note.late_ms for note in notes]
    return {}


def _idle(visit: Visit) -> tuple[str, list[float]]:
    """One job at a time, the enqueuer silent before each is due."""
    late: list[float] = []
    number = 0
    with ExitStack() as stack:
        floor = visit.floor and stack.enter_context(_sleeper(visit.floor))
        end = time.monotonic() + visit.seconds(5, 9)
        while time.monotonic() < end:
            delay = random.uniform(0.4, 0.7)
            due, due_ns = time.time() + delay, time.monotonic_ns() + round(delay * 1e9)
            visit.peer.put(visit.worker, number, 1, at=due)
            if floor:
                tell(floor, round((due - delay / 2) * 1e9))
            time.sleep(max(0.0, due + 0.02 - time.time()))
            visit.marks.wait(number, 1)
            late.append(visit.lateness(number, due_ns))
            number += 1
    visit.marks.clear()
    return "time.sleep", late


def _immediate(visit: Visit) -> tuple[str, list[float]]:
    """Due at once: from just before the call to the job's first statement."""
    late: list[float] = []
    number = 0
    client = redis.Redis.from_url(visit.lab.server.url)
    with ExitStack() as stack:
        if visit.floor:
            url = visit.lab.server.url
            stack.enter_context(child("pop", url, FLOOR_KEY, visit.floor))
            client.lpush(FLOOR_KEY, time.time_ns())
            _wait_note(visit.floor)
        end = time.monotonic() + visit.seconds(1, 1.5)
        while time.monotonic() < end:
            called_ns = visit.peer.put(visit.worker, number, 1)
            visit.marks.wait(number, 1)
            late.append(visit.lateness(number, called_ns))
            number += 1
            time.sleep(random.uniform(0.03, 0.08))
            if visit.floor:
                client.lpush(FLOOR_KEY, time.time_ns())
                time.sleep(random.uniform(0.03, 0.08))
    client.close()
    visit.marks.clear()
    return "push to BLPOP", late


def _stream(visit: Visit) -> tuple[str, list[float]]:
    """Random moments from the peer's producer, and others of the sleeper."""
    count = round(RATE * visit.seconds(2, 3))
    with ExitStack() as stack:
        floor = visit.floor and stack.enter_context(_sleeper(visit.floor))
        start = time.time() + AHEAD_S
        if floor:
            moment = start + DELAY_S
            for _ in range(count):
                moment += random.expovariate(RATE)
                tell(floor, round(moment * 1e9))
        due = visit.peer.stream(visit.worker, 0, count, RATE, DELAY_S, start)
        visit.marks.wait(0, count, LONGEST_S)
        time.sleep(0.1)
    ran = visit.marks.times(0, count)
    visit.marks.clear()
    return "time.sleep", [(at - due) / 1e6 for at, due in zip(ran, due, strict=True)]


@contextmanager
def _sleeper(log: Path) -> Iterator[Popen[str]]:
    """A process that sleeps until each moment it is told; it is there when this is entered."""
    with child("sleep", log) as process:
        tell(process, time.time_ns())
        _wait_note(log)
        yield process


def _wait_note(log: Path) -> None:
    end = time.monotonic() + LONGEST_S
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > end:
            raise RuntimeError("the floor's process did not start")
        time.sleep(0.01)


Measure = Callable[[Visit], tuple[str, list[float]]]

KINDS: dict[str, tuple[str, Measure]] = {
    "stream": (f"{RATE} jobs/s at random moments, delayed by {DELAY_S:g} s", _stream),
    "idle": ("single delayed jobs on an idle server", _idle),
    "immediate": ("single jobs due at once on an idle server", _immediate),
}
