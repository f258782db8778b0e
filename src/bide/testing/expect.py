"""Comparing what was enqueued with what a test expects, and saying what there is instead.

Arguments are compared as the queue's encoding carries them, so that a dataclass equals what it
was enqueued as, and one given by name equals the same given by position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bide.clock import describe
from bide.errors import PayloadError
from bide.naming import task_name
from bide.payload.codec import Body, decode_body, encode_body
from bide.payload.serializers import Codec
from bide.states import FINISHED, LISTABLE, State
from bide.task import Function, signature_of, with_owner
from bide.testing.seen import JobSeen, write_call

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
