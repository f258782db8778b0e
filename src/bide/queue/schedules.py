"""The logic that schedules of blocking and awaited queues share, without I/O.

Workers set the schedules that decorators declare for their queues, when they start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar, Unpack, cast

from bide.errors import ScheduleNotFound, UsageError
from bide.model.constraints import Constraints, has_dedup
from bide.model.durations import Duration, to_us
from bide.model.ids import short_id
from bide.model.options import ScheduleOptions, check_names
from bide.model.payload.body import of_schedule
from bide.model.payload.signing import Seal
from bide.model.schedule import (
    Missed,
    Schedule,
    Timing,
    check_missed,
    check_schedule_name,
    timing_of,
)
from bide.protocol.commands.enqueue import Receipt
from bide.protocol.commands.schedules import Draft, Page
from bide.protocol.keys import Keys
from bide.queue.batching import not_unique
from bide.queue.core import QueueCore
from bide.tasks.registry import task_name
from bide.tasks.task import Function

T = TypeVar("T")
Decorator = TypeVar("Decorator")
"""`TaskDecorator`, or `AsyncTaskDecorator`."""


_LATER: Final = "have it call a task that enqueues the job that waits"
_NEVER: Final = {
    "delay": "they are due at its times; give it others, or start= or jitter=",
    "job_id": "the id of each is the schedule's name and the time",
    "durability": "workers create them when they claim, so no caller waits for a confirmation",
    "depends_on": f"the jobs that each could wait for do not exist yet; {_LATER}",
    "run_if": f"they wait for no other; {_LATER}",
}
"""Options of other jobs, and why those of a schedule cannot have them."""


class ScheduleSpec(NamedTuple):
    """A declared schedule; its job is prepared when it is set."""

    queue: QueueCore[Any]
    name: str
    task: Function | str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    timing: Timing
    missed: Missed
    jitter_us: int
    options: ScheduleOptions

    def draft(self, keys: Keys, seal: Seal) -> Draft:
        """Prepare the schedule for the queue with these keys.

        Raises:
            UsageError: an option is invalid, or the arguments do not fit the function.
            PayloadError: the queue's serializer cannot encode the arguments.
        """
        job = self.queue.prepare(self.task, self.args, self.kwargs, **self.options)
        if Constraints.read(job.terms.encode()).batches:
            raise UsageError(
                f"{task_name(self.task)} batches the items of many calls, but a schedule creates "
                "each job separately; schedule a task that calls queue.batch(...)."
            )
        body = of_schedule(job.body, self.name)
        if has_dedup(job.terms):  # it may replace the body of another job
            body = seal.sign("fold", "", body)
        else:
            body = seal.sign("schedule", self.name, body)
        return Draft(
            name=self.name,
            timing=self.timing,
            missed=self.missed,
            jitter_us=self.jitter_us,
            priority=job.priority,
            task=task_name(self.task),
            body=body,
            terms=job.terms,
        )


def plan(
    queue: QueueCore[Any],
    name: str,
    task: Function | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: ScheduleOptions,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    at: Sequence[datetime] | None = None,
    tz: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    limit: int | None = None,
    missed: Missed = "once",
    jitter: Duration | None = None,
) -> ScheduleSpec:
    """Check a schedule; arguments and errors as for `Schedules.upsert`."""
    for option in options:
        if option in _NEVER:
            raise UsageError(f"The jobs of a schedule have no {option}=: {_NEVER[option]}.")
    check_names(options, ScheduleOptions)
    timing = timing_of(cron, every, at, tz, start, end, limit)
    jitter_us = 0 if jitter is None else to_us(jitter, "jitter")
    name = check_schedule_name(name)
    return ScheduleSpec(
        queue, name, task, args, kwargs, timing, check_missed(missed), jitter_us, options
    )


_declared: Final[dict[tuple[str, str], ScheduleSpec]] = {}


def declare(
    queue: QueueCore[Any],
    function: T,
    name: str | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: ScheduleOptions,
    **when: Any,
) -> T:
    """Declare a schedule of a task, for the workers of its queue to set; return the task.

    Raises:
        UsageError: another schedule of the queue has the name, or as for `plan`.
    """
    task: Any = function
    name = task_name(task) if name is None else name
    planned = plan(queue, name, task, args, kwargs, options, **when)
    known = _declared.get((queue.name, name))
    if known is not None and (known.task is task or task_name(known.task) != task_name(task)):
        raise UsageError(
            f"Queue {queue.name} has a schedule {name!r} already; give each a name of its own with "
            "name=."
        )
    _declared[queue.name, name] = planned
    return function


class Declaring(Generic[Decorator]):
    """The decorators that declare schedules, for blocking and awaited queues."""

    _task_class: type[Any]
    """`Task`, or `AsyncTask`."""

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        tz: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed = "once",
        jitter: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Decorator:
        """Declare a schedule of a task; workers that serve the queue set it when they start.

            @queue.cron("0 9 * * 1-5", tz="Europe/Paris")
            def report() -> None: ...

        Args:
            expression: five fields, such as `"0 9 * * 1-5"`.
            name: the schedule's name; by default the task's.
            tz: the time zone, as for `Schedules.upsert`, like all arguments that follow.
            args: positional arguments.
            kwargs: keyword arguments.
            start: the schedule does not fire before this moment.
            end: the schedule does not fire after this moment.
            limit: maximum number of times that it fires.
            missed: what happens with times that passed while no worker was running.
            jitter: maximum time by which a job is due after its time.
            options: options of its jobs.

        Raises:
            UsageError: an argument is invalid, or the queue has another schedule of this name.
        """
        return self._declaring(
            name,
            args,
            kwargs,
            options,
            cron=expression,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            missed=missed,
            jitter=jitter,
        )

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed = "once",
        jitter: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Decorator:
        """Declare a schedule of a task with an interval, such as `"90s"`; see `cron`."""
        return self._declaring(
            name,
            args,
            kwargs,
            options,
            every=interval,
            start=start,
            end=end,
            limit=limit,
            missed=missed,
            jitter=jitter,
        )

    def _declaring(
        self,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: ScheduleOptions,
        **when: Any,
    ) -> Decorator:
        queue = cast("QueueCore[Any]", self)
        plan(queue, "x", "x:x", (), None, options, **when)  # raise where the mistake is
        kind = self._task_class

        def scheduled(function: Any) -> Any:
            task = function if isinstance(function, kind) else kind(function, queue, {})
            return declare(queue, task, name, args, kwargs, options, **when)

        return cast("Decorator", scheduled)


def declared(queue: str | None = None) -> list[ScheduleSpec]:
    """Return the schedules that this process has declared: for one queue, or for all."""
    return [plan for (name, _), plan in _declared.items() if queue in (None, name)]


def found(schedule: Schedule | None, name: str, queue: str) -> Schedule:
    """Return the schedule.

    Raises:
        ScheduleNotFound: it is None.
    """
    if schedule is None:
        raise ScheduleNotFound(
            f"Queue {queue} has no schedule {short_id(name)!r}; `bide cron ls` lists those "
            "that there are."
        )
    return schedule


def ran(receipt: Receipt | None, name: str, queue: str) -> Receipt:
    """Check the receipt of a schedule that was run now.

    Raises:
        ScheduleNotFound: the schedule does not exist.
        DuplicateJob: another job holds the key, and `unique` says to reject.
    """
    if receipt is None:
        found(None, name, queue)
    assert receipt is not None
    if receipt.result == "rejected":
        raise not_unique(receipt.id, f"under which the jobs of the schedule {name!r} fold")
    return receipt


def by_name(pages: Sequence[Page]) -> list[Schedule]:
    """Return all schedules of these pages, each once, sorted by name."""
    known = {one.name: one for page in pages for one in page.schedules}
    return [known[name] for name in sorted(known)]
