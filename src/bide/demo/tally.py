"""The tally: counts along while the journal grows, for the progress and for picking a victim.

The books are not made from it: they are made afterwards, from the whole journal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from bide.demo.journal import NOTIFY, Begun, Done, Event, Killed, Paid, Placed


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
                case Done():
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
