"""The verbs of the model with which jobs are made and managed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.model.limits import Bucket
from tests.model.store import FINISHED, Job, Run
from tests.model.unique import Uniques

Reply = list[Any]


class Managed(Uniques):
    """A queue without its workers."""

    def enqueue(
        self, now: int, jobs: Sequence[tuple[str, int | None, int, bytes]], constraints: str = ""
    ) -> Reply:
        """Each job is (id, due or None for now, priority, body)."""
        reply: Reply = [b"ok", now]
        due_by, over_by = None, None
        for id, at, priority, body in jobs:
            there = self.jobs.get(id)
            if there and not there.place.startswith("trash:"):
                reply.append(0)
                continue
            due = max(at or 0, now)
            job = self.jobs[id] = Job(id, body, f"due:{priority}", due, constraints=constraints)
            reply.append(due)
            due_by = due if due_by is None else min(due_by, due)
            if (by := job.begins_by()) is not None:
                self.expiring[id] = by
                over_by = max(by, now) if over_by is None else min(over_by, max(by, now))
        if due_by is not None:
            if constraints:
                self.meta["terms"] = 1
            may = self.may_begin(due_by, now)
            self.wake_for(may if over_by is None else min(may, over_by), now)
        return reply

    def cancel(self, now: int, ids: Sequence[str], running: bool) -> Reply:
        words, done = [], []
        for id in ids:
            job = self.waits(id)
            word = "ok" if job else self.state(id, now)
            if job:
                priority = job.place.removeprefix("due:")
                if job.run is None and priority != "5":
                    job.run = Run(token=0, priority=int(priority), worker="-", due=now)
                self.finish(job, "cancelled", now)
                done.append(id)
            elif word == "active" and self.recall(id, now):
                word = "held"
            elif word == "active" and running:
                word = "asked"
                self.asked[id] = now
                self.said.append(("asked", id))
            words.append(word)
        if done:
            self.retain("cancelled", now, len(done) + 64)
            self.tell(now, done)
        return [b"ok", now, *(word.encode() for word in words)]

    def reschedule(self, now: int, ids: Sequence[str], at: int) -> Reply:
        reply: Reply = [b"ok", now]
        moved = False
        for id in ids:
            job = self.waits(id)
            if job:
                if job.score != (to := max(at, now)):
                    job.note(b"R %d %d %d" % (now, job.score, to))
                job.score = to
                job.move(to)
                self._expire_no_later(job)
                moved = True
            reply += [b"ok", job.score] if job else [self._elsewhere(id, now), 0]
        if moved:
            self.wake_for(max(at, now), now)
        return reply

    def _elsewhere(self, id: str, now: int) -> bytes:
        """The state of a job that does not wait; or that its worker is asked to return it."""
        state = self.state(id, now)
        return b"held" if state == "active" and self.recall(id, now) else state.encode()

    def _expire_no_later(self, job: Job) -> None:
        """It is due at another time."""
        by = job.begins_by()
        if by is not None and job.id in self.expiring:
            self.expiring[job.id] = min(by, self.expiring[job.id])

    def promote(self, now: int, ids: Sequence[str]) -> Reply:
        reply: Reply = [b"ok", now]
        for id in ids:
            job = self.waits(id)
            if job and job.score > now:
                job.note(b"R %d %d %d" % (now, job.score, now))
                job.score = now
                job.move()
                self._expire_no_later(job)
                self.push()
            reply += [b"ok", job.score] if job else [self._elsewhere(id, now), 0]
        return reply

    def retry(
        self, now: int, ids: Sequence[str], at: int, name: str, states: Sequence[str] = FINISHED
    ) -> Reply:
        reply: Reply = [b"ok", now]
        moved = False
        for id in ids:
            job = self.jobs.get(id)
            if job and job.run and job.run.retried == name:
                reply += [b"ok", job.score if job.place.startswith("due:") else 0]
                continue
            if job is None or job.place not in FINISHED or job.place not in states:
                reply += [self.state(id, now).encode(), 0]
                continue
            run = job.run = job.run or Run(token=0, priority=5, worker="-", due=now)
            run.attempt = run.crashes = run.strikes = run.alone = run.first = run.ended = 0
            run.missing = 0
            run.retried = name
            job.place, job.score, job.result = f"due:{run.priority}", max(at, now), None
            job.constraints = job.constraints.partition(" e=")[0]
            self.leave_key(job)
            moved = True
            reply += [b"ok", job.score]
        if moved:
            self.wake_for(max(at, now), now)
        return reply

    def watch(self, now: int, id: str, wait: int) -> Reply:
        state = self.state(id, now)
        state = "due" if state in ("delayed", "waiting") else state
        if state in ("due", "active"):
            self.forget_waiters(now)
            self.waiters[id] = now + wait
        return [b"ok", now, state.encode()]

    def configure(self, retention: str, results: int) -> Reply:
        self.retention = retention
        self.meta["result_budget"] = results
        return [b"ok", b"-"]

    def limit(self, now: int, rate: str, concurrency: str) -> Reply:
        if rate == "none":
            self.rate = self.spent = ""
        elif rate not in ("keep", self.rate):
            before = Bucket.read(self.rate, self.spent, now)
            self.rate = rate
            if before:
                carried = Bucket.read(rate, f"{math.ceil(before.full_at)} 0 0", now)
                self.spent = carried.stored() if carried else ""
        if concurrency == "none":
            self.meta.pop("concurrency", None)
        elif concurrency != "keep":
            self.meta["concurrency"] = int(concurrency)
        self.meta["limited"] = 1
        self.push()
        self.recall_all(now)
        return [b"ok", now]

    def delete(self, now: int, ids: Sequence[str], states: Sequence[str]) -> Reply:
        words = []
        unbegun = any(state not in FINISHED for state in states)
        for id in ids:
            state = self.state(id, now)
            if state == "active" and unbegun:
                state = self._elsewhere(id, now).decode()
            may = state in states if state in FINISHED else unbegun
            words.append("ok" if may and state not in ("active", "held", "gone") else state)
            if words[-1] == "ok":
                self.free(self.jobs.pop(id))
                self.expiring.pop(id, None)
        return [b"ok", *(word.encode() for word in words)]

    def pause(self, now: int) -> Reply:
        self.meta["paused"] = 1
        return [b"held" if self.recall_all(now) else b"ok"]

    def resume(self) -> Reply:
        paused, held = self.meta.pop("paused", 0), self.meta.pop("held_until", 0)
        if paused or held:
            self.push()
        return [b"ok"]

    def purge(self, now: int, begin: str, limit: int) -> Reply:
        if begin == "-":
            return [b"ok", 0, int(self.sweep(limit))]
        name, _, count = self.purged.partition(" ")
        if name == begin:
            return [b"ok", int(count), int("trash" in self.meta)]
        if "trash" in self.meta and self.sweep(limit):
            return [b"busy"]
        if self.recall_all(now):
            return [b"busy"]
        aside = self.due_jobs()
        for job in aside:
            job.place = job.place.replace("due:", "trash:")
        if aside:
            self.meta["trash"] = 1
            self.purged = f"{begin} {len(aside)}"
        return [b"ok", len(aside), int(bool(aside))]
