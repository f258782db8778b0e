"""What the model's queue holds, and what several of its verbs do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tests.model.limits import FOREVER, Bucket, Limits

STRIKES = 2
BACK, FORWARD, MARK_EVERY, LONGEST_CALM = 2_000_000, 30_000_000, 1_000_000, 300_000_000
SPARE = 15_000_000
AHEAD = 20_000
"""How long before it is due a job may be claimed."""

KEEP = "10000 86400000000 10000 2592000000000 10000 86400000000"
FORGET = 64

LEVELS = [str(p) for p in range(9, -1, -1)]
DUE = [*LEVELS, "alone", "unserved", "grouped"]
FINISHED = ("completed", "failed", "cancelled")
STAMPS = {
    "complete": "C",
    "retry": "R",
    "fail": "F",
    "snooze": "S",
    "hold": "H",
    "release": "L",
    "cancel": "X",
    "crash": "K",
}
NOTES = {"E": (10, 49152), "C": (10, 4096), "L": (100, 32768), "P": (1, 4096), "R": (5, 500)}
"""Kind of note -> how many lines of it are kept, and how many bytes."""


@dataclass
class Run:
    """What is known of a job that was claimed."""

    token: int
    priority: int
    settled: str = "-"
    before: tuple[int, str] = (0, "-")
    attempt: int = 0
    crashes: int = 0
    strikes: int = 0
    alone: int = 0
    started: int = 0
    worker: str = ""
    due: int = 0
    first: int = 0
    """When it was first due, if a retry or snooze has moved that."""
    retried: str = ""
    """The name of the call that last made it run again after it had ended."""
    missing: int = 0
    """Since when no worker that claimed it has served its task."""
    ended: int = 0
    """When it finished, if its score does not say so."""

    def tries(self) -> bytes:
        """How often it was run, as a claim says."""
        leases = self.crashes + self.strikes
        first = self.first or self.due
        return f"{self.attempt} {leases} {first} {self.crashes} {self.missing}".encode()

    def line(self) -> str:
        token, how = self.before
        first = f" {self.first}" if self.first else ""
        retried = f" {self.retried}r" if self.retried else ""
        missing = f" {self.missing}m" if self.missing else ""
        ended = f" {self.ended}e" if self.ended else ""
        return (
            f"{self.token:016d}{self.settled}{token:016d}{how} {self.priority} {self.attempt} "
            f"{self.crashes} {self.strikes} {self.alone} {self.started} {self.worker} {self.due}"
            f"{first}{retried}{missing}{ended}"
        )

    def due_again(self, now: int) -> int:
        """When it is due if it ends without an outcome; a claim ahead leaves that as it was."""
        return self.due if self.due <= now + AHEAD else now

    def remembers(self, token: int, outcome: str) -> bool:
        return (token, STAMPS[outcome]) in ((self.token, self.settled), self.before)


@dataclass
class Job:
    """A job: `place` is the set it is in, `score` its score there."""

    id: str
    body: bytes
    place: str
    score: int
    run: Run | None = None
    result: bytes | None = None
    notes: list[bytes] = field(default_factory=list)
    constraints: str = ""

    def begins_by(self) -> int | None:
        """By when it must have begun, if it ever must."""
        way, number = self.constraints[2:3], self.constraints[3:].partition(" ")[0]
        if not self.constraints.startswith("x="):
            return None
        first = self.run.first if self.run and self.run.missing else 0
        return int(number) + ((first or self.score) if way == "+" else 0)

    def is_unbegun(self) -> bool:
        """Whether it has never begun since somebody last asked for it."""
        run = self.run
        if run is None:
            return True
        tried = run.attempt or run.crashes or run.strikes or run.retried
        return not tried and (not run.first or run.missing > 0)

    def note(self, line: bytes) -> None:
        """Add a line; of each kind the newest are kept, the very newest whatever its size."""
        self.notes.append(line)
        kind = line[:1].decode()
        count, size = NOTES[kind]
        mine = [i for i, line in enumerate(self.notes) if line[:1].decode() == kind]
        kept = [mine[-1]]
        size -= len(self.notes[mine[-1]])
        for i in mine[-2::-1]:
            size -= len(self.notes[i])
            if len(kept) == count or size < 0:
                break
            kept.append(i)
        gone = {*mine} - {*kept}
        self.notes = [line for i, line in enumerate(self.notes) if i not in gone]

    def note_attempt(self, kind: str, now: int, data: bytes = b"") -> None:
        """That an attempt raised (`E`, with its error), or ended without an outcome (`C`)."""
        run = self.run
        assert run
        told = f"{kind} {run.attempt} {run.started} {now} {run.worker}".encode()
        self.note(told + b" " + data if data else told)

    def was_popped(self, consumer: str, then: int) -> bool:
        """Whether this consumer popped it then, and nothing has happened to it since."""
        mine = self.run and (self.run.worker, self.run.started) == (consumer, then)
        return bool(mine) and self.place == "completed"

    def again(self, at: int) -> None:
        """Due again then, where its record says."""
        assert self.run
        level = self.level()
        self.place = f"due:{'unserved' if self.run.missing and level != 'alone' else level}"
        self.score = at

    def move(self, at: int = 0) -> None:
        """Its caller makes it due now, or says when it is: then it waits anew for a worker."""
        if self.place in ("due:alone", "due:unserved", "due:grouped") and self.run:
            if at and self.run.missing:
                self.run.first, self.run.missing = 0, at
            if self.place == "due:unserved":
                self.place = f"due:{self.level()}"

    def level(self) -> str:
        """The due set in which a job stands with its record, where its task is served."""
        assert self.run
        return "alone" if self.run.strikes >= STRIKES else str(self.run.priority)


@dataclass
class Store:
    """What one queue holds."""

    jobs: dict[str, Job] = field(default_factory=dict)
    meta: dict[str, int] = field(default_factory=dict)
    keep: dict[str, int] = field(default_factory=dict)
    park: dict[str, int] = field(default_factory=dict)
    claims: dict[str, tuple[int, int, list[str]]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    waiters: dict[str, int] = field(default_factory=dict)
    expiring: dict[str, int] = field(default_factory=dict)
    unique: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Key -> who holds it, until when or what, and since when."""
    folded: dict[str, tuple[int, str, int, str]] = field(default_factory=dict)
    """Id of a call that was deduplicated -> when, and what it came to."""
    said: list[tuple[str, str]] = field(default_factory=list)
    """Messages published and not yet heard: channel and id."""
    minutes: dict[int, Counter[str]] = field(default_factory=dict)
    retention: str = ""
    rate: str = ""
    spent: str = ""
    """The rate of the queue, and what is used of it (`limits`)."""
    is_rewinding: bool = False
    """The clock was set back, and no claim has seen to the turns of groups since."""
    purged: str = ""
    """Which emptying was the last, and of how many jobs."""
    wakeup: str = ""
    """Who pushed the wake-up message that lies there, `-` for a job that is due."""

    # -- limits

    def limits(self, now: int) -> Limits | None:
        """How the limits stand, if there may be any; forgets those that are over."""
        if "limited" not in self.meta:
            return None
        most = self.meta.get("concurrency")
        slots = FOREVER if most is None else max(0, most - len(self.at("active")))
        limits = Limits(Bucket.read(self.rate, self.spent, now), slots, 0, now)
        limits.held_until = self.meta.get("held_until", 0)
        if limits.held_until <= now:
            self.meta.pop("held_until", None)
            if not self.rate and most is None:
                del self.meta["limited"]
        return limits

    def may_begin(self, due: int, now: int) -> int:
        """When a job may begin, for all that the rate and a hold say."""
        if "limited" not in self.meta:
            return due
        bucket = Bucket.read(self.rate, self.spent, now)
        if bucket and not bucket.tokens(now):
            due = max(due, bucket.refilled())
        return max(due, self.meta.get("held_until", 0))

    # -- looking

    def at(self, place: str) -> list[Job]:
        """The jobs in a set, in its order."""
        there = (job for job in self.jobs.values() if job.place == place)
        return sorted(there, key=lambda job: (job.score, job.id.encode()))

    def due_jobs(self) -> list[Job]:
        return [job for level in DUE for job in self.at(f"due:{level}")]

    def waits(self, id: str) -> Job | None:
        """The job, if it has not been taken."""
        job = self.jobs.get(id)
        return job if job and job.place.startswith("due:") else None

    def state(self, id: str, now: int) -> str:
        job = self.jobs.get(id)
        if job is None or job.place.startswith("trash:"):
            return "gone"
        if job.place.startswith("due:"):
            return "delayed" if job.score > now else "waiting"
        return job.place

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.meta[name] = self.meta.get(name, 0) + by

    def wake_for(self, due: int, now: int) -> None:
        """Someone must know of a job due then, unless a deadline is before."""
        covered = any(now - 5_000 <= until <= due for until in self.keep.values())
        if due <= now or not covered:
            self.push()

    def note_minute(self, now: int, kind: str, us: int) -> None:
        """Count how late a job began, or how long an attempt ran."""
        bucket = min(24, max(0, math.frexp(us / 250)[1]))
        self.minutes.setdefault(now // 60_000_000, Counter())[f"{kind}{bucket}"] += 1

    def push(self, caller: str = "-") -> None:
        self.wakeup = self.wakeup or caller

    # -- what several verbs do

    def recall(self, id: str, now: int) -> bool:
        """Ask its worker to return a job that was claimed ahead and is not due yet."""
        run = self.jobs[id].run
        if run is None or not now < run.due <= now + AHEAD:
            return False
        self.meta["exact_until"] = now + AHEAD
        self.said.append(("asked", "~" + id))
        return True

    def recall_all(self, now: int) -> bool:
        if not now < self.meta.get("ahead_until", 0) <= now + AHEAD:
            return False
        self.meta["exact_until"] = now + 2 * AHEAD
        self.said.append(("asked", "~"))
        return True

    def free(self, job: Job) -> None:
        """A job is being deleted, with all that it holds."""

    def sweep(self, limit: int) -> bool:
        for level in DUE:
            for job in self.at(f"trash:{level}"):
                del self.jobs[job.id]
                self.expiring.pop(job.id, None)
                self.free(job)
                limit -= 1
                if limit == 0:
                    return True
        self.meta.pop("trash", None)
        return False

    def kept(self, place: str) -> tuple[int, int]:
        """How many jobs are kept that ended so, and for how many microseconds."""
        numbers = [int(number) for number in (self.retention or KEEP).split()]
        i = 2 * FINISHED.index(place)
        return numbers[i], numbers[i + 1]

    def finish(self, job: Job, place: str, now: int, keep: int | None = None) -> None:
        """End a job; `keep` is for how long it is kept, if not as the queue keeps others."""
        job.place, job.score = place, now
        self.expiring.pop(job.id, None)
        if keep is not None:
            assert job.run
            job.score += max(keep, SPARE) - max(self.kept(place)[1], SPARE)
            job.run.ended = now
            self.meta["own"] = 1
        self.count(place)

    def retain(self, place: str, now: int, limit: int) -> None:
        """Drop the oldest that are over the count or the age, except the youngest of all.

        Few enough are kept here that the script looks at all that are to be kept for longer.
        """
        count, age = self.kept(place)
        jobs = self.at(place)
        excess = len(jobs) - count
        found: list[Job] = []
        for job in jobs[:limit]:
            aged = job.score <= now - max(age, SPARE)
            if job.score > now - SPARE or not (aged or len(found) < excess):
                break
            found.append(job)
        # Without any that is to be kept for long, what ended later than now did so before the clock
        # was set back, and is left alone.
        long = [job for job in jobs if job.score > now and "own" in self.meta]
        found += long[: max(0, excess - len(found))]
        for job in found:
            if not (job.run and job.run.ended > now - SPARE):
                del self.jobs[job.id]
                if place == "cancelled":
                    self.free(job)

    def forget_waiters(self, now: int) -> None:
        over = [id for id, until in by_score(self.waiters) if until <= now]
        for id in over[:FORGET]:
            del self.waiters[id]

    def tell(self, now: int, ids: list[str]) -> None:
        """Say that jobs have ended to those who wait for it."""
        if not ids:
            return
        self.forget_waiters(now)
        for id in ids:
            if self.waiters.pop(id, None) is not None:
                self.said.append(("waiters", id))

    def observe(self, now: int, lease: int) -> bool:
        """Note the time, and whether it has jumped; True if it went its usual way."""
        seen = self.meta.get("clock")
        if seen is None or MARK_EVERY <= now - seen <= FORWARD:
            self.meta["clock"] = now
            return seen is not None
        if now - seen > FORWARD:
            self.meta |= {"clock": now, "gap_us": now - seen, "gap_at": now}
            self.meta |= {"calm_until": now + min(lease, LONGEST_CALM), "calm_from": seen}
        elif seen - now > BACK:
            self.keep.clear()
            self.park.clear()
            self.meta.pop("calm_until", None)
            self.meta.pop("calm_from", None)
            self.meta |= {"clock": now, "gap_us": now - seen, "gap_at": now}
            self.meta["rewound_until"] = max(seen, self.meta.get("rewound_until", 0))
            self.is_rewinding = True
        return False


def by_score(zset: dict[str, int]) -> list[tuple[str, int]]:
    """A sorted set in its order."""
    return sorted(zset.items(), key=lambda pair: (pair[1], pair[0]))
