"""Changes of jobs as rows of a table, encoded and signed when they are written.

A row is sent by the process that has its lock, and removed in the same transaction. For each job
id, and for each dedup key, rows are sent in the order of their numbers. A delay counts from the
moment of the row, by the clock of the database: the sender subtracts the time since then.

The row of a job in `bide_done` is written in the job's own transaction. So it is there if, and only
if, the job's effect is. Two runs at the same moment: the second waits at the primary key until the
first has committed or rolled back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bide.client.url import resolve_url
from bide.errors import BideError, PayloadError, UsageError
from bide.model.context import current_job
from bide.model.dedup import Batch, in_batch
from bide.model.durations import Duration
from bide.model.ids import LONGEST
from bide.model.options import Constraints, Durability, Options, has_dedup
from bide.model.payload.serializers import pack, reason, unpack
from bide.protocol.commands.enqueue import Prepared, given_when
from bide.protocol.keys import PREFIX
from bide.queue import AsyncQueue, Queue
from bide.queue._async.delay import AsyncDelayQueue
from bide.queue._sync.delay import DelayQueue
from bide.queue.batches import Batches
from bide.queue.core import QueueCore, TaskCall, checked_ids, signed
from bide.queue.items import prepare_items
from bide.tasks.middleware import around_sending

Verb = Literal["enqueue", "push", "cancel", "cancel-waiting", "reschedule", "promote"]

AnyQueue = Queue | AsyncQueue
ChangedQueue = Queue | AsyncQueue | DelayQueue | AsyncDelayQueue
"""The queue of a job, or of an item of data, that is changed."""

BATCH: Final = 500
"""Maximum number of rows that are sent together."""

_EXPIRES: Final = re.compile(r"^x=\+(\d+)")

LONGEST_STEP: Final = 64
"""Maximum characters of a step of `once`."""


class ChangeRow(NamedTuple):
    """A change of one job, as its columns hold it."""

    prefix: str
    queue: str
    verb: Verb
    job_id: str
    dedup: str | None = None
    """The hashed key of a job with a dedup policy; rows of one key are sent in order."""
    due: str = ""
    """A delay, `+` and microseconds from the moment of the row, or a due time, `=`."""
    priority: int = 0
    durability: Durability = "local"
    constraints: str = ""
    parents: str = ""
    body: bytes = b""

    def prepared(self, elapsed_us: int) -> Prepared:
        """Return the job to enqueue, for a row that was written this long ago."""
        parents = tuple(self.parents.split())
        if parents:  # its delay, and its expiry, count from their end
            elapsed_us = 0
        return Prepared(
            self.job_id,
            shifted(self.due, elapsed_us),
            self.priority,
            self.body,
            self.durability,
            _expiring(self.constraints, self.due, elapsed_us),
            parents,
        )


def shifted(due: str, elapsed_us: int) -> str:
    """Subtract the time since the row was written from a delay; a moment stays as it is."""
    return due if due[0] == "=" else f"+{max(0, int(due[1:]) - max(0, elapsed_us))}"


def _expiring(constraints: str, due: str, elapsed_us: int) -> str:
    """Subtract the time since the job was due from the time within which it must start."""
    late_us = elapsed_us - int(due[1:]) if due[0] == "+" else 0
    if late_us <= 0:
        return constraints
    return _EXPIRES.sub(lambda found: f"x=+{max(1, int(found[1]) - late_us)}", constraints)


def task_row(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChangeRow:
    """Return the row that enqueues a call of a task.

    Raises:
        UsageError: `task` is not a task, an option is invalid, or the arguments do not fit.
        PayloadError: the serializer cannot encode the arguments, or they take more than 1 MB.
    """
    if not isinstance(task, TaskCall):
        raise UsageError(
            f"enqueue() needs a task of a queue, not {task!r}; decorate the function with "
            "@queue.task and pass it without calling it, or pass jobs that queue.prepare(...) "
            "returned to enqueue_many()."
        )
    with around_sending(task.queue.name, None):
        (row,) = enqueue_rows(task.queue, [task.prepare(*args, **kwargs)])
    return row


def enqueue_rows(queue: Any, jobs: Iterable[Prepared]) -> list[ChangeRow]:
    """Return the rows that enqueue prepared jobs.

    Raises:
        UsageError: `queue` is not a queue, or an element is not a prepared job.
    """
    checked = _checked_queue(queue)
    # A list, because the error of an iterator would count jobs that were sent before it.
    some = next(Batches(list(jobs) if isinstance(jobs, Iterator) else jobs, None), ())
    return _rows(checked, "enqueue", some)


def batch_row(
    queue: Any,
    key: str | int,
    item: object,
    into: Callable[..., Any] | str,
    limits: tuple[Duration, Duration | None, int],
    options: Options,
) -> ChangeRow:
    """Return the row that adds an item to a batch; arguments and errors as for `Queue.batch`.

    `limits` are `quiet`, `max_wait` and `max_size`.
    """
    policy = Batch(*limits, key)
    job = _checked_queue(queue).prepare(into, (item,), **in_batch(policy, options))
    (row,) = enqueue_rows(queue, [job])
    return row


def push_rows(
    delay_queue: Any,
    data: Any,
    delay: Duration | None,
    at: datetime | None,
    id: str | None,
    durability: Durability | None,
) -> list[ChangeRow]:
    """Return the row that pushes an item of data; arguments and errors as for `DelayQueue.push`."""
    if not isinstance(delay_queue, DelayQueue | AsyncDelayQueue):
        raise UsageError(f"push() needs a DelayQueue, not {delay_queue!r}.")
    jobs = prepare_items([data], delay, at, None if id is None else [id], durability)
    return _rows(delay_queue.queue, "push", jobs)


def change_row(
    queue: Any, verb: Verb, id: str, delay: Duration | None = None, at: datetime | None = None
) -> ChangeRow:
    """Return the row that changes a job.

    Raises:
        UsageError: an argument is invalid.
    """
    checked = _checked_queue(queue)
    (job_id,) = checked_ids([id])
    due = given_when(delay, at) if verb == "reschedule" else ""
    return ChangeRow(checked.prefix, checked.name, verb, job_id, due=due)


def check_server(queue: ChangedQueue, url: str | None) -> None:
    """Raise UsageError for a queue of another server, to which the relay would not send."""
    checked = _checked_queue(queue)
    if checked._url != url and checked.url != resolve_url(url):
        raise UsageError(
            f"The queue {checked.name!r} is on another server than the outbox; give the outbox "
            "the queue's url=, or use an outbox for each server."
        )


def _checked_queue(queue: Any) -> QueueCore[Any]:
    if isinstance(queue, DelayQueue | AsyncDelayQueue):
        return queue.queue
    if not isinstance(queue, QueueCore):
        raise UsageError(
            f"The outbox needs a Queue or an AsyncQueue here, not {queue!r}; pass the job's queue."
        )
    return queue


def _rows(queue: QueueCore[Any], verb: Verb, jobs: Sequence[Prepared]) -> list[ChangeRow]:
    binding = queue._binding
    if binding.seal.keyring is not None:
        jobs = signed(jobs, binding.seal)
    return [
        ChangeRow(
            binding.prefix,
            queue.name,
            verb,
            job.id,
            _key_of(job.constraints),
            job.when,
            job.priority,
            job.durability,
            job.constraints,
            " ".join(job.parents),
            job.body,
        )
        for job in jobs
    ]


def _key_of(constraints: str) -> str | None:
    """Return the dedup key of a job; refuse a policy whose error would be lost."""
    if not has_dedup(constraints):
        return None
    read = Constraints.read(constraints.encode())
    if (read.dedup or "").startswith("ux"):
        raise UsageError(
            'on_conflict="reject" raises where a job is enqueued, and the outbox sends it after '
            'the commit; use on_conflict="keep" or "replace".'
        )
    return hashlib.sha256((read.key or "").encode("utf-8", "surrogateescape")).hexdigest()


# -- once


def _queue_of(name: str, prefix: str) -> str:
    """Return the name of a queue in `bide_done`: each prefix has its own queues."""
    if prefix == PREFIX:
        return name
    root = f"{prefix}:{{{name}}}"  # as in its keys; the name of a queue has no braces
    return root if len(root) <= LONGEST else hashlib.sha256(root.encode()).hexdigest()


class Fenced(BideError):
    """A later run of the job has committed its effect already, so this run must stop.

    The worker of this run was paused for longer than its lease, and another worker has the job.
    """


class OnceBase:
    """The part of `once` that does not depend on the database library."""

    first: bool
    """Whether this is the first run: do the work, and set `result`."""
    result: Any
    """The result: set it in the first run, and read it in each other run, as plain values."""

    def __init__(self, step: str) -> None:
        if not isinstance(step, str) or len(step) > LONGEST_STEP:
            raise UsageError(
                f"step must be text of {LONGEST_STEP} characters at most, not {step!r}."
            )
        try:
            job = current_job()
        except UsageError:
            raise UsageError(
                "once() was called outside of a job; call it in a task while a worker runs it."
            ) from None
        queue = _queue_of(job.queue, job._run.prefix)
        self._of: Final = {"queue": queue, "job_id": job.id, "step": step}
        self._token: Final = job.token
        self.result = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that says how to enter the block, if it was not entered."""
            if name == "first":
                raise UsageError(
                    "The block of once() was not entered; write `with outbox.once(...) as once:`."
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def _repeat(self, token: int, result: Any) -> None:
        """Take the result of an earlier run; raise Fenced if it was a later one."""
        if token > self._token:
            raise Fenced(
                f"A later run of the job {self._of['job_id']} has committed, so this run must not; "
                "let the error end it. Its worker was paused for longer than its lease."
            )
        self.result = None if result is None else unpack(bytes(result), "json")

    def _packed(self) -> bytes:
        """Return the stored form of the result."""
        try:
            return pack(self.result, "json")
        except Exception as error:
            raise PayloadError(f"The result of once: {reason(error, 'json')}.") from None
