"""Jobs as tests see them, and assertions about them, whose errors list all jobs.

`JobSeen` is a value without methods that change it, for blocking and awaited code.

Arguments are compared in their encoded form. So a dataclass equals its stored form, and an argument
by name equals the same argument by position.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import redis

from bide.client import blocking, config
from bide.errors import JobFailed, PayloadError, UsageError
from bide.model.durations import Duration, at_to_us, delay_to_us, describe, is_whole, to_us
from bide.model.job import FINISHED, LISTABLE, Snapshot, State
from bide.model.payload.body import Body, decode_body, encode_body
from bide.model.payload.signing import Seal
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.keys import Keys, keys_of
from bide.queue import AsyncQueue, Queue
from bide.queue.core import TaskCall
from bide.queue.job_view import JobView
from bide.tasks.registry import NamedTask, task_name
from bide.tasks.task import Function, known_policy, signature_of, with_owner


class JobSeen(JobView[Any]):
    """A job as it was when the test bed read it: `state`, `args`, `result`, `error` and so on."""

    queue: str
    """The queue's name."""

    def __init__(
        self, seal: Seal, snapshot: Snapshot, exception: BaseException | None = None
    ) -> None:
        super().__init__(seal.keys.queue or "", snapshot.id, snapshot=snapshot)
        self._queue_seal = seal
        self.exception: Final = exception
        """The exception of the run; None if the run returned, or has not happened."""

    @property
    def _seal(self) -> Seal:
        return self._queue_seal

    def __repr__(self) -> str:
        return f"<JobSeen {self.call} {self.state} on {self.queue}>"

    @property
    def call(self) -> str:
        """The task and its arguments, as a call in Python."""
        try:
            return write_call(self._body())
        except PayloadError:
            return "an unreadable job"

    @property
    def due_us(self) -> int:
        """`due`, in microseconds since 1970."""
        return self._seen().due_us

    @property
    def awaits(self) -> int:
        """Number of jobs that a blocked job waits for."""
        return self._seen().awaits

    def failure(self) -> JobFailed:
        """Return the error for a job that has failed."""
        error = self.error
        what = f": {error.type}: {error.message}" if error else "."
        failed = JobFailed(f"{self.call} failed, in attempt {self.attempt}{what}")
        failed.error = error
        failed.__cause__ = self.exception
        return failed


def write_call(body: Body) -> str:
    """Format a body as a call in Python."""
    named = [f"{name}={value!r}" for name, value in body.kwargs.items()]
    return f"{body.task}({', '.join([*map(repr, body.args), *named])})"


_BATCH: Final = 1_000


class Store:
    """The keys of one prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._prefix = prefix
        self._clock = f"{prefix}:test_clock"  # the key of `clock_shared.lua`
        self._holds = False

    def now_us(self) -> int:
        """Return the present time of the scripts."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        pipe.hmget(self._clock, "offset_us", "held_us")
        (seconds, micros), (offset_us, held_us) = pipe.execute()
        real_us = int(seconds) * 1_000_000 + int(micros)
        return int(held_us) if held_us else real_us + int(offset_us or 0)

    def advance(self, us: int) -> None:
        """Move the clock of all queues, and wake up a worker of each."""
        self._redis.hincrby(self._clock, "held_us" if self._holds else "offset_us", us)
        for name in self._redis.hkeys(keys_of(None, self._prefix)["queues"]):
            wake = keys_of(name.decode(), self._prefix)["wake"]
            if not self._redis.llen(wake):
                self._redis.lpush(wake, "-")

    def hold(self) -> None:
        """Stop the clock, so that only `advance` moves it."""
        self._redis.hset(self._clock, "held_us", self.now_us())
        self._holds = True

    def release(self) -> None:
        """Let the clock continue from its present time."""
        held_us = self.now_us()
        seconds, micros = self._redis.time()
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(self._clock, "offset_us", held_us - (seconds * 1_000_000 + micros))
        pipe.hdel(self._clock, "held_us")
        pipe.execute()
        self._holds = False

    def expires_us(self, keys: Keys) -> int:
        """Return when the next job of a queue may expire; 0 if there is none."""
        first = self._redis.zrange(keys["expiring"], 0, 0, withscores=True)
        return int(first[0][1]) if first else 0

    def scheduled(self, keys: Keys, name: str) -> bytes:
        """Return the stored body of the jobs of a schedule; empty if there is none."""
        body: bytes | None = self._redis.hget(keys["scheduled"], name)
        return body or b""

    def wipe(self) -> None:
        """Remove every key of the prefix, and close the connections."""
        found = self._redis.scan_iter(match=f"{self._prefix}:*", count=_BATCH)
        keys = list(found)
        for i in range(0, len(keys), _BATCH):
            self._redis.unlink(*keys[i : i + _BATCH])
        self._redis.close()


_DJANGO: Final = ("django.tasks.base", "django_tasks.base")


class DjangoTask(Protocol):
    """A task of `django.tasks`, or of the package `django-tasks`."""

    @property
    def func(self) -> Callable[..., Any]:
        """The function of the task."""
        ...


def check_exists(name: str) -> None:
    """Refuse the name of a function that its module does not have: such a job cannot be enqueued.

    A module that this process has not imported may have the function.
    """
    module, colon, path = name.partition(":")
    if colon and module in sys.modules and known_policy(name) is None:
        raise UsageError(f"The module {module!r} has no function {path!r}; check the name.")


GivenTask: TypeAlias = Function | str | DjangoTask


def known_task(task: Any) -> Function | str:
    """Return a task as `enqueue` takes it; for a task of Django, the name that its jobs have.

    Raises:
        UsageError: the value is not a task, or is a method of one, or is a task of Django that bide
            does not enqueue.
    """
    if isinstance(owner := getattr(task, "__self__", None), NamedTask):
        raise UsageError(
            f"Give the task itself, {owner.name}, without .{task.__name__}: its jobs are looked "
            "for, and nothing is called."
        )
    if any(kind.__module__ in _DJANGO and kind.__name__ == "Task" for kind in type(task).__mro__):
        from bide.contrib.django.backend import job_name  # a task of Django: Django is installed

        return job_name(task)
    is_call = isinstance(task, TaskCall) and not isinstance(task, NamedTask)
    if is_call or not (callable(task) or isinstance(task, str)):
        raise UsageError(
            f"Give a task, then its arguments, such as (send, 42, delay='1h'), not {task!r}."
        )
    given: Function | str = task
    return given


_SHOWN: Final = 20
T = TypeVar("T")


class Due(NamedTuple):
    """The expected due time of a job, in microseconds since 1970."""

    first_us: int
    last_us: int
    words: str


class ExpectedCall:
    """An expected call of a task."""

    def __init__(
        self,
        task: Function | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        is_any: bool,
    ) -> None:
        """Record the expected call; with `is_any`, all arguments match.

        Raises:
            UsageError: no job can have this task or these arguments.
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
        """Whether the call that `read` returns has the expected arguments.

        Raises:
            PayloadError: no job of that queue can have the expected arguments.
        """
        if self._any:
            return True
        try:
            stored = read()
        except PayloadError:
            return False
        body = Body(self.task, self._args, self._kwargs, codec=stored.codec)
        carried = decode_body(encode_body(body, self._names), allow_pickle=True)
        return self._named(stored) == self._named(carried)

    def _named(self, body: Body) -> tuple[dict[str, Any], list[Any]]:
        """Return the arguments by name, and those without a name."""
        named = dict(zip(self._names, body.args, strict=False))
        return {**named, **body.kwargs}, list(body.args[len(self._names) :])


def in_a_row(*parts: str) -> str:
    """Join the non-empty parts for the middle of a sentence."""
    present = [part for part in parts if part]
    return ", ".join(present) + ("," if len(present) > 1 else "")


def listing(jobs: Sequence[JobSeen], now_us: int) -> str:
    """List all jobs with their states for people."""
    finished = [job for job in jobs if job.state in FINISHED]
    enqueued = [job for job in jobs if job.state not in FINISHED]
    lines = ["Enqueued:", *_lines(enqueued, now_us)] if enqueued else ["Nothing is enqueued."]
    if finished:
        lines += ["Finished:", *_lines(finished, now_us)]
    return "\n".join(lines)


def _lines(jobs: Sequence[JobSeen], now_us: int) -> list[str]:
    return first_of(jobs, lambda job: f"  {job.call}, {_state(job, now_us)}, on {job.queue}")


def first_of(some: Sequence[T], line: Callable[[T], str]) -> list[str]:
    """Return a line for each of up to 20 objects, and the number of others."""
    lines = [line(one) for one in some[:_SHOWN]]
    if len(some) > _SHOWN:
        lines.append(f"  and {len(some) - _SHOWN} more")
    return lines


def _state(job: JobSeen, now_us: int) -> str:
    """Describe the state of a job, and its due time if it has not run yet."""
    state, ahead_us = job.state, job.due_us - now_us
    if state == State.BLOCKED:
        after = f", then {words_for(ahead_us)}" if ahead_us > 0 else ""
        return f"blocked by {job.awaits} job{'s'[: job.awaits != 1]}{after}"
    if state in (State.DELAYED, State.WAITING):
        return f"{state}, {words_for(ahead_us)}"
    return "cancelled because it expired" if job.expired else str(state)


def words_for(ahead_us: int) -> str:
    """Describe a due time relative to now."""
    return "due now" if ahead_us <= 0 else f"due in {describe(ahead_us / 1e6)}"


_ON_THE_WAY: Final = (State.BLOCKED, State.DELAYED, State.WAITING, State.ACTIVE)
"""The states of jobs that have not finished, in the order in which a job passes through them."""


class Looking:
    """The methods of a test bed for jobs."""

    def __init__(self, prefix: str, client: blocking.Client, store: Store) -> None:
        self.prefix: Final = prefix
        """The prefix of all keys."""
        self._client = client
        self._store = store
        self._opened_at = 0.0

    def _check(self) -> None:
        raise NotImplementedError

    def enqueued(self, task: GivenTask | None = None) -> list[JobSeen]:
        """Return the jobs that have not finished: blocked, delayed, waiting and active jobs.

        They are in the order in which they are due. Blocked jobs are the last, because their due
        time depends on other jobs.

        Args:
            task: only the jobs of this task, as `enqueue` takes it, or of a task of Django.
        """
        return [job for job in self._jobs(task, _ON_THE_WAY) if job.state not in FINISHED]

    def jobs(self, task: GivenTask | None = None) -> list[JobSeen]:
        """Return the jobs of every state, also finished jobs, in the order of `enqueued`.

        Args:
            task: only the jobs of this task, as `enqueue` takes it, or of a task of Django.
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
        """Assert that such a job exists and has not finished; return it.

        Args:
            task: the task, as `enqueue` takes it, or a task of Django.
            args: its arguments; without any, all arguments match.
            delay: the time until it is due, on the bed's clock. For a blocked job: the time until
                it would be due if its parents ended now.
            at: when it is due.
            within: the tolerance of the due time. The time that the test has taken so far is added.
            queue: the queue, or its name.
            count: the number of such jobs; by default at least one.
            kwargs: its arguments by name.

        Returns:
            The job; if there are several, the job that is due first.

        Raises:
            AssertionError: there is no such job, or another number of them; the message lists all
                jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        if count is not None and not is_whole(count, 1):
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
        """Assert that no such job exists, or that it has finished; arguments as `assert_enqueued`.

        Raises:
            AssertionError: there is such a job; the message says its state and lists all jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if not found and isinstance(task, str):
            check_exists(task)
        if found:
            counts = Counter(job.state for job in found)
            words = ", ".join(f"{counts[state]} {state}" for state in LISTABLE if state in counts)
            raise AssertionError(f"{expected} is enqueued ({words}).\n{self._listing()}")

    def _find(
        self,
        task: GivenTask,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        delay: Duration | None,
        at: datetime | None,
        within: Duration,
        queue: Queue | AsyncQueue | str | None,
    ) -> tuple[str, list[JobSeen]]:
        """Return the description of the expected call, and the matching jobs."""
        on = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
        jobs, due = self.enqueued(task), self._due(delay, at, within)
        call = ExpectedCall(known_task(task), args, kwargs, not args and not kwargs)
        found = [
            job
            for job in jobs
            if on in (None, job.queue)
            and (due is None or due.first_us <= job.due_us <= due.last_us)
            and call.fits(job._body)
        ]
        return in_a_row(str(call), due.words if due else "", f"on {on}" if on else ""), found

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
        taken_us = round((time.monotonic() - self._opened_at) * 1e6)  # on another clock
        return Due(due_us - within_us - taken_us, due_us + within_us, words_for(delay_us))

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
            # In the order of states: a job whose state changes meanwhile is read twice, not missed.
            ids = dict.fromkeys(id for state in states for id in self._ids(keys, state))
            for snapshots in self._client.run_many(job_commands.fetch_many(keys, list(ids))):
                found += [JobSeen(seal, snapshot) for snapshot in snapshots if snapshot]
        jobs = [job for job in found if name is None or job.task == name]
        return sorted(jobs, key=lambda job: (job.state == State.BLOCKED, job.due_us, job.id))

    def _queues(self) -> list[Keys]:
        """Return the queues that hold jobs, without delay queues."""
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
