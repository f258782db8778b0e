"""Options of jobs, tasks, schedules, groups and queues; durability.

    local     the server has taken the job: what every enqueue waits for
    replica   a replica has received it (WAIT), so that a failover to it loses nothing
    fsync     the server's append-only file has it, on its disk (WAITAOF)

Before a script adds a job, it checks whether the server can give the durability. The commands that
wait follow the script in the same round trip on the same connection, because they count the writes
of that connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypedDict, get_args

from bide.errors import DurabilityTimeout, DurabilityUnavailable, UsageError
from bide.model.constraints import RunIf
from bide.model.dedup import DedupPolicy
from bide.model.durations import Duration
from bide.model.limits import Retention
from bide.model.retry import Retry
from bide.model.schedule import Missed

Durability = Literal["local", "replica", "fsync"]

CONFIRM_MS = 3_000
"""Milliseconds for which a confirmation is waited for; less than a reply may take to come."""

Kinds = tuple[Durability, ...]
"""The durabilities that a call waits for, in this order: none, `replica`, `fsync`, or both."""

_WAITS: Final[dict[Durability, tuple[str | int, ...]]] = {
    "replica": ("WAIT", 1),
    "fsync": ("WAITAOF", 1, 0),
}
"""The commands that wait: for so many, on the server's disk and on those of replicas."""

_LACKS: Final = {
    "replica": "no replica is connected to the server; connect one",
    "appendonly": "the server keeps no append-only file; set `appendonly yes`",
    "WAITAOF": "the server has no WAITAOF; use Valkey, or Redis 7.2 or later",
    "INFO": "its user lacks the permission +info, which `bide acl` prints",
}

_MISSING: Final[dict[Durability, str]] = {
    "replica": "no replica has confirmed it in time",
    "fsync": "it was not on the server's disk in time (with `appendfsync no` it never is for sure)",
}


LOCAL: Final[frozenset[Durability]] = frozenset(("local",))


def check_durability(durability: Any) -> Durability:
    """Check a durability; `local` for None."""
    if durability is None:
        return "local"
    if durability not in get_args(Durability):
        raise UsageError(f"durability must be 'local', 'replica' or 'fsync', not {durability!r}.")
    return durability  # type: ignore[no-any-return]


def kinds_of(wanted: Iterable[Durability]) -> Kinds:
    """All that one call has to wait for."""
    asked = set(wanted)
    return () if asked <= LOCAL else tuple(kind for kind in _WAITS if kind in asked)


def waits(kinds: Kinds) -> list[tuple[Any, ...]]:
    """The calls that wait, to be sent behind those that write."""
    return [(*_WAITS[kind], CONFIRM_MS) for kind in kinds]


def missing(kinds: Kinds, replies: Sequence[Any]) -> Exception | None:
    """Return the error of the calls that wait: `DurabilityTimeout`, the server's error, or None.

    Each reply is the number of copies: on replicas, or on the disks of server and replicas.
    """
    for kind, reply in zip(kinds, replies, strict=True):
        if isinstance(reply, Exception):
            return reply
        if (reply[0] if isinstance(reply, list) else reply) < 1:
            return DurabilityTimeout(
                f"The job was added, but {_MISSING[kind]}: it may yet be lost."
            )
    return None


def unconfirmed(error: Exception) -> DurabilityTimeout:
    """The error for a job that was added, where `missing` has returned one."""
    if isinstance(error, DurabilityTimeout):
        return error
    return DurabilityTimeout(f"The job was added, but the server did not confirm it ({error}).")


def cannot(lack: str) -> DurabilityUnavailable:
    """The error for what the script has found that the server cannot do."""
    permission = lack.partition(":")[2]
    acl = "`bide acl --fsync`" if permission == "WAITAOF" else "`bide acl`"
    why = (
        f"its user lacks the permission +{permission.lower()}, which {acl} prints"
        if permission
        else _LACKS[lack]
    )
    return DurabilityUnavailable(
        f"The durability asked for cannot be had: {why}, or ask for less. Nothing was added."
    )


def doubtful(error: DurabilityUnavailable) -> DurabilityTimeout:
    """The same, where the call was sent before without an answer, and may have added the job."""
    return DurabilityTimeout(
        "The connection broke while the job was added, so it may exist, and no repeat could have "
        f"its durability confirmed: {error}"
    )


OnCrash = Literal["rerun", "fail"]


class Parent(Protocol):
    """A job that others can wait for: a `Job`, an `AsyncJob`, or what `prepare` returned."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...


Parents = str | Parent | Iterable[str | Parent]
"""The values of `depends_on=`."""


class _JobOptions(TypedDict, total=False):
    """Options of jobs, wherever they come from: a call, a task's decorator or a schedule."""

    priority: int | None
    """0 to 9, where 9 runs first; 5 by default."""
    timeout: Duration | None
    """Maximum run time; five minutes by default."""
    retry: Retry | int | None
    """The retry policy: `Retry(...)`, or a number of retries; 0 by default."""
    retention: Duration | None
    """Time for which the finished job is kept; by default as the queue is configured."""
    on_crash: OnCrash | None
    """If the worker dies: run the job again (`"rerun"`, the default), or let it fail (`"fail"`)."""
    expires: Duration | datetime | None
    """When the job expires if it has not started: a duration after its due time, or a moment."""
    group: str | None
    """Jobs of one group run one at a time, in due order; groups take turns."""
    group_concurrency: int | None
    """Jobs of its group that may run at once, instead of one; the latest job's value applies."""
    unique: DedupPolicy | None
    """The dedup policy: `Unique`, or the result of `debounce`, `throttle` or `batch`."""
    on_success: Callable[..., Any] | str | None
    """A function or task that the worker calls with the job and its result when the job has
    completed."""
    on_failure: Callable[..., Any] | str | None
    """A function or task that the worker calls with the job and its error when the job has failed
    for good."""


class TaskOptions(_JobOptions, total=False):
    """Options of a task's decorator for all its jobs; a job's own options take precedence."""

    delay: Duration | None
    """Delay from now, on the server's clock: seconds, a `timedelta`, or text such as `"30m"`. A
    negative delay means now."""
    durability: Durability | None
    """The confirmation that an enqueue waits for. `"local"`: the server's answer (the default).
    `"replica"`: a replica has received the job. `"fsync"`: the job is in the server's append-only
    file, on its disk.."""


class ScheduleOptions(_JobOptions, total=False):
    """Options of a schedule and of its jobs; `Options` explains those that are not about times."""

    start: datetime | None
    """The schedule does not fire before this moment."""
    end: datetime | None
    """The schedule does not fire after this moment."""
    limit: int | None
    """Maximum number of times that it fires."""
    missed: Missed
    """The rule for times that passed while no worker was running. `"once"` (the default) fires the
    last of them, `"all"` fires each of them, `"skip"` fires only those of the last minute."""
    jitter: Duration | None
    """Maximum time by which a job is due after its time. The schedule's name and the time determine
    the actual value."""
    description: str | None
    """A line for people who look at its jobs: at most 500 characters."""
    meta: Mapping[str, Any] | None
    """Your own notes on its jobs: plain values, stored with them."""


class Options(TaskOptions, total=False):
    """The options of `enqueue_call`, `prepare` and `Task.options`; all of them have a default."""

    at: datetime | None
    """An aware `datetime` instead of a delay; a moment in the past means now."""
    job_id: str | None
    """Your own id: while a job has it, enqueueing it again changes nothing."""
    description: str | None
    """A description for people, at most 500 characters; by default the call."""
    depends_on: Parents | None
    """Jobs that must complete first: a job, an id, or a list of these. The delay counts from their
    end. If one of them fails, the job is cancelled, unless `run_if` is set."""
    run_if: RunIf | None
    """The condition on the jobs of `depends_on`; a job that is removed or expires counts as
    cancelled.

    - `"completed"` (the default): the job runs once all have completed. If one fails or is
      cancelled, the job is cancelled.
    - `"ended"`: the job runs once all have ended in any way.
    - `"failed"`: the job runs as soon as one fails or is cancelled. If all complete, the job is
      cancelled.
    """
    meta: Mapping[str, Any] | None
    """Your own notes on the job: plain values, stored with it, never passed to the function."""


class GroupSettings(TypedDict, total=False):
    """Settings of `queue.group(name).configure`; other settings stay as they are."""

    concurrency: int | None
    """Jobs of the group that may run at once; None: the value of the latest job, or one."""
    rate: str | None
    """Jobs of the group that may start per period, such as `"10/s"`; None: no limit."""
    burst: int | None
    """Jobs of the group that may start at once after a quiet time; the default is that of a queue.
    """


class QueueSettings(TypedDict, total=False):
    """Settings of `queue.configure`; other settings stay as they are."""

    retention: Retention
    """The retention of finished jobs."""
    rate: str | None
    """Jobs that may start per period, by the server's clock: `"100/s"`, `"5/10m"`; None for no
    limit."""
    burst: int | None
    """Jobs that may start at once after a quiet time; by default as many as the rate allows in 10
    ms, and at least one."""
    concurrency: int | None
    """Jobs that may run at once, over all workers; None for no limit."""


CONSTRAINTS: Final = frozenset(
    (
        *("expires", "group", "group_concurrency", "unique"),
        *("depends_on", "run_if"),
    )
)
"""The options that become constraints."""


def check_names(options: Iterable[str], kind: type = Options) -> None:
    """Refuse options that do not exist."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            there = ", ".join(sorted(known))
            raise UsageError(
                f"There is no option {name!r} here; there are {there}. A function's own "
                "arguments are given where it is enqueued."
            )
