"""What the model's queue holds, and what several of its verbs do."""

from __future__ import annotations

from dataclasses import dataclass, field

STRIKES = 2
BACK, FORWARD, MARK_EVERY, LONGEST_CALM = 2_000_000, 30_000_000, 1_000_000, 300_000_000
SPARE = 15_000_000

LEVELS = [str(p) for p in range(9, -1, -1)]
DUE = [*LEVELS, "alone"]
FINISHED = ("completed", "failed", "cancelled")
STAMPS = {"complete": "C", "retry": "R", "fail": "F", "snooze": "S", "release": "L"}


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

    def line(self) -> str:
        token, how = self.before
        return (
            f"{self.token:016d}{self.settled}{token:016d}{how} {self.priority} {self.attempt} "
            f"{self.crashes} {self.strikes} {self.alone} {self.started} {self.worker} {self.due}"
        )

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
    error: bytes | None = None

    def again(self, at: int) -> None:
        """Due again then, where its record says."""
        assert self.run
        suspect = self.run.strikes >= STRIKES
        self.place = "due:alone" if suspect else f"due:{self.run.priority}"
        self.score = at


@dataclass
class Store:
    """What one queue holds."""

    jobs: dict[str, Job] = field(default_factory=dict)
    meta: dict[str, int] = field(default_factory=dict)
    keep: dict[str, int] = field(default_factory=dict)
    park: dict[str, int] = field(default_factory=dict)
    claims: dict[str, tuple[int, int, list[str]]] = field(default_factory=dict)
    emptied: str = ""
    """Which emptying was the last, and of how many jobs."""
    hint: str = ""
    """Who pushed the wake hint that lies there, `-` for a job that is due."""

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
        """Someone must know of a job due then, unless one promised to look before."""
        covered = any(now <= until <= due for until in self.keep.values())
        if due <= now or not covered:
            self.push()

    def push(self, caller: str = "-") -> None:
        self.hint = self.hint or caller

    # -- what several verbs do

    def sweep(self, limit: int) -> bool:
        for level in DUE:
            for job in self.at(f"trash:{level}"):
                del self.jobs[job.id]
                limit -= 1
                if limit == 0:
                    return True
        self.meta.pop("trash", None)
        return False

    def retain(self, place: str, now: int, keep: tuple[int, int], limit: int) -> None:
        """Drop the oldest that are over the count or the age, except the youngest of all."""
        count, age = keep
        jobs = self.at(place)
        excess = len(jobs) - count
        for i, job in enumerate(jobs[:limit]):
            spared = job.score > now - SPARE
            if spared or (i >= excess and job.score > now - max(age, SPARE)):
                break
            del self.jobs[job.id]

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
        return False
