"""How calls are deduplicated, as a plain Python program: what each comes to, given the time.

Written from what users are told, and not from the script: a job here knows whether it has begun
and whether it has ended, a key knows its latest job, and nothing is bounded, swept or repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 1_000_000


@dataclass
class Job:
    id: str
    due: int
    calls: list[int]
    """The numbers of the calls that it stands for: all that were batched, else the latest."""
    came: int
    has_begun: bool = False
    state: str = "due"
    """`due`, `active`, `done` or `cancelled`."""

    @property
    def waits(self) -> bool:
        return self.state == "due" and not self.has_begun


@dataclass
class Key:
    """What is known of a key of one kind."""

    job: Job | None = None
    """That holds it."""
    until: int = 0
    trailing: Job | None = None
    slot: int = 0
    """When that was to be due."""
    slots: list[int] = field(default_factory=list)


Came = tuple[str, int, str]
"""A word, when the job is due, and its id."""


class DedupModel:
    """One queue."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.keys: dict[tuple[str, str], Key] = {}

    def call(self, way: str, key: str, id: str, number: int, asked: int, now: int) -> Came:
        """What a call comes to; `way` as the constraints of a job have it."""
        known = self.keys.setdefault((way[0], key), Key())
        at = asked if asked > now else now
        if way[0] == "u":
            return self._unique(known, way, id, number, at, now)
        numbers = [int(n) for n in way[1:].split(",")]
        if way[0] == "t":
            return self._throttled(known, numbers[0], numbers[1], id, number, at, now)
        size = numbers[2] if way[0] == "g" else 0
        return self._quiet(known, numbers[0], numbers[1], size, id, number, at, now)

    def _add(self, id: str, due: int, number: int, now: int) -> Job:
        self.jobs[id] = Job(id, due, [number], now)
        return self.jobs[id]

    def _unique(self, known: Key, way: str, id: str, number: int, at: int, now: int) -> Came:
        holder, conflict, until = known.job, way[1], way[3:]
        if holder is None or not self._holds(holder, known):
            known.job = self._add(id, at, number, now)
            known.until = {"f": -1, "s": -2}.get(until, 0) or now + int(until)
            return "created", at, id
        due = holder.due if holder.state == "due" else 0
        if conflict == "x":
            return "rejected", due, holder.id
        if conflict == "k" or holder.state != "due":
            return "duplicate", due, holder.id
        holder.calls = [number]
        holder.due = at if at > now else min(holder.due, now)
        return "replaced", holder.due, holder.id

    def _holds(self, holder: Job, known: Key) -> bool:
        if known.until == -1:
            return holder.state in ("due", "active")
        if known.until == -2:
            return holder.waits
        return self.now < known.until and holder.state != "cancelled"

    def _quiet(
        self, known: Key, quiet: int, most: int, size: int, id: str, number: int, at: int, now: int
    ) -> Came:
        job = known.job if known.job and known.job.waits else None
        first = job.came if job else now
        due = min(now + quiet, first + most if most else now + quiet)
        is_full = size > 0 and len(job.calls if job else []) + 1 >= size
        if is_full:
            due = min(due, now, job.due if job else now)
        due = max(at, due) if at > now else due
        if job is None:
            known.job = self._add(id, due, number, now)
            word = "created"
        else:
            job.calls = [*job.calls, number] if size else [number]
            job.due, id = due, job.id
            word = "batched" if size else "debounced"
        if is_full:
            known.job = None
        return word, due, id

    def _throttled(
        self, known: Key, count: int, period: int, id: str, number: int, at: int, now: int
    ) -> Came:
        last = known.trailing
        slots = [slot for slot in known.slots if slot + period > now]
        if last is not None and last.state == "cancelled":
            slots = _without(slots, known.slot)
        due = _first_free(slots, count, period, at)
        word = "created"
        if last is not None and last.waits and (due > at or at == now):
            slots = _without(slots, known.slot)
            due = _first_free(slots, count, period, at)
            last.due = min(due, last.due) if at == now else due
            last.calls = [number]
            word, due, id = "throttled", last.due, last.id
            known.slot = due
        else:
            job = self._add(id, due, number, now)
            if due > at:
                known.trailing, known.slot = job, due
            elif last is None or not last.waits:
                known.trailing = None
        known.slots = sorted([*slots, due])
        return word, due, id

    now = 0
    """Set before each call."""


def _without(slots: list[int], slot: int) -> list[int]:
    """All but one of these."""
    return (
        [*slots[: slots.index(slot)], *slots[slots.index(slot) + 1 :]] if slot in slots else slots
    )


def _first_free(slots: list[int], count: int, period: int, at: int) -> int:
    """The first time at which no period that it is in has more than so many."""
    for due in sorted([at, *(slot + period for slot in slots if slot + period > at)]):
        near = sorted([*(slot for slot in slots if abs(slot - due) < period), due])
        if all(near[i + count] - near[i] >= period for i in range(len(near) - count)):
            return due
    raise AssertionError("behind all of them there is room")
