"""Options of jobs, tasks, schedules, groups and queues; durability.

    local     the server has the job; every enqueue waits for this
    replica   a replica has received the job (WAIT), so a failover to it does not lose the job
    fsync     the job is in the server's append-only file, on its disk (WAITAOF)

Before a script adds a job, it checks whether the server can give the durability. The commands that
wait follow the script in the same round trip on the same connection, because they count the writes
of that connection.

`Constraints` has the constraints of a job besides its due time, in the server's form:
`lua/include/constraints.lua`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, get_args
from urllib.parse import unquote

from bide.errors import DurabilityTimeout, DurabilityUnavailable, UsageError
from bide.model.dedup import DedupPolicy
from bide.model.durations import Duration, at_to_us, is_whole, to_us
from bide.model.ids import check_name
from bide.model.limits import Retention
from bide.model.retry import Retry
from bide.model.schedule import Missed

MOST_AT_ONCE: Final = 10_000
"""Maximum concurrency of a group."""

_WORD: Final = re.compile(r"(\w)=(\S+)")
_DIGITS: Final = 16

Effect = Literal["met", "run", "cancel"]

RunIf = Literal["completed", "ended", "failed"]
"""How the parents of a job must end for it to run."""

_RUN_IF: Final[dict[str, RunIf]] = {"-": "completed", "-e": "ended", "-f": "failed"}
_LETTERS: Final = {run_if: f"d={letters}" for letters, run_if in _RUN_IF.items()}


class Constraints(NamedTuple):
    """The constraints of a job."""

    begins_within_us: int | None = None
    """Microseconds after its due time, at which it expires if it has not started."""
    begins_by_us: int | None = None
    """When it expires if it has not started, in microseconds since the epoch."""
    expired_us: int | None = None
    """When it expired, in microseconds since the epoch."""
    group: str | None = None
    """Its group."""
    key: str | None = None
    """Its task and the key by which calls are deduplicated."""
    dedup: str | None = None
    """The dedup policy: a word that `bide.model.dedup.describe_dedup` reads."""
    when: str = ""
    """For a job with parents: its delay after they ended, or a moment."""
    priority: int | None = None
    """For a job with parents."""
    run_if: RunIf = "completed"
    """For a job with parents."""
    cause: str | None = None
    """The parent because of whose end it was cancelled."""

    @classmethod
    def read(cls, line: bytes | None) -> Constraints:
        """Parse the stored line; unreadable words are ignored."""
        words = dict(_WORD.findall((line or b"").decode("utf-8", "surrogateescape")))
        expires = words.get("x", "")
        return cls(
            _number(expires[1:]) if expires[:1] == "+" else None,
            _number(expires[1:]) if expires[:1] == "@" else None,
            _number(words.get("e", "")),
            words.get("g"),
            unquote(words["k"]) if "k" in words else None,
            words.get("f"),
            words.get("w", ""),
            _number(words.get("p", "")),
            _RUN_IF.get(words.get("d", ""), "completed"),
            words.get("c"),
        )

    @property
    def batches(self) -> bool:
        """Whether its body holds the items of a batch."""
        return (self.dedup or "").startswith("g")

    def effect(self, outcome: str) -> Effect:
        """Return the effect of a parent's end, `C`, `F` or `X`, like `lua/include/deps.lua`."""
        if outcome == "C" or self.run_if == "ended":
            return "met"
        return "run" if self.run_if == "failed" else "cancel"

    def due_us(self, now_us: int) -> int:
        """Return when a job with parents would be due if they ended now."""
        us = _number(self.when[1:]) or 0
        return now_us + us if self.when[:1] == "+" else max(us, now_us)

    def expires_us(self, due_us: int) -> int | None:
        """Return when a job with this due time expires; None if it does not expire."""
        if self.begins_within_us is not None:
            return due_us + self.begins_within_us
        return self.begins_by_us


def write_constraints(
    expires: Duration | datetime | None = None,
    group: str | None = None,
    group_concurrency: int | None = None,
    usual_concurrency: int | None = None,
    dedup: str = "",
    waits: bool = False,
    run_if: RunIf | None = None,
) -> str:
    """Encode constraints as the stored line; empty if there are none.

    `usual_concurrency` is the default of `group_concurrency`. `dedup` comes from
    `bide.model.dedup.write_dedup`. `run_if` is only for a job that `waits` for parents.
    """
    words = [_expires(expires), _group(group, group_concurrency, usual_concurrency), dedup]
    if waits:
        check_apart(dedup, waits)
        if run_if not in (None, *get_args(RunIf)):
            raise UsageError(f"run_if must be 'completed', 'ended' or 'failed', not {run_if!r}.")
        words.append(_LETTERS[run_if or "completed"])
    elif run_if is not None:
        raise UsageError(
            f"run_if={run_if!r} has no effect on a job without parents; name them with "
            "depends_on=[...]."
        )
    return " ".join(word for word in words if word)


def check_concurrency(count: int) -> int:
    """Check the concurrency of a group: an integer from 1 to 10,000."""
    if not is_whole(count, 1, MOST_AT_ONCE):
        raise UsageError(
            f"A group's jobs run 1 to {MOST_AT_ONCE} at once, not {count!r}; give an integer."
        )
    return count


def _group(group: str | None, concurrency: int | None, usual: int | None) -> str:
    if group is None:
        if concurrency is not None:
            raise UsageError(
                f"group_concurrency={concurrency!r} is said of a group; name it with group=..., or "
                "limit the workers instead."
            )
        return ""
    word = f"g={check_name(group, 'group')}"
    concurrency = usual if concurrency is None else concurrency
    return word if concurrency is None else f"{word} n={check_concurrency(concurrency)}"


def has_dedup(constraints: str) -> bool:
    """Whether a job with these constraints may be deduplicated."""
    return " f=" in constraints


def check_apart(constraints: str, waits: bool) -> None:
    """Refuse a job that has parents and a dedup policy."""
    if waits and has_dedup(constraints):
        raise UsageError(
            "A job that waits for others cannot be deduplicated; leave unique= or depends_on= "
            "out, or have it enqueue the job with unique=."
        )


def _expires(expires: Duration | datetime | None) -> str:
    if expires is None:
        return ""
    if isinstance(expires, datetime):
        return f"x=@{at_to_us(expires, 'expires')}"
    within_us = to_us(expires, "expires")
    if within_us <= 0:
        raise UsageError(
            f"expires={expires!r} would cancel the job before it is due; give a duration, counted "
            "from the due time, or an aware datetime."
        )
    return f"x=+{within_us}"


def _number(text: Any) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


Durability = Literal["local", "replica", "fsync"]

CONFIRM_MS = 3_000
"""Milliseconds to wait for a confirmation; less than the time-out of a reply."""

Kinds = tuple[Durability, ...]
"""The durabilities that a call waits for, in this order: none, `replica`, `fsync`, or both."""

_WAITS: Final[dict[Durability, tuple[str | int, ...]]] = {
    "replica": ("WAIT", 1),
    "fsync": ("WAITAOF", 1, 0),
}
"""The commands that wait, with the required numbers of disks and replicas."""

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
    """Return all durabilities that one call waits for."""
    asked = set(wanted)
    return () if asked <= LOCAL else tuple(kind for kind in _WAITS if kind in asked)


def waits(kinds: Kinds) -> list[tuple[Any, ...]]:
    """Return the calls that wait, to be sent after the calls that write."""
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
    """Return the error for an added job whose durability was not confirmed."""
    if isinstance(error, DurabilityTimeout):
        return error
    return DurabilityTimeout(f"The job was added, but the server did not confirm it ({error}).")


def cannot(lack: str) -> DurabilityUnavailable:
    """Return the error for a durability that the server cannot give."""
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
    """Return that error for a call that was sent before, and may have added the job."""
    return DurabilityTimeout(
        "The connection broke while the job was added, so it may exist, and no repeat could have "
        f"its durability confirmed: {error}"
    )


OnCrash = Literal["rerun", "fail"]


class Parent(Protocol):
    """A job on which others can depend: a `Job`, an `AsyncJob`, or the result of `prepare`."""

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
    """Maximum run time, up to 100 years; None for the default: the task's, or five minutes."""
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
    """Jobs of its group that may run at once, instead of one, up to 10,000; the latest job's value
    applies."""
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
    file, on its disk."""


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
    """A description of its jobs for people, at most 500 characters."""
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
    """Jobs of the group that may start per period, such as `"10/s"`; None: the queue's
    `group_rate`, or no limit."""
    burst: int | None
    """Jobs of the group that may start at once after a quiet time; the default is that of a queue.
    """


class QueueSettings(TypedDict, total=False):
    """Settings of `queue.configure`; other settings stay as they are."""

    retention: Retention | Literal["declared"]
    """The retention of finished jobs."""
    rate: str | None
    """Jobs that may start per period, by the server's clock: `"100/s"`, `"5/10m"`; None for no
    limit. This and the other limits are at most 1,000,000. `"declared"`, also for other settings:
    back to what the code declares."""
    burst: int | None
    """Jobs that may start at once after a quiet time; by default as many as the rate allows in 10
    ms, and at least one."""
    concurrency: int | Literal["declared"] | None
    """Jobs that may run at once, over all workers; None for no limit."""
    group_rate: str | None
    """Jobs that may start per period in each group that has no rate of its own; None for no limit.
    """
    group_burst: int | None
    """Jobs of such a group that may start at once after a quiet time; the default is that of
    `burst`."""


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
            there = f"there are {', '.join(sorted(known))}."
            if MEANT.get(name) in known:
                there = f"write {MEANT[name]}=... instead."
            elif kind is Options:
                there += " A function's own arguments are given where it is enqueued."
            raise UsageError(f"There is no option {name!r} here; {there}")


# -- names of other libraries

_THEIRS: Final = {
    "at": "eta _defer_until",
    "delay": "countdown _defer_by",
    "expires": "ttl _expires",
    "job_id": "task_id _job_id",
    "priority": "at_front",
    "retention": "result_ttl failure_ttl",
    "retry": "max_retries",
    "timeout": "time_limit job_timeout",
}
MEANT: Final = {name: name for name in (*Options.__annotations__, "queue")} | {
    name: option for option, names in _THEIRS.items() for name in names.split()
}
"""Options that callers may pass among a task's arguments by mistake, also options of other
libraries, with the right option."""

OF_TASKS: Final = {
    "delay": "task.enqueue(...), or with a delay task.later('10m').enqueue(...)",
    "apply_async": "task.options(delay=..., queue=...).enqueue(*args, **kwargs)",
    "send": "task.enqueue(...)",
    "send_with_options": "task.options(delay=...).enqueue(*args, **kwargs)",
    **dict.fromkeys(("s", "si", "signature", "message"), "task.prepare(...) for enqueue_many"),
    **dict.fromkeys(
        ("enqueue_many", "map", "starmap", "chunks"),
        "queue.enqueue_many(task.prepare(one) for one in ...)",
    ),
}
"""The calls of other libraries that enqueue a task, and the calls of bide."""

OF_QUEUES: Final = {
    "enqueue_in": "queue.enqueue(function, ..., delay='10m')",
    "enqueue_at": "queue.enqueue(function, ..., at=moment)",
    "enqueue_job": "queue.enqueue(function, ...)",
    "add": "queue.enqueue(function, ...)",
    "put": "queue.enqueue(function, ...)",
    "fetch_job": "queue.fetch(id)",
    "get_job": "queue.fetch(id)",
    "get_jobs": "queue.jobs(state)",
    "count": "queue.counts()",
    "size": "queue.counts()",
    "empty": "queue.purge()",
    "remove": "queue.cancel(id)",
    "delete": "queue.where(...).delete(), or queue.delete_many(ids)",
    "retry": "queue.where(state='failed').retry(), or queue.retry_many(ids)",
}
"""The same of queues."""

OF_JOBS: Final = {
    "get_id": "job.id",
    "get_status": "job.refresh().state",
    "status": "job.state",
    "ready": "job.refresh().finished",
    "is_finished": "job.refresh().finished",
    "is_failed": "job.refresh().state == 'failed'",
    "get": "job.wait(timeout=...)",
    "return_value": "job.refresh().result, or job.wait(timeout=...)",
    "latest_result": "job.refresh().result, or job.wait(timeout=...)",
    "exc_info": "job.error",
    "revoke": "job.cancel()",
    "forget": "job.delete()",
    "requeue": "job.retry()",
}
"""The same of jobs."""

OF_WORKERS: Final = {
    "work": "worker.run(burst=...)",
    "start": "worker.run(), or await worker.arun()",
    "request_stop": "worker.stop()",
    "shutdown": "worker.stop()",
}
"""The same of workers."""


def not_here(holder: object, name: str, elsewhere: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that is missing, with the call of bide that is meant."""
    call = elsewhere.get(name)
    hint = f"; write {call}" if call else ""  # Python may add ". Did you mean"
    return AttributeError(
        f"{type(holder).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=holder
    )
