"""A job as a test looks at it: a value, without verbs, the same in blocking and in awaited code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import redis

from bide.errors import JobFailed, PayloadError, UsageError
from bide.model.job import Snapshot
from bide.model.payload.body import Body
from bide.model.payload.signing import Seal
from bide.protocol.keys import Keys, keys_of
from bide.queue.job_view import JobView
from bide.tasks.registry import Named
from bide.tasks.task import Function


class JobSeen(JobView[Any]):
    """A job as it was when the test bed looked: `status`, `args`, `result`, `error` and so on."""

    def __init__(
        self, seal: Seal, snapshot: Snapshot, exception: BaseException | None = None
    ) -> None:
        super().__init__(snapshot.id, snapshot=snapshot, seal=seal)
        self.queue: Final = seal.keys.queue or ""
        """The queue's name."""
        self.exception: Final = exception
        """What the run that this tells of raised; None where it returned, or has not been."""

    def __repr__(self) -> str:
        return f"<JobSeen {self.call} {self.status} on {self.queue}>"

    @property
    def call(self) -> str:
        """The task and its arguments, as Python writes a call."""
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
        """How many jobs a blocked job waits for."""
        return self._seen().awaits

    def failure(self) -> JobFailed:
        """The error for a job that has failed."""
        error = self.error
        what = f": {error.type}: {error.message}" if error else "."
        failed = JobFailed(f"{self.call} failed, in attempt {self.attempt}{what}")
        failed.error = error
        failed.__cause__ = self.exception
        return failed


def write_call(body: Body) -> str:
    """A body as Python writes a call."""
    named = [f"{name}={value!r}" for name, value in body.kwargs.items()]
    return f"{body.task}({', '.join([*map(repr, body.args), *named])})"


_BATCH: Final = 1_000


class Store:
    """The keys of one prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._prefix = prefix
        self._clock = f"{prefix}:test_clock"  # as `clock_shared.lua` has it
        self._holds = False

    def now_us(self) -> int:
        """What the scripts take for now."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        pipe.hmget(self._clock, "offset_us", "held_us")
        (seconds, micros), (offset_us, held_us) = pipe.execute()
        real_us = int(seconds) * 1_000_000 + int(micros)
        return int(held_us) if held_us else real_us + int(offset_us or 0)

    def advance(self, us: int) -> None:
        """Move the clock of all queues, and have a worker of each look again."""
        self._redis.hincrby(self._clock, "held_us" if self._holds else "offset_us", us)
        for name in self._redis.hkeys(keys_of(None, self._prefix)["queues"]):
            wake = keys_of(name.decode(), self._prefix)["wake"]
            if not self._redis.llen(wake):
                self._redis.lpush(wake, "-")

    def hold(self) -> None:
        """Stop the clock: from here on it moves by `advance` alone."""
        self._redis.hset(self._clock, "held_us", self.now_us())
        self._holds = True

    def release(self) -> None:
        """Let the clock go on, from where it stands."""
        held_us = self.now_us()
        seconds, micros = self._redis.time()
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(self._clock, "offset_us", held_us - (seconds * 1_000_000 + micros))
        pipe.hdel(self._clock, "held_us")
        pipe.execute()
        self._holds = False

    def expires_us(self, keys: Keys) -> int:
        """When the next job of a queue may expire; 0 where none does."""
        first = self._redis.zrange(keys["expiring"], 0, 0, withscores=True)
        return int(first[0][1]) if first else 0

    def scheduled(self, keys: Keys, name: str) -> bytes:
        """The stored body of the jobs of a schedule; empty where there is none."""
        body: bytes | None = self._redis.hget(keys["scheduled"], name)
        return body or b""

    def wipe(self) -> None:
        """Remove every key of the prefix, and let go of the server."""
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
        """The function that it runs."""
        ...


GivenTask: TypeAlias = Function | str | DjangoTask


def known_task(task: Any) -> Function | str:
    """Return a task as `enqueue` takes it; for a task of Django, the name that its jobs have.

    Raises:
        UsageError: the value is not a task, or is a method of one, or is a task of Django that bide
            does not enqueue.
    """
    if isinstance(owner := getattr(task, "__self__", None), Named):
        raise UsageError(
            f"Give the task itself, {owner.name}, without .{task.__name__}: its jobs are looked "
            "for, and nothing is called."
        )
    if any(kind.__module__ in _DJANGO and kind.__name__ == "Task" for kind in type(task).__mro__):
        from bide.contrib.django.backend import job_name  # a task of Django: Django is installed

        return job_name(task)
    if not callable(task) and not isinstance(task, str):
        raise UsageError(
            f"Give a task, then its arguments, such as (send, 42, delay='1h'), not {task!r}."
        )
    given: Function | str = task
    return given
