"""The protocol as a plain Python program: what a queue holds after each verb, given the time.

Written from the protocol and read beside the scripts: a verb here changes what the script of its
name changes on the server, and returns the reply that the script gives. Nothing is stored twice,
nothing is bounded for speed, and the time is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tests.model.limits import FOREVER, Limits
from tests.model.managing import Reply
from tests.model.settling import CRASHES, Settled
from tests.model.store import AHEAD, FINISHED, LEVELS, Job, Run, by_score

GRACE, HORIZON, ALONE, LONGEST = 50_000, 2_000_000, 5_000_000, 10_000_000
RECLAIMS, MANY_STRIKES = 10, 10
PATIENCE, LONG_PATIENCE, DRAIN_EVERY = 10_000_000, 60_000_000, 30_000_000
SWEEP = TRIM = 100
EXPIRIES = 20
MARK, REFUSALS = 3, 12
REFUSAL = (
    b'{"type":"bide.PayloadError","message":"This is a job, not data, and a DelayQueue '
    b'cannot run it; let a Worker serve this queue, and retry the job."}'
)


class Queue(Settled):
    """One queue; here what workers take."""

    def leave(self, worker: str) -> Reply:
        self.park.pop(worker, None)
        self.claims.pop(worker, None)
        if self.keep.pop(worker, None) is not None:
            self.push()
        return [b"ok"]

    def extend(self, now: int, lease: int, held: Iterable[tuple[str, int]]) -> Reply:
        words, any_ok = [], False
        for id, token in held:
            job = self.jobs.get(id)
            if job is None or job.run is None:
                words.append(b"gone")
            elif job.place == "active" and (job.run.token, job.run.settled) == (token, "-"):
                words.append(b"asked" if id in self.asked else b"ok")
                job.score = now + lease
                any_ok = True
            else:
                words.append(b"lost")
        if any_ok:
            self.observe(now, lease)
        return [b"ok", now, *words]

    def note(self, now: int, notes: Sequence[tuple[str, int, str, bytes]]) -> Reply:
        """Each note is (id, token, kind, text)."""
        words = []
        for id, token, kind, text in notes:
            job = self.jobs.get(id)
            mine = job is not None and job.run is not None and job.run.token == token
            if job and mine:
                job.note(f"{kind} {now} ".encode() + text)
            words.append(b"ok" if mine else b"lost")
        return [b"ok", now, *words]

    def claim(
        self,
        now: int,
        worker: str,
        seq: int,
        count: int,
        lease: int,
        busy: int,
        arm: int,
        ahead: int = 0,
        slots: int = 0,
    ) -> Reply:
        self.keep.pop(worker, None)
        self.park.pop(worker, None)
        rewound = self.meta.get("rewound_until", 0) > now
        drains_until = self.meta.get("drain_until", 0)
        trash, constraints = "trash" in self.meta, "terms" in self.meta
        marked = self.observe(now, lease)
        calm_until = self.meta.get("calm_until", 0)
        if now < self.meta.get("exact_until", 0) <= now + 2 * AHEAD:
            ahead = 0
        longest = self.meta["lease_us"] = max(lease, self.meta.get("lease_us", 0))

        if worker in self.claims:
            then, last, ids = self.claims[worker]
            if last > seq:
                return [b"stale"]
            if last == seq:
                return self._repeat(now, worker, then, ids, lease)

        self.is_rewinding = False
        more = self._reclaim(now, now if now >= calm_until else self.meta["calm_from"]) == RECLAIMS
        expired: list[Job] = []
        if constraints:
            more = self._expire(now, expired) == EXPIRIES or more
        if rewound:
            more = self._clamp(now + longest) or more
        if trash:
            self.sweep(SWEEP)
        if marked:
            for place in FINISHED:
                self.retain(place, now, TRIM)

        paused = "paused" in self.meta
        limits = self.limits(now)
        room = limits.room if limits else FOREVER
        overdue = held_back = False
        deadlines: list[int] = []
        heads: dict[str, int] = {}
        taken: list[Job] = []
        alone = drain = False
        suspect = next(iter(self.at("due:alone")), None)
        if suspect and not paused:
            if suspect.score > now:
                deadlines += [suspect.score] if busy == 0 else []
            elif room == 0:
                overdue = True
            elif busy == 0 and count > 0:
                taken, alone, count = [suspect], True, 1
            elif suspect.score < now - LONG_PATIENCE and count > 0:
                taken = [suspect]
            elif suspect.score < now - PATIENCE and now > drains_until:
                self.meta["drain_until"] = now + DRAIN_EVERY
                drain, count = True, 0
        if not paused:
            most = max(0, min(count, room))
            half, odd = divmod(max(0, most - len(taken)), 2)
            share = half + odd * (seq % 2)
            ripe = [job for job in self.at("due:unserved") if job.score <= now]
            taken += [job for job in ripe[:share] if not self._expires(job, now, expired)]
            for level in (*LEVELS, "unserved"):
                jobs = [job for job in self.at(f"due:{level}") if job not in taken]
                ripe = [job for job in jobs if job.score <= now]
                picked = ripe[: max(0, most - len(taken))]
                taken += [job for job in picked if not self._expires(job, now, expired)]
                overdue = overdue or len(picked) < len(ripe)
                if overdue:
                    break  # and is seen to before any deadline
                if len(ripe) < len(jobs):
                    heads[level] = jobs[len(ripe)].score
            if ahead and not (overdue or limits or alone):
                spare = min(count, slots) - len(taken)
                taken += self._take_ahead(now, min(ahead, AHEAD), spare, heads, expired)
            deadlines += heads.values()
            if limits:
                was = overdue
                overdue, deadlines = self._through(limits, len(taken), overdue, deadlines)
                held_back = was and not overdue
        if constraints:
            self.tell(now, [job.id for job in expired])
            if expired:
                self.retain("cancelled", now, len(expired) + 64)
            deadlines += [at for at in sorted(self.expiring.values())[:1] if at > now]
        told: Reply = []
        for job in taken:
            is_first = job.run is None
            self._take(job, now, worker, lease, alone)
            told += self._told(job, is_first)
        self.claims[worker] = (now, seq, [job.id for job in taken])

        leases = self.at("active")
        if leases and leases[0].score > now:
            deadlines.append(leases[0].score)
        elif leases and now < calm_until:
            deadlines.append(calm_until)
        elif leases:
            more = True
        deadline = min(deadlines, default=None)
        free = count > len(taken)
        stays = arm == 2 or (arm == 1 and not taken)
        until = self._wait(now, worker, free, stays, deadline, overdue or more)
        left = 1 if more else 2 if held_back else 0
        by_level = [at for level, at in heads.items() if level != "unserved"]
        soon = not limits and deadline is not None and deadline == min(by_level, default=None)
        what = [left, int(alone), int(drain), b"", 0, self.lost, int(soon)]
        return [b"ok", now, until, deadline or 0, *what, *told]

    def _take_ahead(
        self, now: int, ahead: int, spare: int, heads: dict[str, int], expired: list[Job]
    ) -> list[Job]:
        """Jobs that are due a moment later, earliest first; what is due next, changes."""
        soon = [
            (job.score, place, job.id, job)
            for place, level in enumerate(LEVELS)
            for job in self.at(f"due:{level}")
            if now < job.score <= now + ahead
        ]
        picked = sorted(soon)[: max(0, spare)]
        taken = [
            job
            for *_, job in sorted(picked, key=lambda one: (one[1], one[0], one[2]))
            if not self._expires(job, now, expired, job.score)
        ]
        for level in {LEVELS[place] for _, place, *_ in picked}:
            del heads[level]
            # What is due already is taken, too: otherwise none is taken ahead.
            later = [job for job in self.at(f"due:{level}") if job.score > now]
            left = [job for job in later if job not in taken]
            if left:
                heads[level] = left[0].score
        if picked:
            latest, before = picked[-1][0], self.meta.get("ahead_until", 0)
            self.meta["ahead_until"] = max(latest, min(before, now + AHEAD))
        return taken

    def _through(
        self, limits: Limits, taken: int, overdue: bool, deadlines: list[int]
    ) -> tuple[bool, list[int]]:
        """What is overdue, and what is due next, as the limits let it begin."""
        shut = taken >= limits.room
        if limits.bucket and (taken or limits.bucket.rewound):
            limits.bucket.taken += taken
            limits.bucket.last = limits.now if taken else limits.bucket.last
            self.spent = limits.bucket.stored()
        if not shut:
            return overdue, deadlines
        if taken >= limits.slots:
            return False, []
        opens = limits.opens()
        if overdue:
            return False, [opens]
        return False, [max(opens, at) for at in deadlines]

    def _expires(self, job: Job, now: int, expired: list[Job], starts: int = 0) -> bool:
        """Whether it has not begun in time; then it has ended."""
        by = job.begins_by()
        if by is None or by > max(now, starts) or not job.is_unbegun():
            return False
        priority = job.place.removeprefix("due:")
        if job.run is None and priority != "5":
            job.run = Run(token=0, priority=int(priority), worker="-", due=now)
        self.finish(job, "cancelled", now)
        self.count("expired")
        job.constraints += f" e={now}"
        expired.append(job)
        return True

    def _expire(self, now: int, expired: list[Job]) -> int:
        """End some of those that have not begun in time; how many were looked at."""
        over = [id for id, at in by_score(self.expiring) if at <= now][:EXPIRIES]
        for id in over:
            del self.expiring[id]
            job = self.waits(id)
            by = job.begins_by() if job else None
            if job and by is not None and by > now:
                self.expiring[id] = by
            elif job:
                self._expires(job, now, expired)
        return len(over)

    def pop(self, now: int, consumer: str, seq: int, count: int, previous: int) -> Reply:
        self.keep.pop(consumer, None)
        self.park.pop(consumer, None)
        rewound = self.meta.get("rewound_until", 0) > now
        trash = "trash" in self.meta
        longest = self.meta.get("lease_us", 0)
        marked = self.observe(now, longest)
        calm_until = self.meta.get("calm_until", 0)
        if consumer in self.claims:
            then, last, ids = self.claims[consumer]
            if last > seq:
                return [b"stale"]
            if last == seq:
                popped = [self.jobs[id] for id in ids if id in self.jobs]
                lost = len(ids) - sum(1 for job in popped if job.run)
                found = [job for job in popped if job.was_popped(consumer, then)]
                return [b"ok", now, 1, 0, lost, *_told(found)]
        reclaimed = self._reclaim(now, now if now >= calm_until else self.meta["calm_from"])
        if rewound:
            self._clamp(now + longest)
        if trash:
            self.sweep(SWEEP)
        paused = "paused" in self.meta
        ripe = [] if paused else [j for j in self.due_jobs() if j.score <= now - previous]
        looked, items, full = self._look(ripe, count)
        only_jobs = bool(looked) and items == 0
        taken, refused = [], []
        for job in [] if only_jobs else looked:
            self._take(job, now, consumer, 0, False)
            assert job.run
            if job.body[0] == MARK:
                job.run.settled = "C"
                self.finish(job, "completed", now)
                taken.append(job)
            else:
                job.run.settled = "F"
                job.note_attempt("E", now, REFUSAL)
                self.finish(job, "failed", now)
                refused.append(job)
        if not only_jobs:
            self.claims[consumer] = (now, seq, [job.id for job in taken])
        self.tell(now, [job.id for job in refused])
        self.tell(now, [job.id for job in taken])
        self.retain("completed", now, len(taken) + 64)
        if marked:
            self.retain("failed", now, TRIM)
            self.retain("cancelled", now, TRIM)
        if reclaimed:
            self.push()
        may_be_more = reclaimed == RECLAIMS or full or items == count
        more = len(taken) < count and may_be_more
        word = b"not_data" if only_jobs else b"ok"
        return [word, now, int(more), len(refused), 0, *_told(taken)]

    def _look(self, ripe: list[Job], count: int) -> tuple[list[Job], int, bool]:
        looked: list[Job] = []
        items = 0
        for job in ripe:
            if items == count:
                break
            if len(looked) - items == REFUSALS:
                return looked, items, True
            looked.append(job)
            items += job.body[0] == MARK
        return looked, items, False

    def _clamp(self, longest: int) -> bool:
        far = [job for job in self.at("active") if job.score > longest][-RECLAIMS:]
        for job in far:
            job.score = longest
        return len(far) == RECLAIMS

    def _repeat(self, now: int, worker: str, then: int, ids: list[str], lease: int) -> Reply:
        held = []
        for id in ids:
            job = self.jobs.get(id)
            run = job.run if job and job.place == "active" else None
            if job and run and run.worker == worker and run.started >= then:
                job.score = now + lease
                held.append(job)
        alone = int(any(job.run and job.run.alone for job in held))
        told = [field for job in held for field in self._told(job)]
        return [b"ok", now, 0, 0, 1, alone, 0, b"", 0, [], 0, *told]

    def _told(self, job: Job, is_first: bool = False) -> Reply:
        run = job.run
        assert run
        told = run.attempt if is_first else run.tries()
        return [job.id.encode(), job.body, run.token, told, run.due]

    def _reclaim(self, now: int, ended_by: int) -> int:
        expired = [job for job in self.at("active") if job.score <= ended_by][:RECLAIMS]
        self.lost: Reply = []
        for job in expired:
            run = job.run
            assert run
            if run.alone:
                run.crashes += 1
            else:
                run.strikes += 1
            run.alone = 0
            error = b""
            lost = [job.id.encode(), b"%016d" % run.token, run.tries(), run.due]
            lost.append(run.worker.encode())
            self.count("reclaimed")
            if self.asked.pop(job.id, None) is not None:
                self.finish(job, "cancelled", now)
            elif run.crashes < CRASHES and run.strikes < MANY_STRIKES:
                self.lost += [*lost, 0]
                run.due = min(run.due, now)
                job.place, job.score = f"due:{job.level()}", run.due
            else:
                self.lost += [*lost, 1]
                self.finish(job, "failed", now)
                message = (
                    f"Its worker died or stopped {run.crashes + run.strikes} times under this job, "
                    f"{run.crashes} of them while it ran alone; the last was {run.worker}."
                )
                info = {"type": "WorkerCrashed", "message": message}
                error = json.dumps(info, separators=(",", ":")).encode()
            job.note_attempt("E" if error else "C", now, error)
            run.attempt -= 1
        self.tell(now, [job.id for job in expired if job.place in FINISHED])
        return len(expired)

    def _take(self, job: Job, now: int, worker: str, lease: int, alone: bool) -> None:
        starts = now if job.place == "due:unserved" else max(now, job.score)
        if job.run is None:
            job.run = Run(token=starts, priority=int(job.place.removeprefix("due:")))
        else:
            job.run.before = (job.run.token, job.run.settled)
            job.run.token = max(starts, job.run.token + 1)
            job.run.settled = "-"
        job.run.attempt += 1
        job.run.started, job.run.worker, job.run.alone = starts, worker, int(alone)
        job.run.due = job.score
        job.place, job.score = "active", now + lease

    def _wait(
        self, now: int, worker: str, free: bool, stays: bool, deadline: int | None, left: bool
    ) -> int:
        """Who keeps the time, who sleeps; until when this worker waits, 0 for not at all."""
        self.keep = {w: until for w, until in self.keep.items() if until >= now - GRACE}
        self.park = {w: until for w, until in self.park.items() if until > now}
        latest = now + (HORIZON if self.keep or self.park else ALONE)
        due_by = min(deadline or latest, latest)

        def near() -> int:
            return sum(until <= due_by + GRACE for until in self.keep.values())

        until = 0
        if free:
            self.wakeup = self.wakeup if left else ""
        if free and stays:
            if all(until > due_by for until in self.keep.values()):
                until = self.keep[worker] = due_by
            elif near() < 2:
                until = self.keep[worker] = due_by + GRACE
            else:
                last = max([now, *self.park.values()])
                until = self.park[worker] = min(now + LONGEST, last + HORIZON)
        if left:
            self.push()
        elif near() < 2 and (self.park or len(self.keep) > near()):
            self.push(worker)
        return until


def _told(jobs: list[Job]) -> Reply:
    """What a pop says of each: its id and its body."""
    return [word for job in jobs for word in (job.id.encode(), job.body)]
