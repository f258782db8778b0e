"""The logic that schedules of blocking and awaited queues share, without I/O.

Workers set the schedules that decorators declare for their queues, when they start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from bide.errors import ScheduleNotFound, UsageError
from bide.model.durations import to_us
from bide.model.ids import short_id
from bide.model.options import Constraints, ScheduleOptions, check_names, has_dedup
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
from bide.protocol.commands.schedules import Draft, SchedulePage
from bide.protocol.keys import Keys
from bide.queue.core import QueueCore, not_unique
from bide.tasks.registry import task_name
from bide.tasks.task import Function, known

_LATER: Final = "schedule a task that enqueues the dependent job"
_NEVER: Final = {
    "delay": "its times decide when they are due; change these, or pass start= or jitter=",
    "job_id": "the id of each job is the schedule's name and the time",
    "durability": "workers create them when they claim, so no caller waits for a confirmation",
    "depends_on": f"their parents do not exist when the schedule is set; {_LATER}",
    "run_if": f"they have no parents; {_LATER}",
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
    options: Mapping[str, Any]
    """The options of its jobs."""

    def draft(self, keys: Keys, seal: Seal) -> Draft:
        """Prepare the schedule for the queue with these keys."""
        job = self.queue.prepare(self.task, self.args, self.kwargs, **self.options)
        if Constraints.read(job.constraints.encode()).batches:
            raise UsageError(
                f"{task_name(self.task)} batches the items of many calls, but a schedule creates "
                "each job separately; schedule a task that calls queue.batch(...)."
            )
        body = of_schedule(job.body, self.name)
        if has_dedup(job.constraints):  # it may replace the body of another job
            body = seal.sign("dedup", "", body)
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
            constraints=job.constraints,
        )


_OF_TIMES: Final = ("start", "end", "limit")
_OF_SCHEDULE: Final = (*_OF_TIMES, "missed", "jitter")


def plan(
    queue: QueueCore[Any],
    name: str,
    task: Function | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: ScheduleOptions,
    **times: Any,
) -> ScheduleSpec:
    """Check a schedule; arguments as for `Schedules.upsert`, `times` are `cron`, `every`, ..."""
    for option in options:
        if option in _NEVER:
            raise UsageError(f"The jobs of a schedule cannot have {option}=: {_NEVER[option]}.")
    check_names(options, ScheduleOptions)
    given: dict[str, Any] = {**options}
    timing = timing_of(**times, **{key: given[key] for key in _OF_TIMES if key in given})
    jitter = options.get("jitter")
    jitter_us = 0 if jitter is None else to_us(jitter, "jitter")
    missed, name = check_missed(options.get("missed", "once")), check_schedule_name(name)
    of_jobs = {key: value for key, value in given.items() if key not in _OF_SCHEDULE}
    return ScheduleSpec(queue, name, task, args, kwargs, timing, missed, jitter_us, of_jobs)


_declared: Final[dict[tuple[str, str], ScheduleSpec]] = {}


def declaring(
    queue: QueueCore[Any],
    kind: type[Any],
    name: str | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: ScheduleOptions,
    **times: Any,
) -> Any:
    """Return the decorator that declares a schedule of a task; arguments as for `plan`.

    `kind` is `Task` or `AsyncTask`: what a plain function becomes. `name` is the task's by default.
    """
    # Raise where the mistake is: the name and the task are known only when it decorates.
    planned = plan(queue, "x", "x:x", args, kwargs, options, **times)

    def scheduled(function: Any) -> Any:
        task = function if isinstance(function, kind) else kind(function, queue, {})
        own = check_schedule_name(task_name(task) if name is None else name)
        known = _declared.get((queue.name, own))
        if known is not None and (known.task is task or task_name(known.task) != task_name(task)):
            raise UsageError(
                f"Queue {queue.name} has a schedule {own!r} already; give each a name of its own "
                "with name=."
            )
        _check_arguments(task, own, args, kwargs)
        _declared[queue.name, own] = planned._replace(name=own, task=task)
        return task

    return scheduled


def _check_arguments(
    task: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> None:
    """Raise at the decorator if the schedule's arguments do not fit the task."""
    signature = known(task).signature
    if signature is None:
        return
    try:
        signature.check(args, kwargs or {}, task_name(task))
    except UsageError as error:
        raise UsageError(
            f"Schedule {name!r}: {str(error).rstrip('.')}; the decorator passes args= and kwargs= "
            "to each run."
        ) from None


def declared(queue: str | None = None) -> list[ScheduleSpec]:
    """Return the schedules that this process has declared: for one queue, or for all."""
    return [plan for (name, _), plan in _declared.items() if queue in (None, name)]


def found(schedule: Schedule | None, name: str, queue: str) -> Schedule:
    """Return the schedule, or raise `ScheduleNotFound`."""
    if schedule is None:
        raise ScheduleNotFound(
            f"Queue {queue} has no schedule {short_id(name)!r}; `bide cron ls` lists the schedules."
        )
    return schedule


def ran(receipt: Receipt | None, name: str, queue: str, id: str) -> Receipt:
    """Check the receipt of a schedule that was run now."""
    if receipt is None:
        found(None, name, queue)
    assert receipt is not None
    if receipt.id == id:  # a call that is retried after a lost reply finds its own job
        return msgspec.structs.replace(receipt, result="created")
    if receipt.result == "rejected":
        raise not_unique(receipt.id, f"which deduplicates the jobs of the schedule {name!r}")
    return receipt


def by_name(pages: Sequence[SchedulePage]) -> list[Schedule]:
    """Return all schedules of these pages, each once, sorted by name."""
    known = {one.name: one for page in pages for one in page.schedules}
    return [known[name] for name in sorted(known)]
