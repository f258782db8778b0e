"""A workload that takes jobs through every state with every verb; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import redis

from bide.client import blocking
from bide.model.ids import new_id
from bide.model.job import Claimed
from bide.model.limits import Retention
from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import Timing
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.schedules import Draft
from bide.protocol.commands.worker import JobNote, Outcome, Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK

LEASE_US = 5_000_000
SHORT = Retention(60, 60, 60, count=20)
"""So that the workload meets trimming by count and by age."""

WORKERS = ("w1", "w2", "w3")
OUTCOMES: tuple[Outcome, ...] = (
    *("complete", "complete", "retry", "fail", "snooze", "release", "cancel"),
)
CHANGES = ("cancel", "delete", "promote", "reschedule", "revive", "watch")
RARITIES = ("pause", "purge", "sweep", "leave", "heartbeat", "counts", "configure", "upcoming")
SCHEDULES = {"beat": Timing(every_us=3_000_000), "few": Timing(every_us=1_000_000, limit=9)}
"""Which claims fire along the way."""

ERROR = b'{"type":"ValueError","message":"no"}'


class Workload:
    """Does one thing after another; between two of them the queue is in a legal state."""

    def __init__(self, url: str, queue: str, seed: int) -> None:
        self.client = blocking.Client(url, clock=TEST_CLOCK)
        self._direct = redis.Redis.from_url(url)
        self.keys = keys_of(queue)
        self._dice = random.Random(seed)
        self._ids: list[str] = []
        self._held: dict[str, list[Claimed]] = {worker: [] for worker in WORKERS}
        self._seqs = dict.fromkeys(WORKERS, 0)
        self._clock_us = 0
        self._paused = False
        self._run(job_commands.configure(self.keys, SHORT))
        for name, timing in SCHEDULES.items():
            body = of_schedule(encode_body(Body("app:task", (name,))), name)
            draft = Draft(name, timing, "all", 0, 5, "app:task", body)
            self._run(schedule_commands.set_schedule(self.keys, draft))

    def close(self) -> None:
        self.client.close()
        self._direct.close()

    def steps(self, count: int) -> Iterator[str]:
        """Do some `count` things, every verb at least once; yields the verb after each."""
        verbs = {
            self._enqueue: 6,
            self._claim: 8,
            self._settle: 6,
            self._extend: 2,
            self._note: 3,
            self._change: 4,
            self._pass_time: 5,
            self._rare: 3,
        }
        yield self._enqueue()
        for i in range(count):
            (do,) = self._dice.choices(list(verbs), list(verbs.values()))
            yield do()
            if i == count // 2:
                yield from map(self._change, CHANGES)
                yield from map(self._rare, RARITIES)
        yield from self._fire_all()

    def _fire_all(self) -> Iterator[str]:
        """Fire the schedules on, whatever the dice came to, until what ends is over."""
        if self._paused:
            yield self._rare()
        yield self._pass_time(6 + max(0, -self._clock_us) / 1e6)  # it may have been set far back
        for _ in range(20):
            yield self._claim()
            yield self._pass_time(6)

    def _run(self, command: Command[Any]) -> Any:
        return self.client.run(command)

    def _enqueue(self) -> str:
        jobs = [
            enqueue_commands.prepare(
                Body("app:task", (i,)),
                delay=self._dice.choice([0, 0, 2, 30]),
                priority=self._dice.choice([1, 5, 9]),
            )
            for i in range(self._dice.choice([1, 3, 12]))
        ]
        self._run(enqueue_commands.enqueue(self.keys, jobs))
        self._ids += [job.id for job in jobs]
        return "enqueue"

    def _claim(self) -> str:
        worker = self._dice.choice(WORKERS)
        if self._dice.random() < 0.9:  # else the same once more, as after a lost reply
            self._seqs[worker] += 1
        seq, count = max(1, self._seqs[worker]), self._dice.choice([1, 4, 10])
        claim = self._run(worker_commands.claim(self.keys, worker, seq, count, LEASE_US, 0))
        held = {job.token: job for job in (*self._held[worker], *claim.jobs)}
        self._held[worker] = list(held.values())
        return "claim"

    def _settle(self) -> str:
        """Some of what a worker believes to hold; what it lost meanwhile is refused."""
        worker = self._dice.choice(WORKERS)
        held = self._held[worker]
        batch = [held.pop() for _ in range(min(len(held), self._dice.choice([1, 5])))]
        settles = []
        for job in batch:
            outcome = self._dice.choice(OUTCOMES)
            when = "+2000000" if outcome in ("retry", "snooze") else ""
            if outcome in ("complete", "fail"):  # some are kept for a time of their own
                when = self._dice.choice(["", "", "+20000000", "+90000000"])
            data = ERROR if outcome in ("retry", "fail") else b"7" if outcome == "complete" else b""
            settles.append(Settle(job.id, job.token, outcome, when, data))
        if settles:
            self._run(worker_commands.settle(self.keys, settles))
        return "settle"

    def _extend(self) -> str:
        held = self._held[self._dice.choice(WORKERS)]
        if held:
            tokens = [(job.id, job.token) for job in held]
            self._run(worker_commands.extend(self.keys, LEASE_US, tokens))
        return "extend"

    def _note(self) -> str:
        """What jobs say of themselves, now and then so much that older lines must go."""
        held = self._held[self._dice.choice(WORKERS)]
        line = b'"' + b"x" * self._dice.choice([10, 5_000]) + b'"'
        said = [JobNote(job.id, job.token, "L", line) for job in held]
        said += [JobNote(job.id, job.token, "P", b'[0.5,"half"]') for job in held[:2]]
        if said:
            self._run(worker_commands.add_notes(self.keys, said))
        return "note"

    def _change(self, verb: str | None = None) -> str:
        ids = self._dice.choices(self._ids, k=4)
        commands: dict[str, Command[Any]] = {
            "cancel": job_commands.cancel(self.keys, ids),
            "delete": job_commands.delete(self.keys, ids),
            "promote": job_commands.promote(self.keys, ids[:2]),
            "reschedule": job_commands.reschedule(self.keys, ids[:2], "+3000000"),
            "revive": job_commands.retry(self.keys, ids, "+1000000"),
            "watch": job_commands.await_end(self.keys, ids[0], 20_000_000),
        }
        verb = verb or self._dice.choice(CHANGES)
        self._run(commands[verb])
        return verb

    def _pass_time(self, seconds: float | None = None) -> str:
        """So that delays end, leases expire, records age, and now and then the clock is set."""
        seconds = seconds or self._dice.choice([0.5, 2, 2, 6, 20, 40, -60])
        self._clock_us += round(seconds * 1e6)
        self._direct.hset(self.keys["meta"], "test_offset_us", self._clock_us)
        return "time"

    def _rare(self, verb: str | None = None) -> str:
        if self._paused and verb is None:  # not for long, or little else would happen
            self._paused = False
            self._run(job_commands.resume(self.keys))
            return "resume"
        verb = verb or self._dice.choice(RARITIES)
        worker = self._dice.choice(WORKERS)
        if verb == "pause":
            self._paused = True
            self._run(job_commands.pause(self.keys))
        elif verb in ("purge", "sweep"):
            self._run(job_commands.purge(self.keys, new_id() if verb == "purge" else None))
        elif verb == "leave":
            self._run(worker_commands.worker_leave(self.keys, worker))
            self._seqs[worker] = 0
        elif verb == "heartbeat":
            about = queue_commands.WorkerReport("host", 1, ["mail"], "auto", 1, 1, "0")
            self._run(queue_commands.heartbeat(keys_of(None), worker, about))
        elif verb == "configure":
            self._run(job_commands.configure(self.keys, SHORT))
        elif verb == "upcoming":
            self._run(job_commands.upcoming(self.keys, 0, 100))
        else:
            self._run(job_commands.counts(self.keys))
        return verb
