"""What follows from a queue's events alone: the state of each job, as a listener would keep it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from datetime import datetime
from typing import Final

from bide.model.job import Event, follows
from tests.model.store import FINISHED

AFTER: Final = {
    "added": "due",
    "retried": "due",
    "rescheduled": "due",
    "reclaimed": "due",
    "active": "active",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""Kind of event -> where the job is after it."""

LEGAL: Final[dict[str, set[str | None]]] = {
    "added": {None},
    "active": {"due"},
    "completed": {"active", "due"},
    "failed": {"active", "due"},
    "cancelled": {"active", "due"},
    "retried": {"active", "completed", "failed", "cancelled"},
    "rescheduled": {"active", "due"},
    "reclaimed": {"active"},
    "deleted": {"due", "completed", "failed", "cancelled"},
}
"""Kind of event -> where the job may be before it. Those that are due after `reclaimed` may still
fail or be cancelled for it."""


class Replay:
    """Where each job is, from what was told."""

    def __init__(self, after: str) -> None:
        self.after = after
        self.places: dict[str, str] = {}
        self.due: dict[str, datetime | None] = {}
        """id -> when a job that is due is due."""
        self.totals: Counter[str] = Counter()
        self.expired = 0
        self.is_paused: bool | None = None
        """None while no event has told."""

    def take(self, events: Iterable[Event]) -> None:
        """Note what was told."""
        for event in events:
            assert follows(event.id, self.after), "a gap"
            self.after = event.id
            if event.kind == "purged":
                self._empty(event)
            elif event.kind == "drained":
                assert "active" not in self.places.values()
            elif event.kind in ("paused", "resumed"):
                assert self.is_paused is not (event.kind == "paused")
                self.is_paused = event.kind == "paused"
            elif event.kind == "progress":
                assert event.progress is not None
            else:
                self._move(event)

    def forget(self, there: Container[str]) -> None:
        """Forget finished jobs that are kept no longer, which no event tells."""
        for id, place in [*self.places.items()]:
            if id not in there:
                assert place in FINISHED, f"{id} is gone, and was {place}"
                del self.places[id]

    def _empty(self, event: Event) -> None:
        due = [id for id, place in self.places.items() if place == "due"]
        assert event.count == len(due)
        for id in due:
            del self.places[id]

    def _move(self, event: Event) -> None:
        assert event.job_id is not None
        before = self.places.pop(event.job_id, None)
        assert before in LEGAL[event.kind], f"{event} of one that is {before}"
        if event.kind != "deleted":
            self.places[event.job_id] = AFTER[event.kind]
            self.due[event.job_id] = event.due
        self.expired += event.verb == "expire"
        if event.verb != "revive":
            self.totals[event.kind] += 1
        if (event.kind, event.verb) == ("failed", "crash"):  # one event says both
            self.totals["reclaimed"] += 1
