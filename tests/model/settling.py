"""The verb of the model with which claimed jobs end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.model.limits import FOREVER, Bucket
from tests.model.managing import Managed, Reply
from tests.model.store import STAMPS, Job

CRASHES = 3


class Settled(Managed):
    """A queue whose jobs end."""

    def settle(self, now: int, settles: Sequence[tuple[str, int, str, int | None, bytes]]) -> Reply:
        """Each settle is (id, token, outcome, due again or how long to keep, data)."""
        words = []
        earliest = None
        ended: list[Job] = []
        was_limited = "limited" in self.meta
        were_active = len(self.at("active"))
        unbegun: list[int] = []
        for id, token, outcome, at, data in settles:
            job = self.jobs.get(id)
            if job is None or job.run is None:
                words.append(b"gone")
                continue
            if job.run.remembers(token, outcome):
                words.append(b"ok")
                continue
            if job.place != "active" or (job.run.token, job.run.settled) != (token, "-"):
                words.append(b"lost")
                continue
            words.append(b"ok")
            if outcome == "hold":
                assert at is not None
                self._hold(max(at, now), now)
            is_unbegun = id not in self.asked and (
                (outcome == "release" and at is None) or (outcome == "snooze" and bool(data))
            )
            if is_unbegun:
                unbegun.append(job.run.started)
            self._end(job, "snooze" if outcome == "hold" else outcome, at, data, now)
            job.run.settled = STAMPS[outcome]
            if outcome in ("complete", "retry", "fail", "cancel"):
                self.note_minute(now, "r", max(0, now - token))
            if job.place.startswith("due:"):
                soonest = [job.score, *([] if earliest is None else [earliest])]
                if is_unbegun and (by := job.begins_by()) is not None:
                    self.expiring[id] = by
                    soonest.append(by)
                earliest = min(soonest)
            else:
                ended.append(job)
        for place, count in Counter(job.place for job in ended).items():
            self.retain(place, now, count + 64)
        self.tell(now, [job.id for job in ended])
        if was_limited:
            self._freed(now, were_active, unbegun)
        if earliest is not None:
            self.wake_for(earliest, now)
        return [b"ok", now, *words]

    def _hold(self, until: int, now: int) -> None:
        if until > now:
            self.meta["limited"] = 1
            self.meta["held_until"] = max(until, self.meta.get("held_until", 0))
            self.recall_all(now)

    def _freed(self, now: int, were_active: int, unbegun: list[int]) -> None:
        """Tokens go back if nobody has taken one since; who waits for a slot, is told of it."""
        bucket = Bucket.read(self.rate, self.spent, now)
        if bucket:
            back = unbegun.count(bucket.last)
            if back:
                bucket.taken -= back
                self.spent = bucket.stored()
        if len(self.at("active")) < were_active >= self.meta.get("concurrency", FOREVER):
            self.push()

    def _end(self, job: Job, outcome: str, at: int | None, data: bytes, now: int) -> None:
        run = job.run
        assert run
        run.settled = STAMPS[outcome]
        asked = self.asked.pop(job.id, None) is not None
        looked_again = outcome == "snooze" and run.missing and not asked
        if data and outcome != "complete" and not looked_again:
            job.note_attempt("E", now, data)
        if outcome == "complete":
            self.finish(job, "completed", now, at)
            job.result = data or None
        elif outcome == "fail":
            self.finish(job, "failed", now, at)
        elif outcome == "cancel" or asked:
            self.finish(job, "cancelled", now)
        elif outcome == "crash":
            self._crash(job, now)
        else:
            self.count("retried", int(outcome == "retry"))
            run.alone = 0
            if outcome != "retry":
                run.attempt -= 1
            if outcome == "release":
                if at is not None:  # it had begun
                    run.first, run.missing = run.first or run.due, 0
                job.again(run.due_again(now))
                return
            run.first = run.first or run.due
            if outcome == "snooze" and data:
                run.missing = run.missing or run.started
            else:
                run.strikes = run.crashes = run.missing = 0
            assert at is not None
            job.again(max(at, now))

    def _crash(self, job: Job, now: int) -> None:
        run = job.run
        assert run
        self.count("reclaimed")
        run.alone = 0
        run.attempt -= 1
        run.crashes += 1
        run.missing = 0
        if run.crashes >= CRASHES:
            self.finish(job, "failed", now)
        else:
            job.again(run.due_again(now))
