"""Comparing what was enqueued with what a test expects, and saying what there is instead.

Arguments are compared as the queue's encoding carries them, so that a dataclass equals what it
was enqueued as, and one given by name equals the same given by position.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from bide.client import blocking, config
from bide.errors import PayloadError, UsageError
from bide.model.durations import Duration, at_to_us, delay_to_us, describe, to_us
from bide.model.job import FINISHED, LISTABLE, State
from bide.model.payload.body import Body, decode_body, encode_body
from bide.model.payload.serializers import Codec
from bide.model.payload.signing import Seal
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.keys import Keys, keys_of
from bide.queue import AsyncQueue, Queue
from bide.tasks.registry import task_name
from bide.tasks.task import Function, signature_of, with_owner
from bide.testing.job_seen import GivenTask, JobSeen, Store, known_task, write_call

_SHOWN: Final = 20


class Due(NamedTuple):
    """When a job is expected to be due, in microseconds since 1970."""

    first_us: int
    last_us: int
    words: str


class ExpectedCall:
    """A call of a task that a test expects."""

    def __init__(
        self,
        task: Function | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        is_any: bool,
    ) -> None:
        """Note what is expected.

        Args:
            task: the task.
            args: its arguments.
            kwargs: its arguments by name.
            is_any: whether any arguments do.

        Raises:
            UsageError: no job can be of this task, or have these arguments.
        """
        self.task: Final = task_name(task)
        self._args = with_owner(task, args)
        self._kwargs = kwargs
        self._any = is_any
        signature = signature_of(task, self.task)
        self._names = signature.positional if signature else ()
        if signature is not None and not is_any:
            signature.check(self._args, kwargs, self.task)

    def __str__(self) -> str:
        what = write_call(Body(self.task, self._args, self._kwargs))
        return f"{self.task}(...)" if self._any else what

    def fits(self, read: Callable[[], Body]) -> bool:
        """Whether a call of the task has the arguments that are expected.

        Args:
            read: reads the call, and raises PayloadError if it cannot.

        Raises:
            PayloadError: no job of that queue can have the arguments expected.
        """
        if self._any:
            return True
        try:
            stored = read()
        except PayloadError:
            return False
        return self._named(stored) == self._named(self._carried(stored.codec))

    def _carried(self, codec: Codec) -> Body:
        body = Body(self.task, self._args, self._kwargs, codec=codec)
        return decode_body(encode_body(body, self._names), allow_pickle=True)

    def _named(self, body: Body) -> tuple[dict[str, Any], list[Any]]:
        """The arguments by name, and those that have none."""
        named = dict(zip(self._names, body.args, strict=False))
        return {**named, **body.kwargs}, list(body.args[len(self._names) :])


class Expected:
    """A job that a test expects."""

    def __init__(
        self,
        task: Function | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        due: Due | None,
        queue: str | None,
    ) -> None:
        """Note what is expected; raises as `ExpectedCall` does."""
        self._call = ExpectedCall(task, args, kwargs, not args and not kwargs)
        self._due = due
        self._queue = queue

    def __str__(self) -> str:
        due = self._due.words if self._due else ""
        return in_a_row(str(self._call), due, f"on {self._queue}" if self._queue else "")

    def fits(self, job: JobSeen) -> bool:
        """Whether a job is as expected; raises as `ExpectedCall.fits` does."""
        if job.task != self._call.task or self._queue not in (None, job.queue):
            return False
        if self._due and not self._due.first_us <= job.due_us <= self._due.last_us:
            return False
        return self._call.fits(job._body)


def in_a_row(*parts: str) -> str:
    """The parts that there are, as a sentence has them in its middle."""
    present = [part for part in parts if part]
    return ", ".join(present) + ("," if len(present) > 1 else "")


def listing(jobs: Sequence[JobSeen], now_us: int) -> str:
    """All jobs and the state of each, for people."""
    finished = [job for job in jobs if job.status in FINISHED]
    enqueued = [job for job in jobs if job.status not in FINISHED]
    lines = ["Enqueued:", *_lines(enqueued, now_us)] if enqueued else ["Nothing is enqueued."]
    if finished:
        lines += ["Finished:", *_lines(finished, now_us)]
    return "\n".join(lines)


def in_words(jobs: Sequence[JobSeen]) -> str:
    """How many of some jobs are in which state."""
    counts = Counter(job.status for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in LISTABLE if state in counts)


def _lines(jobs: Sequence[JobSeen], now_us: int) -> list[str]:
    lines = [f"  {job.call}, {_state(job, now_us)}, on {job.queue}" for job in jobs[:_SHOWN]]
    if len(jobs) > _SHOWN:
        lines.append(f"  and {len(jobs) - _SHOWN} more")
    return lines


def _state(job: JobSeen, now_us: int) -> str:
    """The state of a job, and when it is due if it is to run yet."""
    state, ahead_us = job.status, job.due_us - now_us
    if state == State.BLOCKED:
        after = f", then {words_for(ahead_us)}" if ahead_us > 0 else ""
        return f"blocked by {job.awaits} job{'s'[: job.awaits != 1]}{after}"
    if state in (State.DELAYED, State.WAITING):
        return f"{state}, {words_for(ahead_us)}"
    return "cancelled because it expired" if job.expired else str(state)


def words_for(ahead_us: int) -> str:
    """When something is due, as seen from now."""
    return "due now" if ahead_us <= 0 else f"due in {describe(ahead_us / 1e6)}"


_ON_THE_WAY: Final = (State.BLOCKED, State.DELAYED, State.WAITING, State.ACTIVE)
"""The states of jobs that have not finished, in the order in which a job passes through them."""


class Looking:
    """What a test bed does with the jobs that are there."""

    def __init__(self, prefix: str, client: blocking.Client, store: Store) -> None:
        self.prefix: Final = prefix
        """What all keys begin with."""
        self._client = client
        self._store = store
        self._opened_at = 0.0

    def _check(self) -> None:
        raise NotImplementedError

    def enqueued(self, task: GivenTask | None = None) -> list[JobSeen]:
        """The jobs that have not finished: blocked, delayed, waiting and active ones.

        They are in the order in which they are due. Blocked jobs, whose due time depends on other
        jobs, are the last.

        Args:
            task: only the jobs of this task, given as to `enqueue`; or a task of Django.
        """
        return [job for job in self._jobs(task, _ON_THE_WAY) if job.status not in FINISHED]

    def jobs(self, task: GivenTask | None = None) -> list[JobSeen]:
        """The jobs of every state, also those that have finished, in the order of `enqueued`.

        Args:
            task: only the jobs of this task, given as to `enqueue`; or a task of Django.
        """
        return self._jobs(task, (*_ON_THE_WAY, *sorted(FINISHED)))

    def assert_enqueued(
        self,
        task: GivenTask,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        count: int | None = None,
        **kwargs: Any,
    ) -> JobSeen:
        """Assert that there is such a job, and it has not finished.

        Args:
            task: the task, given as to `enqueue`; or a task of Django.
            args: its arguments; with none at all, any arguments do.
            delay: how long from now it is due, on the bed's clock. A blocked job counts as due
                when it would be due if it stopped being blocked now.
            at: when it is due.
            within: how far off the due time may be. The time that the test has taken so far is
                allowed for.
            queue: the queue, or its name.
            count: how many such jobs there must be; without it, at least one.
            kwargs: its arguments by name.

        Returns:
            The job; of several, the one that is due first.

        Raises:
            AssertionError: there is none, or not so many; the message lists all jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or count < 1):
            raise UsageError(
                f"count must be 1 or more, not {count!r}; none is asserted by assert_not_enqueued."
            )
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if not found or count not in (None, len(found)):
            what = f"No job {expected} is enqueued"
            if found:
                are = "job is" if len(found) == 1 else "jobs are"
                what = f"{len(found)} {are} {expected} where there should be {count}"
            raise AssertionError(f"{what}.\n{self._listing()}")
        return found[0]

    def assert_not_enqueued(
        self,
        task: GivenTask,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        **kwargs: Any,
    ) -> None:
        """Assert that there is no such job, or it has finished; arguments as `assert_enqueued`.

        Raises:
            AssertionError: there is one; the message says its state and lists all jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if found:
            raise AssertionError(f"{expected} is enqueued ({in_words(found)}).\n{self._listing()}")

    def _find(
        self,
        task: GivenTask,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        delay: Duration | None,
        at: datetime | None,
        within: Duration,
        queue: Queue | AsyncQueue | str | None,
    ) -> tuple[Expected, list[JobSeen]]:
        name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
        jobs = self.enqueued(task)
        expected = Expected(known_task(task), args, kwargs, self._due(delay, at, within), name)
        return expected, [job for job in jobs if expected.fits(job)]

    def _due(self, delay: Duration | None, at: datetime | None, within: Duration) -> Due | None:
        within_us = to_us(within, "within")
        if delay is not None and at is not None:
            raise UsageError("Give either delay= or at=, not both.")
        if at is not None:
            at_us = at_to_us(at)
            return Due(at_us - within_us, at_us + within_us, f"due at {at.isoformat()}")
        if delay is None:
            return None
        delay_us = delay_to_us(delay)
        due_us = self._store.now_us() + delay_us
        first_us = due_us - within_us - self._taken_us()
        return Due(first_us, due_us + within_us, words_for(delay_us))

    def _taken_us(self) -> int:
        """How long this test has taken so far, as other clocks have it."""
        return round((time.monotonic() - self._opened_at) * 1e6)

    def _listing(self) -> str:
        lines = listing(self.jobs(), self._store.now_us())
        commit = sys.modules.get("bide.contrib.django.running")
        hint = commit.hint() if commit is not None else ""
        return f"{lines}\n{hint}" if hint else lines

    # -- reading

    def _jobs(self, task: GivenTask | None, states: Iterable[State]) -> list[JobSeen]:
        self._check()
        name = None if task is None else task_name(known_task(task))
        found: list[JobSeen] = []
        for keys in self._queues():
            seal = Seal(config.signing_keys(), keys)
            # In the order of their lives: a job that moves on meanwhile is seen twice, not never.
            ids = dict.fromkeys(id for state in states for id in self._ids(keys, state))
            for snapshots in self._client.run_many(job_commands.fetch_many(keys, list(ids))):
                found += [JobSeen(seal, snapshot) for snapshot in snapshots if snapshot]
        jobs = [job for job in found if name is None or job.task == name]
        return sorted(jobs, key=lambda job: (job.status == State.BLOCKED, job.due_us, job.id))

    def _queues(self) -> list[Keys]:
        """The queues that hold jobs; a delay queue holds data."""
        names = self._client.run(queue_commands.queues(keys_of(None, self.prefix)))
        queues = [keys_of(name, self.prefix) for name in names]
        counts = self._client.run_many([job_commands.counts(keys) for keys in queues])
        return [keys for keys, one in zip(queues, counts, strict=True) if not one.is_data]

    def _ids(self, keys: Keys, state: State) -> list[str]:
        ids: list[str] = []
        while len(ids) % job_commands.MAX_PAGE == 0:
            page = self._client.run(
                job_commands.listing(keys, state, len(ids), job_commands.MAX_PAGE)
            )
            if not page:
                break
            ids += page
        return ids
