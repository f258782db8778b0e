"""What it costs to tell events: nobody listens, someone holds the stream open, someone reads it.

20,000 jobs that do nothing are drained by one worker process, as in `throughput`; the three ways
take turns. Who reads does so in this process, and counts. The stream ends as full as it may be:
`bytes` is what the server says of it, for each entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from benchmarks.lab import Lab
from benchmarks.report import Report, Row, Rows, median, spread
from benchmarks.throughput import drain
from bide import Event, Queue

Way = Callable[[Queue], AbstractContextManager[object]]


def run(lab: Lab) -> list[Report]:
    """Drain the queue each way in turn, several times over."""
    ways: dict[str, Way] = {
        "nobody listens": lambda queue: nullcontext(),
        "the stream is held open": lambda queue: queue.events(name="bench"),
        "and read": _read,
    }
    rounds: dict[str, list[Row]] = {name: [] for name in ways}
    for _ in range(3 if lab.quick else 7):
        for name, way in ways.items():
            row = drain(lab, "async", 100, way)
            row = {name: row[name] for name in ("jobs/s", "wall µs", "server µs", "CPU µs")}
            entries = int(lab.client.xlen(lab.keys["events"]))
            if entries:
                size = int(lab.client.memory_usage(lab.keys["events"], samples=0))
                row |= {"entries": float(entries), "bytes": size / entries}
            rounds[name].append(row)
    rows: Rows = {name: median(r) | spread(r, "jobs/s") for name, r in rounds.items()}
    return [Report("Events of 20,000 jobs, one worker process", rows, "way", "two events a job")]


@contextmanager
def _read(queue: Queue) -> Iterator[None]:
    """Read along, to the end."""
    drained = threading.Event()
    heard: dict[str, int] = {}

    def count(event: Event) -> None:
        heard[event.kind] = heard.get(event.kind, 0) + 1
        if event.kind == "drained":
            drained.set()

    listening = queue.on(("active", "completed", "drained", "gap"), count, name="bench")
    yield
    if not drained.wait(30):
        raise RuntimeError(f"the reader heard {heard}, and no end")
    listening.stop()
