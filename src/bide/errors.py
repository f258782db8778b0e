"""Every error that bide raises: one root, a sentence each, and the sentence names the fix."""

from __future__ import annotations

from typing import Any


class BideError(Exception):
    """The root of all errors of this library.

    `left`, where `enqueue_many` was given an iterator: the jobs that it gave and that were not
    added, as far as that is known. To enqueue them again is safe.
    """

    left: tuple[Any, ...] = ()


class UsageError(BideError, ValueError):
    """An argument that is invalid: a naive datetime, a negative timeout, a bad name."""


class PayloadError(BideError, TypeError):
    """Arguments or a result that do not fit the queue's encoding, or are too large."""


class ResultDropped(PayloadError):
    """The server dropped a completed job's result, to keep its queue within its budget of bytes.

    `Retention(results=...)` sets the budget.
    """


class BadSignature(PayloadError):
    """A job, an item or a result that no key of this process's has signed as it is.

    Seen as a job's error, and where a pickled result is read.
    """


class PayloadTooNew(PayloadError):
    """A job that says that only a newer bide can run it; a worker leaves it to a newer one."""


class TaskNotFound(BideError, LookupError):
    """A task name that this process does not serve, or that does not lead to a function."""


class ServerUnavailable(BideError, ConnectionError):
    """The server could not be reached within `retry_for`; the call may have taken effect.

    `job_ids` are those of the jobs that were being enqueued: repeating with them is safe.
    """

    job_ids: tuple[str, ...] = ()


class DurabilityTimeout(BideError):
    """The durability asked for was not confirmed in time; the jobs may exist, and may yet be lost.

    `job_ids` are those of the jobs that were being enqueued: repeating with them is safe.
    """

    job_ids: tuple[str, ...] = ()


class DurabilityUnavailable(BideError):
    """The server cannot give the durability asked for; nothing was added."""


class ServerFull(BideError):
    """The server has reached its `maxmemory`; what the call would have added was refused."""


class ServerReadOnly(BideError):
    """The server cannot write to its disk, and refuses each change until it can.

    Workers wait until that is over.
    """


class ClientTooOld(BideError):
    """The queue was laid out by a newer bide than this one; nothing of it was touched."""


class AccessDenied(BideError, PermissionError):
    """The server refused the credentials, or the user lacks a permission that the call needs."""


class ServerRefused(BideError):
    """The server answered with an error that bide does not expect."""


class ScriptBug(BideError, AssertionError):
    """A script was called with arguments that its header does not allow: a bug in bide."""


class JobTimeout(BideError):
    """A job ran longer than its `timeout`.

    It is no `TimeoutError`, because that is an `OSError`: code that passes over those, as much code
    does around files and sockets, would pass over the end of its own time. To `Retry(on=...)` and
    `never_on=` it is a `TimeoutError` too.
    """


class JobNotFound(BideError, LookupError):
    """No job has this id: it never existed, was deleted, or its retention has ended."""


class ScheduleNotFound(BideError, LookupError):
    """No schedule of the queue has this name: it was never set, or has been removed."""


class JobStateError(BideError):
    """The verb does not apply to the state that the job is in; the message names the state."""


class DuplicateJob(BideError):
    """A job holds the key, and `on_conflict="reject"` was asked; `job_id` is that job's."""

    job_id: str | None = None


class JobFailed(BideError):
    """The job that was waited for has failed; `error` is its last error, as far as it is known."""

    error: Any = None


class JobCancelled(BideError):
    """The job that was waited for was cancelled; or, raised in a job, the job ends as cancelled.

    `job_id` is that of the job that was waited for. A job that waits for another and lets this
    pass is not cancelled by it: that is an error like any other.
    """

    job_id: str | None = None


class JobWaitTimeout(BideError, TimeoutError):
    """The job did not end within the time-out of the wait; the job itself continues."""


class WorkerCrashed(BideError):
    """A job's worker died or stopped under it too often; only ever seen as a job's error."""
