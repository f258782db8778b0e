"""How long processes waited for a processor: time that a busy machine took, and nobody else.

The system counts for each thread how long it was ready to run and was not run (Linux: proc(5),
schedstat). A machine that stands still as a whole is seen by the clock of the one that looks.

Tests subtract this from what took long by the clock. And it explains why a lease was lost: a worker
renews its leases four times a lease; where it, or its server, is not run for most of one, no
renewal comes in time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from bide.queue.job_view import JobView
from bide.worker.processes import linux

EVERY: Final = 0.1
"""Seconds from one look to the next."""

SERVER: Final = "server"
"""How the names begin of what workers wait for; all others are workers."""

MACHINE: Final = "machine"
"""The name under which looks stand that came late."""

SHARE: Final = 0.5
"""Of a lease: a worker that waited for so long within one may have lost it. Three quarters of a
lease are left when a renewal begins."""


class Look(NamedTuple):
    """What was seen."""

    at_us: int
    waited_us: Mapping[str, int]
    """By name: how long all its threads have waited since it was seen first."""


class Starvation(NamedTuple):
    """A worker waited for most of a lease, and so may have lost it."""

    worker: str
    from_us: int
    until_us: int


class Witness(threading.Thread):
    """Looks at processes for as long as the context lasts."""

    def __init__(self, names: Callable[[], Mapping[int, str]] | None = None) -> None:
        """Set up.

        Args:
            names: the processes that there are now, and what each is called; without, this one is
                a worker, and its children are servers.
        """
        names = names or _this_and_its_children
        super().__init__(name="witness", daemon=True)
        self.looks: list[Look] = []
        self._names = names
        self._waits: dict[int, dict[int, int]] = {}
        self._sums: dict[str, int] = defaultdict(int)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def waited_us(self, from_us: int, until_us: int) -> int:
        """How long whoever waited longest has waited between two moments (`now_us`)."""
        while self.is_alive() and not (self.looks and self.looks[-1].at_us >= until_us):
            time.sleep(EVERY / 10)
        return waited_us(self.looks, from_us, until_us)

    def lateness(self, job: JobView[Any]) -> float:
        """How late a job began, in seconds, less what was waited for a processor."""
        assert job.started is not None
        due_us, began_us = (round(at.timestamp() * 1e6) for at in (job.due, job.started))
        return (began_us - due_us - self.waited_us(due_us, began_us)) / 1e6

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """See that something takes no longer, less what is waited for a processor meanwhile."""
        since_us = now_us()
        yield
        until_us = now_us()
        waited = self.waited_us(since_us, until_us) / 1e6
        took = (until_us - since_us) / 1e6
        print(f"took {took:.3f} s, {waited:.3f} s of it without a processor")
        assert took - waited < seconds

    def starved(self, lease: float) -> list[Starvation]:
        """When workers may have lost leases of so many seconds."""
        return [*starved(self.looks, lease)]

    def run(self) -> None:
        meant = time.monotonic()
        while not self._ended.wait(max(0.0, meant - time.monotonic())):
            self._sums[MACHINE] += round((time.monotonic() - meant) * 1e6)
            self._look()
            meant = time.monotonic() + EVERY

    def _look(self) -> None:
        for pid, name in self._names().items():
            now = waits(pid)
            if pid in self._waits:
                before = self._waits[pid]
                self._sums[name] += sum(us - before.get(tid, 0) for tid, us in now.items())
            self._waits[pid] = now
        self.looks.append(Look(now_us(), dict(self._sums)))


def now_us() -> int:
    """This machine's time, which is that of its servers too."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000


def _this_and_its_children() -> dict[int, str]:
    return {os.getpid(): "this"} | {pid: f"{SERVER} {pid}" for pid in linux.children()}


def waits(pid: int) -> dict[int, int]:
    """How long each thread of a process has waited so far, in microseconds."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has just ended
                found[int(task.name)] = int((task / "schedstat").read_text().split()[1]) // 1000
    return found


def waited_us(looks: Sequence[Look], from_us: int, until_us: int) -> int:
    """How long the worker that waited longest has waited between two moments."""
    if not looks:
        return 0
    first = next((look for look in reversed(looks) if look.at_us <= from_us), looks[0])
    last = next((look for look in looks if look.at_us >= until_us), looks[-1])
    return max(_cost(first, last, name) for name in (SERVER, *_workers(looks)))


def starved(looks: Sequence[Look], lease: float, share: float = SHARE) -> Iterator[Starvation]:
    """When workers waited for such a share of so many seconds; each time is told once."""
    lease_us = round(lease * 1e6)
    for name in _workers(looks):
        start = 0
        for end, look in enumerate(looks):
            while start + 1 < end and looks[start].at_us < look.at_us - lease_us:
                start += 1
            cost_us = _cost(looks[start], look, name)
            if cost_us >= share * lease_us:
                yield Starvation(name, look.at_us - max(cost_us, lease_us), look.at_us)
                start = end


def _workers(looks: Sequence[Look]) -> list[str]:
    names = {name for look in looks for name in look.waited_us} - {MACHINE}
    return sorted(name for name in names if not name.startswith(SERVER))


def _cost(first: Look, last: Look, name: str) -> int:
    """How long a worker has waited, and the server from which it may have awaited a reply."""
    waited = {n: us - first.waited_us.get(n, 0) for n, us in last.waited_us.items()}
    server = max((us for n, us in waited.items() if n.startswith(SERVER)), default=0)
    worker = 0 if name.startswith(SERVER) else waited.get(name, 0)
    return max(waited.get(MACHINE, 0), worker + server)
