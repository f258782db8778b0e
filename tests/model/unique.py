"""Unique jobs in the model of all verbs; `model/dedup.py` has all kinds of dedup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.store import Job, Store

REPEATS = 15_000_000


class Uniques(Store):
    """Who holds which key, as the scripts store it. Nothing is cleared away here."""

    def holder(self, key: str) -> Job | None:
        """The job that came with a key, if it is there still."""
        job = self.jobs.get(self.unique[key][0])
        there = job is not None and f"k={key} f=u" in job.constraints
        return job if there and job and not job.place.startswith("trash:") else None

    def holds(self, key: str, now: int) -> bool:
        """Whether that job holds it still."""
        _, until, _ = self.unique[key]
        job = self.holder(key)
        place = job.place.partition(":")[0] if job else "gone"
        if until == "f":
            return place in ("due", "active")
        if until == "s":
            return place == "due" and job is not None and job.is_unbegun()
        return now < int(until) and place != "cancelled"

    def free(self, job: Job) -> None:
        """A job is being deleted."""
        for key, (id, _, _) in [*self.unique.items()]:
            if id == job.id and f"k={key} f=u" in job.constraints:
                del self.unique[key]

    def leave_key(self, job: Job) -> None:
        """A job runs again after its end: the key that it held until then stays free."""
        for key, (id, until, _) in [*self.unique.items()]:
            if id == job.id and until == "f" and f"k={key} f=u" in job.constraints:
                del self.unique[key]

    def enqueue_unique(
        self, now: int, jobs: Sequence[tuple[str, int | None, int, bytes]], constraints: str
    ) -> list[Any]:
        """Each job is (id, due or None for now, priority, body)."""
        reply: list[Any] = [b"ok", now]
        earliest: list[int] = []
        for id, asked, priority, body in jobs:
            there = self.jobs.get(id)
            noted = self.folded.get(id)
            if noted and noted[0] + REPEATS >= now:
                word, due, holder = noted[1:]
            elif there and not there.place.startswith("trash:"):
                word, due, holder = "duplicate", 0, id
            else:
                self.jobs.pop(id, None)
                job = Job(
                    id, body, f"due:{priority}", max(asked or 0, now), constraints=constraints
                )
                word, due, holder = self._deduplicate(job, now, earliest)
            reply += [word.encode(), due, holder.encode()]
        if earliest:
            self.wake_for(self.may_begin(min(earliest), now), now)
        return reply

    def _deduplicate(self, call: Job, now: int, earliest: list[int]) -> tuple[str, int, str]:
        key, way = call.constraints.removeprefix("k=").split(" f=u")
        at = call.score
        if key not in self.unique or self.unique[key][0] == call.id or not self.holds(key, now):
            until = way[2:] if way[2:] in ("f", "s") else str(now + int(way[2:]))
            self.unique[key] = (call.id, until, now)
            self.jobs[call.id] = call
            self.meta["terms"] = 1
            earliest.append(at)
            return "created", at, call.id
        id = self.unique[key][0]
        job = self.holder(key)
        if job is None or not job.place.startswith("due:"):
            return "duplicate", 0, id
        if way[0] == "k":
            return "duplicate", job.score, id
        due = at if at > now else min(job.score, now)
        if due < job.score:
            earliest.append(due)
        job.body, job.constraints, job.score = call.body, call.constraints, due
        job.move(due)
        if job.run is None:
            job.place = call.place
        self.expiring.pop(id, None)
        self.meta["terms"] = 1
        self.folded[call.id] = (now, "replaced", due, id)
        return "replaced", due, id

    def agree_on_keys(self, now: int, unique: dict[str, bytes], folded: dict[str, bytes]) -> None:
        """What is stored of keys: all that matters still, and nothing that never was."""
        mine = {
            f"u:{key}": f"{id} {til} {at}".encode() for key, (id, til, at) in self.unique.items()
        }
        assert unique.items() <= mine.items()
        assert {f"u:{key}" for key in self.unique if self.holds(key, now)} <= unique.keys()
        noted = {
            id: f"{at} {w} {due} {of}".encode() for id, (at, w, due, of) in self.folded.items()
        }
        assert folded.items() <= noted.items()
        assert {id for id, (at, *_) in self.folded.items() if at + REPEATS >= now} <= folded.keys()
