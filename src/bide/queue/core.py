"""What the blocking and the awaited facades decide alike, decided once, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

from bide.clock import Duration, from_us, to_us
from bide.codec import Body, ErrorInfo
from bide.command import Command
from bide.connection import resolve_prefix
from bide.errors import BideError, JobNotFound, JobStateError, ServerUnavailable, UsageError
from bide.job import Snapshot
from bide.keys import Keys, keys_of
from bide.ops import produce, registry
from bide.ops.manage import Moved
from bide.ops.produce import Prepared, Receipt
from bide.retry import Retry, as_retry
from bide.script import SERVER_CLOCK
from bide.states import State
from bide.task import Function, register, task_name

F = TypeVar("F", bound=Callable[..., Any])


class QueueCore:
    """What a queue knows and decides without the server."""

    def __init__(
        self,
        name: str = "default",
        *,
        prefix: str | None = None,
        clock: str = SERVER_CLOCK,
    ) -> None:
        self.name: Final = name
        prefix = resolve_prefix(prefix)
        self.prefix: Final = prefix
        self.clock: Final = clock
        self.keys: Final[Keys] = keys_of(name, prefix)
        self._global_keys: Final = keys_of(None, prefix)
        self._known = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def prepare(
        self,
        task: Function | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
    ) -> Prepared:
        """Make a job ready for `enqueue_many`; options as for `enqueue_call`."""
        seconds = None if timeout is None else to_us(timeout, "timeout") / 1e6
        if seconds is not None and seconds <= 0:
            raise UsageError("timeout must be more than 0.")
        if not isinstance(args, list | tuple):
            raise UsageError(f"args must be a list or tuple, not {args!r}; (x,) holds one x.")
        if not all(isinstance(name, str) for name in kwargs or ()):
            raise UsageError("The names in kwargs must be strings.")
        body = Body(
            task=task_name(task),
            args=args,
            kwargs=kwargs or {},
            timeout=seconds,
            retry=None if retry is None else as_retry(retry),
        )
        return produce.prepare(body, delay, at, priority, job_id)

    def task(self, function: F) -> F:
        """Register a function: workers that import its module run it without being told to serve.

        Raises:
            UsageError: no worker could find it by its name.
        """
        register(function)
        return function

    def _trips(self, jobs: Sequence[Prepared]) -> Iterator[list[Command[Any]]]:
        """The calls that add jobs, a round trip at a time; the first makes the queue known too."""
        for trip in produce.enqueue_many(self.keys, jobs):
            if not self._known:
                self._known = True
                yield [*trip, registry.register(self._global_keys, [self.name])]
            else:
                yield trip

    @contextmanager
    def _in_doubt(self, jobs: Sequence[Prepared]) -> Iterator[None]:
        """Tell the caller the ids with which repeating is safe."""
        try:
            yield
        except ServerUnavailable as error:
            error.job_ids = tuple(job.id for job in jobs)
            raise


class JobView:
    """A job as it was when last seen."""

    def __init__(
        self, id: str, receipt: Receipt | None = None, snapshot: Snapshot | None = None
    ) -> None:
        self.id: Final = id
        self.new: Final = receipt.new if receipt else None
        """Of an enqueue: False if the id existed and nothing was changed. Else None."""
        self._due_us = receipt.due_us if receipt else 0
        self._snapshot = snapshot

    def __repr__(self) -> str:
        state = f" {self._snapshot.state}" if self._snapshot else ""
        return f"<{type(self).__name__} {self.id}{state}>"

    def _seen(self) -> Snapshot:
        if self._snapshot is None:
            raise UsageError(f"Job {self.id} has not been read yet; await its refresh() first.")
        return self._snapshot

    @property
    def status(self) -> State:
        """The job's state."""
        return self._seen().state

    @property
    def due(self) -> datetime:
        """When the job is due; of one that has started, when it was."""
        if self._snapshot is None and self._due_us:
            return from_us(self._due_us)
        return from_us(self._seen().due_us)

    @property
    def task(self) -> str:
        """The task's name."""
        return self._seen().task

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they were decoded."""
        return tuple(self._seen().body.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they were decoded."""
        return dict(self._seen().body.kwargs)

    @property
    def priority(self) -> int | None:
        """0 to 9; 9 runs first. None for a job that was cancelled before it was ever claimed."""
        return self._seen().priority

    @property
    def attempt(self) -> int:
        """How many attempts have begun and counted."""
        return self._seen().attempt

    @property
    def result(self) -> Any:
        """What the task returned; None while it has not."""
        return self._seen().result

    @property
    def error(self) -> ErrorInfo | None:
        """The last error, also of a job that will be retried."""
        return self._seen().error

    @property
    def lateness(self) -> float | None:
        """Seconds from due to start of the latest attempt; None before the first."""
        return self._seen().lateness

    def _moved(self, moved: Moved, verb: str) -> None:
        if moved.word == "gone":
            raise not_found(self.id)
        if moved.word != "ok":
            raise JobStateError(
                f"Job {self.id} is {moved.word}, and only a delayed or waiting one can be {verb}."
            )
        self._snapshot = None
        self._due_us = moved.due_us

    def _removed(self, words: list[str]) -> bool:
        if words == ["active"]:
            raise JobStateError(f"Job {self.id} is active; wait for its end before deleting it.")
        return words == ["ok"]


def not_found(id: str) -> JobNotFound:
    """The error for an id that leads nowhere."""
    return JobNotFound(f"There is no job {id!r}: it never was, was deleted, or its time is over.")


def read_cancel(words: list[str]) -> bool:
    """Whether the one job is cancelled now, by this call or (its reply lost) an earlier one."""
    return words[0] in ("ok", "cancelled")


def read_receipts(trip: Sequence[Command[Any]], replies: Sequence[Any]) -> list[Receipt]:
    """The receipts of a round trip.

    Raises:
        BideError: an enqueue failed. That a queue could not be made known fails nobody's enqueue.
    """
    receipts: list[Receipt] = []
    for command, reply in zip(trip, replies, strict=True):
        if command.script == "enqueue":
            if isinstance(reply, BideError):
                raise reply
            receipts += reply
    return receipts
