"""The properties that blocking and awaited jobs share, and why a job does not run, without I/O.

`explain` is a pure function of what was read. Each reason is one function, in the order of the
result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from bide.client import config
from bide.errors import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobStateError,
    JobWaitTimeout,
    PayloadError,
    ResultDropped,
)
from bide.logs import Log, plain
from bide.model.dedup import EnqueueResult
from bide.model.durations import describe, from_us
from bide.model.history import Attempt, LogLine, Progress
from bide.model.ids import made_us, short_id
from bide.model.job import FINISHED, Snapshot, State
from bide.model.options import OF_JOBS, Durability, not_here
from bide.model.payload.body import Body, ErrorInfo, is_pickled
from bide.model.payload.signing import Seal
from bide.model.retry import Retry
from bide.model.schedule import SCHEDULE_MARK, time_of
from bide.protocol.commands.enqueue import GATE, Receipt
from bide.protocol.commands.jobs import ChangeResult, QueueStats
from bide.protocol.commands.queues import WorkerInfo
from bide.tasks.task import known_policy, signature_of

log = Log("bide.queue")

R = TypeVar("R")
T = TypeVar("T")


class JobView(Generic[R]):
    """A job as it was when it was last read."""

    queue: Any

    def __init__(
        self,
        queue: Any,
        id: str,
        receipt: Receipt | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Set up; without a queue, only the values are shown."""
        self.queue = queue
        self.id: Final = id
        """The job's id."""
        self._receipt = receipt
        self._due_us = receipt.due_us if receipt else 0
        self._snapshot = snapshot

    @property
    def _seal(self) -> Seal | None:
        """The seal that checks signatures before pickles are read; None to read no pickles."""
        return None

    def __repr__(self) -> str:
        state = f" {self._snapshot.state}" if self._snapshot else ""
        return f"<{type(self).__name__} {short_id(self.id)}{state}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the call of bide, for calls that other libraries have."""
            raise not_here(self, name, OF_JOBS)

    def _seen(self) -> Snapshot:
        return self._unread() if self._snapshot is None else self._snapshot

    @property
    def _place(self) -> str:
        """The expected place of the job, for errors."""
        return ""

    def _not_found(self) -> JobNotFound:
        return not_found(self.id, self._place)

    def _unread(self) -> Snapshot:
        """Read a job that was not read yet, where that is possible."""
        raise NotImplementedError

    def _body(self) -> Body:
        """Decode task, arguments and options; a pickle is read only if its signature is good."""
        seen = self._seen()
        seal = self._seal
        return seen.body(seal is not None and seal.check("job", self.id, seen.raw_body))

    @property
    def created(self) -> bool | None:
        """After an enqueue: False if the id or key was taken (no job was added). Otherwise None."""
        return self._receipt.created if self._receipt else None

    @property
    def enqueue_result(self) -> EnqueueResult | None:
        """After an enqueue: its effect. Otherwise None.

        - `"created"`: it added a job.
        - `"duplicate"`: a job has the id or holds the unique key; nothing was changed.
        - `"replaced"`: the job that holds the unique key has this call's arguments.
        - `"debounced"`, `"throttled"`: the same, by a debounce or a throttle.
        - `"batched"`: the call's item was added to the batch.
        """
        return self._receipt.result if self._receipt else None

    @property
    def confirmed(self) -> Durability | None:
        """After an enqueue: the durability that was confirmed. Otherwise None."""
        return self._receipt.confirmed if self._receipt else None

    @property
    def state(self) -> State:
        """The job's state."""
        return self._seen().state

    @property
    def due(self) -> datetime:
        """When the job is due, or was due if it has started.

        For a blocked job: when it would be due if its parents ended now.
        """
        if self._snapshot is None and self._due_us:
            return from_us(self._due_us)
        return from_us(self._seen().due_us)

    @property
    def enqueued(self) -> datetime | None:
        """When the job was enqueued, by the clock of the program that enqueued it.

        The id contains this time. None for a job with an id of your own, and for a job of a
        schedule, of which `schedule_time` is known.
        """
        return enqueued(self.id)

    @property
    def task(self) -> str:
        """The task's name."""
        return self._seen().task

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they are stored: plain values.

        Raises:
            PayloadError: they cannot be read.
        """
        return tuple(self._body().args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they are stored: plain values; raises as `args` does."""
        return dict(self._body().kwargs)

    @property
    def description(self) -> str:
        """The `description=` of the enqueue; otherwise the call, shortened."""
        try:
            head = self._seen().head
            text = head.description
            if text is None and head.codec == "json":
                text = f"{head.task}({call(head.args, head.kwargs)})"
        except PayloadError:
            return self.task
        text = head.task if text is None else text
        return text if len(text) <= _LONGEST_CALL else f"{text[: _LONGEST_CALL - 1]}…"

    @property
    def meta(self) -> dict[str, Any]:
        """The notes that the producer gave with `meta=`."""
        return dict(self._seen().head.meta or {})

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that created it; None for a job that was enqueued."""
        return self._seen().head.schedule

    @property
    def schedule_time(self) -> datetime | None:
        """The time of its schedule; None for a job that was enqueued, or that `run` created."""
        return time_of(self.id, self.schedule)

    @property
    def priority(self) -> int | None:
        """0 to 9; 9 runs first. None if it is not known any more."""
        return self._seen().priority

    @property
    def attempt(self) -> int:
        """Number of attempts that have started and count."""
        return self._seen().attempt

    @property
    def max_attempts(self) -> int | None:
        """Maximum number of attempts, by `retry_policy`; None if that is not known here."""
        policy = self.retry_policy
        return None if policy is None else policy.max + 1

    @property
    def retry_policy(self) -> Retry | None:
        """The retry policy of the job, otherwise of its task.

        None if the job has none of its own and this process does not have the task.

        Raises:
            PayloadError: the job cannot be read.
        """
        return self._option(self._seen().head.retry, "retry")

    @property
    def timeout(self) -> float | None:
        """Seconds that a run may take; None and errors as for `retry_policy`."""
        return self._option(self._seen().head.timeout, "timeout")

    @property
    def retention(self) -> float | None:
        """Seconds for which the finished job is kept, if it or its task has that option.

        None if the queue decides, or this process does not have the task. Errors as for
        `retry_policy`.
        """
        return self._option(self._seen().head.keep, "keep")

    def _option(self, own: T | None, name: str) -> T | None:
        """Return an option of the job; otherwise that of its task, if this process has it."""
        policy = None if own is not None else known_policy(self.task)
        return own if policy is None else getattr(policy, name)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The latest failed attempts, oldest first: errors, and workers that died."""
        return self._seen().notes.attempts

    @property
    def result(self) -> R | None:
        """The result of the task; None if there is none.

        If this process has the task, the result is converted to its annotated return type.

        Raises:
            PayloadError: the stored result cannot be read.
            ResultDropped: the server dropped the result, because the results of its queue exceeded
                their budget of bytes.
        """
        seen = self._seen()
        seal, raw = self._seal, seen.raw_result or b""
        dropped = seen.run.dropped if seen.run else 0
        if dropped and not raw:
            raise ResultDropped(
                f"The server dropped the result of job {short_id(self.id)} ({dropped:,} bytes), "
                "because the results of its queue exceeded their budget; store large results "
                "elsewhere and return their id, or raise Retention(results=...) with "
                "queue.configure()."
            )
        is_allowed = seal is not None and is_pickled(raw) and seal.check("result", self.id, raw)
        value = seen.result(is_allowed)
        signature = None if value is None else signature_of(seen.task, seen.task)
        return value if signature is None else signature.convert_result(value)  # type: ignore[no-any-return]

    @property
    def error(self) -> ErrorInfo | None:
        """The last error, also of a job that will be retried."""
        return self._seen().notes.error

    @property
    def progress(self) -> Progress | None:
        """The progress that the job last reported."""
        return self._seen().notes.progress

    @property
    def logs(self) -> tuple[LogLine, ...]:
        """The latest lines that the job logged."""
        return self._seen().notes.logs

    @property
    def lateness(self) -> float | None:
        """Seconds from due to start of the latest attempt; None before the first."""
        return self._seen().lateness

    @property
    def started(self) -> datetime | None:
        """When the latest attempt started; None before the first."""
        run = self._seen().run
        return from_us(run.started_us) if run else None

    @property
    def finished(self) -> datetime | None:
        """When the job ended; None before that."""
        finished_us = self._seen().finished_us
        return from_us(finished_us) if finished_us else None

    @property
    def run_time(self) -> float | None:
        """Seconds that the latest attempt took; of one that runs, until the job was read.

        None before the first attempt, and if the end of the latest attempt is not known: after a
        snooze, a release, or the death of the whole worker.
        """
        seen = self._seen()
        run = seen.run
        if run is None or seen.is_item:
            return None
        if seen.state == State.ACTIVE:
            return max(0, seen.now_us - run.started_us) / 1e6
        if seen.state in FINISHED and run.settled in _ENDED:
            return max(0, seen.finished_us - run.started_us) / 1e6
        for attempt in self.attempts[-1:]:
            if attempt.error is not None and attempt.started == from_us(run.started_us):
                return (attempt.ended - attempt.started).total_seconds()
        return None

    @property
    def worker(self) -> str | None:
        """The worker that ran the latest attempt; None before the first."""
        run = self._seen().run
        return run.worker if run else None

    @property
    def expires(self) -> datetime | None:
        """When the job expires if it has not started; None if it does not expire."""
        expires_us = self._seen().expires_us
        return None if expires_us is None else from_us(expires_us)

    @property
    def expired(self) -> bool:
        """Whether it was cancelled because it had not started in time."""
        return self._seen().constraints.expired_us is not None and self.state == State.CANCELLED

    @property
    def group(self) -> str | None:
        """The job's group; None if it has none."""
        return self._seen().constraints.group

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the jobs that it waits or waited for.

        A parent in another queue is `{queue}id`. `queue.parents(job.id)` reads them, with their
        results.

        Raises:
            PayloadError: they cannot be read.
        """
        return tuple(self._seen().head.parents)

    @property
    def cancelled_by(self) -> str | None:
        """The id of the parent whose end cancelled this job; otherwise None."""
        return self._seen().constraints.cause if self.state == State.CANCELLED else None

    @property
    def cancelling(self) -> bool:
        """Whether the job runs and was asked to stop."""
        return self._seen().asked

    def _outcome(self) -> R:
        """Return the result of a finished job, or raise `JobFailed` or `JobCancelled`."""
        seen = self._seen()
        if seen.state == State.FAILED:
            raise failure(self.id, self.task, self.error)
        if seen.state == State.CANCELLED:
            why = "cancelled: it had not started when it expired" if self.expired else "cancelled"
            if seen.constraints.cause:
                cause = short_id(seen.constraints.cause)
                why = f"cancelled: job {cause}, that it waited for, did not complete"
            cancelled = JobCancelled(f"Job {short_id(self.id)} ({self.task}) was {why}.")
            cancelled.job_id = self.id
            raise cancelled
        return self.result  # type: ignore[return-value]

    def _ended(self) -> bool:
        return self._seen().state in FINISHED

    def _late(self, timeout: float) -> JobWaitTimeout:
        cure = "wait longer, or check whether a worker serves its queue"
        if config.overridden().clock:
            cure = "in a test bed, call its run() first"
        return JobWaitTimeout(
            f"Job {short_id(self.id)} is {self._seen().state} after {timeout:g} s, and is not "
            f"cancelled; {cure}."
        )

    def _moved(self, moved: ChangeResult, verb: str, from_: str) -> None:
        if moved.result == "gone":
            raise self._not_found()
        if moved.result != "ok":
            raise JobStateError(
                f"Job {short_id(self.id)} is {moved.result}, and only {from_} can be {verb}."
            )
        self._snapshot = None
        self._due_us = moved.due_us

    def _removed(self, word: str) -> bool:
        if word == "active":
            raise JobStateError(
                f"Job {short_id(self.id)} is active; wait for its end before deleting it."
            )
        return word == "ok"


_ENDED: Final = ("C", "F", "X")
"""Outcomes with which a run ended its job (`lua/settle.lua`)."""


def enqueued(id: str) -> datetime | None:
    """Return when a job was enqueued, from its id; None if the id does not contain it.

    The id of a job that a schedule ran at once ends with such an id.
    """
    us = made_us(id.rpartition(SCHEDULE_MARK)[2])
    return None if us is None else from_us(us)


_LONGEST_CALL: Final = 500


def call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Write arguments as in source code: `42, name="x"`."""
    shown = [written(value) for value in args]
    shown += [f"{name}={written(value)}" for name, value in kwargs.items()]
    return ", ".join(shown)


def written(value: Any) -> str:
    """Write any value as JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def error_line(error: ErrorInfo) -> str:
    """`ValueError: no such order`."""
    return f"{error.type}: {error.message}" if error.message else error.type


LOOK_EVERY: Final = 2.0
"""Seconds after which a waiter checks the job without a message: the cost of a lost message."""

WARN_AFTER: Final = 10.0
"""Seconds after which a wait logs why its job does not run, if waiting does not change that."""

ANNOUNCE_US: Final = 30_000_000
"""Microseconds for which a wait is noted on the server; each check renews it."""


PENDING: Final = ("due", "blocked", "active")
"""The replies of `await_end` for a job that has not ended."""


def failure(id: str, task: str, error: ErrorInfo | None) -> JobFailed:
    """Return the error for a caller that waited for a job that has failed."""
    what = f": {error.type}: {error.message}" if error else ""
    failed = JobFailed(f"Job {short_id(id)} ({task}) failed{what}")
    failed.error = error
    return failed


def not_found(id: str, place: str = "") -> JobNotFound:
    """Return the error for an id without a job; `place` is where it was expected."""
    return JobNotFound(
        f"There is no job {short_id(id)!r}{place}; check the id, the queue and the server, or "
        "whether the job was deleted or removed at the end of its retention."
    )


Kind = Literal[
    "blocked",
    "not_due",
    "paused",
    "held",
    "limited",
    "concurrency",
    "no_worker",
    "not_served",
    "busy",
    "next",
    "group",
    "group_paused",
    "group_limited",
]


class Reason(NamedTuple):
    """A reason why a job does not run."""

    kind: Kind
    """The kind of the reason, for programs."""
    text: str
    """A sentence without the full stop, for people."""
    until: datetime | None = None
    """When the reason ends, if that is known."""


_LASTING: Final = ("paused", "group_paused", "no_worker", "not_served")
"""The kinds of reasons that only a person ends."""


def warn_held(id: str, reasons: Sequence[Reason]) -> None:
    """Log why a job that a program waits for does not run, if only a person can change that."""
    held = [reason.text for reason in reasons if reason.kind in _LASTING]
    if held:
        log.warning("a program waits for the job %s: %s", short_id(id), "; ".join(held))


class Read(NamedTuple):
    """The input of `explain`."""

    queue: str
    job: Snapshot
    counts: QueueStats
    workers: Sequence[WorkerInfo]
    """The workers of all queues."""

    @property
    def serving(self) -> list[WorkerInfo]:
        """The workers that serve the job's queue."""
        return [worker for worker in self.workers if self.queue in worker.about.queues]


def explain(read: Read) -> list[Reason]:
    """Return the reasons why a job does not run; none if it runs or has ended.

    The reasons that concern the job itself come first. If there are no others, the job is next in
    line, or all workers are busy.
    """
    if read.job.state == State.ACTIVE or read.job.state in FINISHED:
        return []
    found = [reason for look in _LOOKS for reason in look(read)]
    return found or [*_in_line(read)]


def _blocked(read: Read) -> Iterator[Reason]:
    if read.job.state != State.BLOCKED:
        return
    named = [short_id(id) for id in read.job.awaited if id != GATE]
    if len(named) < len(read.job.awaited):
        named.append("jobs that its producer has not named yet")
    more = read.job.awaits - len(read.job.awaited)
    text = ", ".join(named) + (f" and {more:,} more" if more else "")
    yield Reason("blocked", f"it waits for {text}")


def _due(read: Read) -> Iterator[Reason]:
    if read.job.state == State.DELAYED and not read.job.is_given_back:
        yield _until("not_due", "it is not due", read.job.due_us, read)


def _paused(read: Read) -> Iterator[Reason]:
    if read.counts.paused:
        text = f"the queue is paused; `bide queues resume {read.queue}` ends that"
        yield Reason("paused", text)


def _limits(read: Read) -> Iterator[Reason]:
    limits, active = read.counts.limits, read.counts.active
    if limits.held_until:
        text = f"a job holds the queue until {limits.held_until:%F %T} UTC"
        yield Reason("held", text, limits.held_until)
    if read.job.state in (State.DELAYED, State.BLOCKED):  # these may be over by then
        return
    if limits.limited_until:
        text = f"the rate of {limits.rate} is used up"
        yield Reason("limited", text, limits.limited_until)
    if limits.concurrency and active >= limits.concurrency:
        yield Reason("concurrency", f"{active} jobs run, and concurrency is {limits.concurrency}")


def _group(read: Read) -> Iterator[Reason]:
    turn, name = read.job.turn, read.job.constraints.group
    if turn is None or name is None:
        return
    before = f"{turn.before:,} of them are before it"
    if turn.paused:
        import shlex  # only here

        resume = shlex.join(["bide", "queues", "resume", read.queue, "--group", name])
        yield Reason("group_paused", f"its group {name} is paused; `{resume}` ends that")
    elif read.job.state == State.DELAYED:
        return
    elif turn.running >= turn.concurrency:
        text = f"{turn.running} of its group {name} run, which is its limit"
        yield Reason("group", f"{text}; {before}" if turn.before else text)
    elif turn.free_us > read.job.now_us:
        yield _until(
            "group_limited", f"the rate of its group {name} is used up", turn.free_us, read
        )
    elif turn.before:
        yield Reason("group", f"jobs of its group {name} take turns; {before}")


def _workers(read: Read) -> Iterator[Reason]:
    serving = read.serving
    if not serving:
        yield Reason("no_worker", f"no live worker serves the queue {read.queue}")
    elif all(worker.about.paused for worker in serving):
        name = short_id(serving[0].name)
        text = f"all workers of the queue are paused; `bide workers resume {name}` ends that"
        yield Reason("no_worker", text)
    elif all(read.job.task in worker.about.unknown_tasks for worker in serving):
        yield Reason("not_served", f"no worker of the queue serves the task {read.job.task}")
    elif read.job.is_given_back:
        error = read.job.notes.error
        if error is not None and error.type == "bide.PayloadError":
            text = f"it was released by a worker whose {read.job.task} does not take its arguments"
            yield Reason("not_served", f"{text}, and waits for one that does")
            return
        text = f"it was released by a worker without the task {read.job.task}"
        yield Reason("not_served", f"{text}, and waits for one that has it")


def _in_line(read: Read) -> Iterator[Reason]:
    about = [worker.about for worker in read.serving]
    slots, busy = sum(one.concurrency for one in about), sum(one.busy for one in about)
    if busy >= slots:
        yield Reason("busy", f"all {slots} slots of the queue's workers are taken")
    else:
        yield Reason(
            "next", f"it is in line with {read.counts.waiting} that are due, and starts soon"
        )


_LOOKS: Final[tuple[Callable[[Read], Iterator[Reason]], ...]] = (
    *(_blocked, _due, _paused, _limits, _group, _workers),
)


def _until(kind: Kind, text: str, until_us: int, read: Read) -> Reason:
    ahead = describe((until_us - read.job.now_us) / 1e6)
    return Reason(kind, f"{text} for another {ahead}", from_us(until_us))
