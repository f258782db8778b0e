"""One queue, worked on through an executor and looked at through a plain client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import redis

from bide.client import aio, blocking
from bide.model.history import History, read_history
from bide.model.job import Claimed, Event, RunRecord, Snapshot, read_event
from bide.model.limits import Limits, Retention
from bide.model.payload.body import Body, decode_item, encode_body, encode_item
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.commands.jobs import ChangeResult, Position
from bide.protocol.commands.worker import Claim, JobNote, Outcome, Popped, Renewal, Settle, Verdict
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK
from bide.queue.core import settings_calls
from tests.support.invariants import Holding, assert_legal, hold

T = TypeVar("T")

BODY = encode_body(Body("app.tasks:send"))
SECOND = 1_000_000
LEASE = 10.0


class Executor:
    """Either executor, called from code that blocks."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner() if kind == "aio" else None
        self.client: Any = (aio.AsyncClient if self._runner else blocking.Client)(url, **options)
        self.url: str = self.client.url

    def run(self, command: Command[T]) -> T:
        result: T = self._call(self.client.run, command)
        return result

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        results: list[Any] = self._call(self.client.run_many, commands)
        return results

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        results: list[Any] = self._call(self.client.attempt_many, commands)
        return results

    def close(self) -> None:
        self._call(self.client.close)

    def end(self) -> None:
        self.close()
        if self._runner:
            self._runner.close()

    def await_(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run what is awaited, in the event loop of the asyncio client."""
        assert self._runner
        return self._runner.run(coroutine)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._runner.run(function(*args)) if self._runner else function(*args)


class Probe:
    """A queue whose clock moves only by `move` and by the microseconds that the test takes."""

    def __init__(self, executor: Executor, raw: redis.Redis, queue: str = "mail") -> None:
        self.executor = executor
        self.raw = raw
        self.queue = queue
        self.keys = keys_of(queue)
        self.legal = True
        """Whether the queue must be in a legal state when the test ends."""
        self._seq: dict[str, int] = {}
        self._is_held = False

    def run(self, command: Command[T]) -> T:
        return self.executor.run(command)

    def reply(self, command: Command[Any]) -> list[Any]:
        """The reply as the script gave it."""
        return self.executor.run(command._replace(parse=list, followup=None))

    def move(self, seconds: float) -> None:
        """Set the server's clock forward or back."""
        field = "test_held_us" if self._is_held else "test_offset_us"
        self.raw.hincrby(self.keys["meta"], field, round(seconds * SECOND))

    def hold(self) -> None:
        """Stop the server's clock, which from now on moves by `move` alone."""
        self.raw.hset(self.keys["meta"], "test_held_us", self.now)
        self._is_held = True

    def go_on(self) -> None:
        """Let the server's clock run again."""
        self.raw.hdel(self.keys["meta"], "test_held_us")
        self._is_held = False

    @property
    def now(self) -> int:
        return self.run(job_commands.counts(self.keys)).now_us

    # -- verbs

    def add_many(self, *jobs: Prepared) -> list[Receipt]:
        return self.run(enqueue_commands.enqueue(self.keys, jobs))

    def add(
        self, *ids: str, when: str = "+0", priority: int = 5, body: bytes = BODY
    ) -> list[Receipt]:
        return self.add_many(*(Prepared(id, when, priority, body) for id in ids))

    def push(self, *ids: str, when: str = "+0", priority: int = 5) -> list[Receipt]:
        """Add items, each with its id as its data."""
        return self.add_many(*(Prepared(id, when, priority, encode_item(id)) for id in ids))

    def pop(
        self, consumer: str = "c1", count: int = 10, *, seq: int | None = None, previous: float = 0
    ) -> Popped:
        """The consumer's next pop, or with `seq` the one of that number."""
        previous_us = round(previous * SECOND)
        return self.run(
            worker_commands.pop(self.keys, consumer, self._next(consumer, seq), count, previous_us)
        )

    def popped(self, consumer: str = "c1", count: int = 10, *, seq: int | None = None) -> list[Any]:
        """The data that the consumer's next pop brings."""
        return [decode_item(body) for body in self.pop(consumer, count, seq=seq).bodies]

    def _next(self, worker: str, seq: int | None) -> int:
        if seq is None:
            seq = self._seq.get(worker, 0) + 1
        self._seq[worker] = max(seq, self._seq.get(worker, 0))
        return seq

    def claim(
        self,
        worker: str = "w1",
        count: int = 10,
        *,
        seq: int | None = None,
        lease: float = LEASE,
        busy: int = 0,
        arm: int = 2,
        flags: str = "",
        ahead: float = 0,
        slots: int | None = None,
    ) -> Claim:
        """The worker's next claim, or with `seq` the one of that number."""
        seq = self._next(worker, seq)
        ahead_us = round(ahead * SECOND)
        slots = count if slots is None else slots
        args = (seq, count, round(lease * SECOND), busy, arm, flags, ahead_us, slots)
        return self.run(worker_commands.claim(self.keys, worker, *args))

    def taken(self, worker: str = "w1", count: int = 10, *, busy: int = 0) -> list[str]:
        """The ids that the worker's next claim brings."""
        return [job.id for job in self.claim(worker, count, busy=busy).jobs]

    def take(self, id: str, worker: str = "w1") -> Claimed:
        """Enqueue a job and claim it."""
        self.add(id)
        (job,) = self.claim(worker).jobs
        assert job.id == id
        return job

    def settle(self, job: Claimed, outcome: Outcome, when: str = "", data: bytes = b"") -> Verdict:
        (verdict,) = self.settle_many(Settle(job.id, job.token, outcome, when, data))
        return verdict

    def settle_many(self, *settles: Settle) -> list[Verdict]:
        return self.run(worker_commands.settle(self.keys, settles))

    def cancel(self, *ids: str, running: bool = True) -> list[str]:
        return self.run(job_commands.cancel(self.keys, ids, running))

    def reschedule(self, id: str, when: str) -> ChangeResult:
        (moved,) = self.run(job_commands.reschedule(self.keys, [id], when))
        return moved

    def promote(self, id: str) -> ChangeResult:
        (moved,) = self.run(job_commands.promote(self.keys, [id]))
        return moved

    def retry(self, *ids: str, when: str = "+0") -> list[str]:
        return [moved.result for moved in self.run(job_commands.retry(self.keys, ids, when))]

    def note(self, job: Claimed, *lines: tuple[str, str | bytes]) -> list[str]:
        """Have a job say things: kind and JSON of each. For each `ok` or `lost`."""
        said = [
            JobNote(job.id, job.token, kind, text.encode() if isinstance(text, str) else text)
            for kind, text in lines
        ]
        return [
            word.decode() for word in self.reply(worker_commands.add_notes(self.keys, said))[2:]
        ]

    def watch(self, id: str, seconds: float = 30) -> str:
        return self.run(job_commands.await_end(self.keys, id, round(seconds * SECOND)))

    def listen(self, after: str = "-", name: str = "audit", seconds: float = 660) -> Position:
        return self.run(job_commands.listen(self.keys, name, after, round(seconds * SECOND)))

    def configure(self, **retention: Any) -> None:
        self.run(job_commands.configure(self.keys, Retention(**retention)))

    def limit(self, **settings: Any) -> None:
        """Set limits, as `queue.configure` does."""
        for command in settings_calls(self.keys, settings):  # type: ignore[arg-type]
            self.run(command)

    @property
    def limits(self) -> Limits:
        return self.run(job_commands.counts(self.keys)).limits

    def extend(self, *jobs: Claimed, lease: float = LEASE) -> list[Renewal]:
        held = [(job.id, job.token) for job in jobs]
        return self.run(worker_commands.extend(self.keys, round(lease * SECOND), held))

    def leave(self, worker: str) -> None:
        self.run(worker_commands.worker_leave(self.keys, worker))

    def fetch(self, id: str) -> Snapshot | None:
        (snapshot,) = self.run(job_commands.fetch(self.keys, [id]))
        return snapshot

    # -- what stands on the server

    def holding(self) -> Holding:
        return hold(self.raw, self.queue)

    def where(self, id: str) -> str | None:
        return self.holding().where(id)

    def record(self, id: str) -> RunRecord:
        return self.holding().records[id]

    def notes(self, id: str) -> History:
        return read_history(self.holding().hashes["notes"].get(id))

    def errors(self, id: str) -> list[str]:
        """The messages of the job's errors, oldest first."""
        return [a.error.message for a in self.notes(id).attempts if a.error]

    def zset(self, name: str) -> dict[str, int]:
        """A sorted set that stands behind one header name."""
        pairs: Any = self.raw.zrange(self.keys[name], 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in pairs}

    def zset_of(self, name: str) -> dict[str, int]:
        """One of the sets in which jobs are, by its name with its level: `due:5`, `due:grouped`."""
        return self.holding().sets[name]

    def told(self) -> list[Event]:
        """The events that stand in the stream."""
        entries: Any = self.raw.xrange(self.keys["events"])
        return [read_event(id.decode(), fields[b"e"]) for id, fields in entries]

    def wakeups(self) -> int:
        """How many wake-up messages lie on the list."""
        return self.raw.llen(self.keys["wake"])

    def hear(self) -> str | None:
        """Take the message off the list, as a woken worker does; `-` for a job, or None."""
        message: Any = self.raw.lpop(self.keys["wake"])
        return message.decode() if message else None

    def check(self) -> None:
        assert self.wakeups() <= 1
        if self.legal:
            assert_legal(self.raw, self.queue)


def open_executor(kind: str, url: str, **options: Any) -> Executor:
    options.setdefault("clock", TEST_CLOCK)
    return Executor(kind, url, **options)
