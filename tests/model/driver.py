"""Every verb, done to the real queue and to the model's; the replies must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bide.model.durations import from_us
from bide.model.job import Event, State, read_event
from bide.model.limits import Retention
from bide.model.payload.body import Body, encode_body, encode_item
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import JobNote, Settle
from tests.model.events import Replay
from tests.model.reference import Queue
from tests.model.server import KEYS, QUEUE, SECOND, Server, expected
from tests.model.store import AHEAD, DUE, Job
from tests.support.invariants import assert_legal

ERROR = b'{"type":"E","message":"no"}'
LEASE = 10 * SECOND
HAVE_DATA = ("complete", "fail", "retry", "crash", "snooze")
LONG_TEXT = b'"' + b"x" * 14_000 + b'"'
"""Two of these fit into the notes of a kind, three do not."""


class Driver:
    """A queue, its model, and what the test remembers of both.

    A time is written `+N`, or `@N` for the moment N seconds after the beginning. A claimed job is
    named by its number, counted from the latest claim.
    """

    def __init__(self, server: Server) -> None:
        server.begin()
        server.listener.heard()  # of an example that ended in the middle
        self.server = server
        self.model = Queue()
        self._began: int = server.reply(job_commands.counts(KEYS))[1]
        self._bodies = 0
        self._seq: dict[str, int] = {}
        self._latest: dict[str, str] = {}
        self._held: list[tuple[str, int]] = [("job-a", 1)]
        self._ended: dict[tuple[str, int], str] = {}
        self._tokens: dict[str, tuple[Job, int]] = {}
        self._enqueued: list[Prepared] = []
        self._settled: list[Settle] = []
        self._retried: Command[Any] | None = None
        # For longer than any example takes.
        self._heard = 0
        self.told = Replay(server.run(job_commands.listen(KEYS, "model", "-", 10**12)).after)

    def when(self, text: str) -> str:
        return text if text[0] == "+" else f"={self._began + int(text[1:]) * SECOND}"

    def at(self, when: str, now: int) -> int:
        return now + int(when[1:]) if when[0] == "+" else int(when[1:])

    def held(self, pick: int) -> tuple[str, int]:
        """Id and token of one of the latest claims."""
        return self._held[-1 - pick % len(self._held)]

    # -- producing

    def enqueue(
        self, jobs: list[tuple[str, str, int]], expires: str = "", unique: str = ""
    ) -> None:
        self._enqueued = []
        constraints = "x=" + self.when(expires).replace("=", "@") if expires else unique
        for id, when, priority in jobs:
            self._bodies += 1
            is_data = self._bodies % 3 == 0
            body = encode_body(Body("app.tasks:send", [self._bodies]))
            if is_data:
                body = encode_item(self._bodies)
            self._enqueued.append(
                Prepared(id, self.when(when), priority, body, constraints=constraints)
            )
        self.enqueue_again()

    def enqueue_again(self) -> None:
        reply = self.server.reply(enqueue_commands.enqueue(KEYS, self._enqueued))
        if reply == [b"keys"]:
            assert "trash" in self.model.meta
            command = enqueue_commands.enqueue(KEYS, self._enqueued, with_all_keys=True)
            reply = self.server.reply(command)
        now = reply[1]
        jobs = [(j.id, self.at(j.when, now), j.priority, j.body) for j in self._enqueued]
        constraints = self._enqueued[0].constraints if self._enqueued else ""
        if constraints.startswith("x="):
            assert reply[4::3] == [job[0].encode() for job in jobs]
            assert [word == b"created" for word in reply[2::3]] == [due > 0 for due in reply[3::3]]
            reply[2:] = reply[3::3]
        if constraints.startswith("k="):
            assert reply == self.model.enqueue_unique(now, jobs, constraints)
        else:
            assert reply == self.model.enqueue(now, jobs, constraints)

    # -- consuming

    def claim(
        self,
        worker: str,
        count: int,
        lease: int = LEASE,
        busy: int = 0,
        arm: int = 2,
        ahead: tuple[int, int] = (0, 0),
    ) -> None:
        """Ahead: for how long, and with how many slots."""
        self._seq[worker] = self._seq.get(worker, 0) + 1
        self._latest[worker] = "claim"
        self._claim(worker, self._seq[worker], count, lease, busy, arm, ahead)

    def claim_again(self, worker: str, lease: int = LEASE) -> None:
        if self._latest.get(worker) == "pop":
            self._pop(worker, self._seq[worker], 2, 0)
            return
        self._claim(worker, self._seq.setdefault(worker, 1), 2, lease, 0)

    def claim_late(self, worker: str) -> None:
        self._claim(worker, max(0, self._seq.get(worker, 0) - 1), 2, LEASE, 0)

    def pop(self, consumer: str, count: int, previous: int) -> None:
        self._seq[consumer] = self._seq.get(consumer, 0) + 1
        self._latest[consumer] = "pop"
        self._pop(consumer, self._seq[consumer], count, previous)

    def _pop(self, consumer: str, seq: int, count: int, previous: int) -> None:
        reply = self.server.reply(
            worker_commands.pop(KEYS, consumer, seq, count, previous * SECOND)
        )
        assert reply == self.model.pop(self.server.now(), consumer, seq, count, previous * SECOND)

    def _claim(
        self,
        worker: str,
        seq: int,
        count: int,
        lease: int,
        busy: int,
        arm: int = 2,
        ahead: tuple[int, int] = (0, 0),
    ) -> None:
        command = worker_commands.claim(KEYS, worker, seq, count, lease, busy, arm, "", *ahead)
        reply = self.server.reply(command)
        now = self.server.now()
        assert reply == self.model.claim(now, worker, seq, count, lease, busy, arm, *ahead)
        if reply == [b"stale"]:
            return
        jobs = command.parse(reply).jobs
        for job in jobs:
            assert job.attempt >= 1
            claimed = (job.id, job.token)
            window = min(ahead[0], AHEAD)
            assert claimed in self._held or job.due_us <= now + window, "claimed before the window"
            assert job.token >= job.due_us or job.due_us > now + AHEAD, "counts as started early"
            self._held.append(claimed)
        if not jobs and reply[2]:
            assert reply[2] > now, "told to come back at a moment that has come"

    def settle(self, picks: list[tuple[int, Any, str, bool]]) -> None:
        """Of what ends the job, `when` says for how long it is kept; `+0` and a moment: nothing."""
        self._settled = []
        for pick, outcome, when, has_data in picks:
            id, token = self.held(pick)
            result = b"42" if outcome == "complete" else ERROR
            begun = outcome == "release" and has_data
            data = result if has_data and outcome in HAVE_DATA else b""
            none = outcome in ("complete", "fail") and (when == "+0" or when[0] == "@")
            none = none or (outcome == "release" and not begun)
            if none or outcome == "crash":
                self._settled.append(Settle(id, token, outcome, data=data))
            elif outcome in ("complete", "fail"):
                self._settled.append(Settle(id, token, outcome, data=data, keep=self.when(when)))
            else:
                self._settled.append(Settle(id, token, outcome, self.when(when), data))
        self.settle_again()

    def settle_forged(self, pick: int, difference: int, outcome: Any) -> None:
        """With a token that was never given."""
        id, token = self.held(pick)
        self._settled = [Settle(id, token + difference, outcome, "+0")]
        self.settle_again()

    def settle_again(self) -> None:
        if not self._settled:
            return
        reply = self.server.reply(worker_commands.settle(KEYS, self._settled))
        now = reply[1]
        assert reply == self.model.settle(
            now, [(s.id, s.token, s.outcome, self._at(s, now), s.data) for s in self._settled]
        )
        for s, verdict in zip(self._settled, reply[2:], strict=True):
            if verdict == b"ok":
                first = self._ended.setdefault((s.id, s.token), s.outcome)
                assert first == s.outcome, "a second outcome of one attempt was applied"

    def _at(self, settle: Settle, now: int) -> int | None:
        """When the job is due again, or for how long it is kept."""
        if settle.keep:
            return self.at(settle.keep, 0)
        return self.at(settle.due, now) if settle.due else None

    def note(self, picks: list[tuple[int, str, bool]], difference: int = 0) -> None:
        said = []
        for pick, kind, is_long in picks:
            id, token = self.held(pick)
            line = LONG_TEXT if is_long else b'"a line"'
            text = line if kind == "L" else b'[0.5,"half"]'
            said.append((id, token + difference, kind, text))
        reply = self.server.reply(worker_commands.add_notes(KEYS, [JobNote(*one) for one in said]))
        assert reply == self.model.note(reply[1], said)

    def extend(self, picks: list[int], lease: int) -> None:
        held = [self.held(pick) for pick in picks]
        reply = self.server.reply(worker_commands.extend(KEYS, lease, held))
        assert reply == self.model.extend(reply[1], lease, held)

    def leave(self, worker: str) -> None:
        assert self.server.reply(worker_commands.worker_leave(KEYS, worker)) == self.model.leave(
            worker
        )
        self._seq.pop(worker, None)
        self._latest.pop(worker, None)

    def hear(self) -> None:
        """A woken worker takes the message."""
        message: Any = self.server.raw.lpop(KEYS["wake"])
        assert (message or b"").decode() == self.model.wakeup
        self.model.wakeup = ""

    # -- managing

    def cancel(self, ids: list[str], running: bool = True) -> None:
        reply = self.server.reply(job_commands.cancel(KEYS, ids, running))
        assert reply == self.model.cancel(reply[1], ids, running)

    def reschedule(self, ids: list[str], when: str) -> None:
        when = self.when(when)
        reply = self.server.reply(job_commands.reschedule(KEYS, ids, when))
        assert reply == self.model.reschedule(reply[1], ids, self.at(when, reply[1]))

    def promote(self, ids: list[str]) -> None:
        reply = self.server.reply(job_commands.promote(KEYS, ids))
        assert reply == self.model.promote(reply[1], ids)

    def retry(self, ids: list[str], when: str, states: Sequence[State] = tuple(State)) -> None:
        self._retried = job_commands.retry(KEYS, ids, self.when(when), states)
        self.retry_again()

    def retry_again(self) -> None:
        if self._retried is None:
            return
        name, when, states, *ids = map(str, self._retried.args)
        reply = self.server.reply(self._retried)
        at = self.at(when, reply[1])
        assert reply == self.model.retry(reply[1], ids, at, name, states.split())

    def watch(self, id: str, seconds: int) -> None:
        reply = self.server.reply(job_commands.await_end(KEYS, id, seconds * SECOND))
        assert reply == self.model.watch(reply[1], id, seconds * SECOND)

    def configure(self, keep: Retention) -> None:
        command = job_commands.configure(KEYS, keep)
        expected = self.model.configure(keep.stored(), keep.result_bytes())
        assert self.server.reply(command) == expected

    def limit(self, rate: str, concurrency: str) -> None:
        reply = self.server.reply(job_commands.limit(KEYS, rate, concurrency))
        assert reply == self.model.limit(reply[1], rate, concurrency)

    def delete(self, ids: list[str], states: Sequence[State] = tuple(State)) -> None:
        reply = self.server.reply(job_commands.delete(KEYS, ids, states))
        assert reply == self.model.delete(self.server.now(), ids, states)

    def pause(self) -> None:
        reply = self.server.reply(job_commands.pause(KEYS))
        assert reply == self.model.pause(self.server.now())

    def resume(self) -> None:
        assert self.server.reply(job_commands.resume(KEYS)) == self.model.resume()

    def purge(self, begin: str | None, limit: int) -> None:
        command = job_commands.purge(KEYS, begin)
        command = command._replace(args=(command.args[0], limit))
        reply = self.server.reply(command)
        assert reply == self.model.purge(self.server.now(), begin or "-", limit)

    # -- reading

    def fetch(self, ids: list[str]) -> None:
        reply = self.server.reply(job_commands.fetch(KEYS, ids))
        for id, (state, *rest) in zip(ids, reply[2:], strict=True):
            job = self.model.jobs.get(id)
            assert state.decode() == self.model.state(id, reply[1])
            if job and state != b"gone":
                level = job.place.removeprefix("due:")
                priority = int(level) if level.isdigit() else None
                line = job.run.line().encode() if job.run else None
                notes = b"\n".join(job.notes) or None
                asked = self.model.asked.get(id)
                told = [job.score, priority, job.body, line, job.result, notes]
                constraints = job.constraints.encode() or None
                assert [*rest[:6], rest[6] and int(rest[6]), rest[7]] == [*told, asked, constraints]

    def counts(self) -> None:
        counts = job_commands.counts(KEYS).parse(self.server.reply(job_commands.counts(KEYS)))
        states = [self.model.state(id, counts.now_us) for id in self.model.jobs]
        assert [getattr(counts, s) for s in State] == [states.count(s) for s in State]
        next_due = min((job.score for job in self.model.due_jobs()), default=0)
        idle = [*self.model.keep.values(), *self.model.park.values()]
        assert counts.next_due_us == next_due
        assert counts.idle_workers == sum(until >= counts.now_us for until in idle)
        assert counts.paused == ("paused" in self.model.meta)

    def upcoming(self, within: int, count: int) -> None:
        command = job_commands.upcoming(KEYS, within * SECOND, count)
        reply = self.server.reply(command)
        now = reply[1]
        last = now + within * SECOND if within else None
        ahead = [(job.score, job.id) for job in self.model.due_jobs() if job.score > now]
        expected = sorted(job for job in ahead if last is None or job[0] <= last)[:count]
        assert command.parse(reply) == [(id, at) for at, id in expected]

    def listing(self, state: State, start: int, count: int) -> None:
        _ok, now, *ids = self.server.reply(job_commands.listing(KEYS, state, start, count))
        places = [f"due:{level}" for level in DUE] if state in ("delayed", "waiting") else [state]
        jobs: Sequence[Job] = [job for place in places for job in self.model.at(place)]
        listed = [job.id.encode() for job in jobs if self.model.state(job.id, now) == state]
        if len(places) == 1:
            listed.reverse()
        assert ids == listed[start : start + count]

    # -- after every step

    def compare(self) -> None:
        """Everything that is stored is as the model says."""
        stored = self.server.stored()
        for field in ("test_held_us", "listened", "told"):
            stored["meta"].pop(field, None)
        events = [read_event(id.decode(), line[b"e"]) for id, line in stored.pop("events")]
        of_groups = ("order", "held", "groups", "turns", "resting")
        unused = ("schedules", "schedule", "scheduled", *of_groups)
        for key in ("listeners", *unused):
            assert not stored.pop(key) or key == "listeners"
        now = self.server.reply(job_commands.counts(KEYS))[1]
        self.model.agree_on_keys(now, stored.pop("unique"), stored.pop("folded"))
        wanted = expected(self.model)
        names = stored.keys() | wanted.keys()
        differ = {
            n: (stored.get(n), wanted.get(n)) for n in names if stored.get(n) != wanted.get(n)
        }
        assert not differ, f"stored, and as the model says: {differ}"
        said, self.model.said = self.model.said, []
        assert self.server.listener.heard() == said
        self._compare_with_told(events)

    def _compare_with_told(self, events: list[Event]) -> None:
        """Who only listens knows the state of every job, and the totals."""
        new = [event for event in events if int(event.id.partition("-")[2]) > self._heard]
        self._heard += len(new)
        self.told.take(new)
        there = {id: job for id, job in self.model.jobs.items() if "trash" not in job.place}
        self.told.forget(there)
        assert self.told.places == {id: j.place.partition(":")[0] for id, j in there.items()}
        due = {job.id: from_us(job.score) for job in self.model.due_jobs()}
        assert {id: self.told.due[id] for id in due} == due
        assert self.told.expired == self.model.meta.get("expired", 0)
        for total in ("completed", "failed", "cancelled", "retried", "reclaimed"):
            assert self.told.totals[total] == self.model.meta.get(total, 0)

    def check(self) -> None:
        """What holds whatever the model says."""
        holding = assert_legal(self.server.raw, QUEUE)
        for id, record in holding.records.items():
            job = self.model.jobs[id]
            before, token = self._tokens.get(id, (job, 0))
            assert before is not job or token <= record.token, "a token shrank"
            self._tokens[id] = (job, record.token)
