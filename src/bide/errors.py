"""The errors that bide raises. Each message is one sentence that names the fix."""

from __future__ import annotations

from typing import Any


class BideError(Exception):
    """The base of all errors of bide.

    If `enqueue_many` was given an iterator, `left` has the jobs that may not have been added. To
    enqueue them again is safe.
    """

    left: tuple[Any, ...] = ()


class UsageError(BideError, ValueError):
    """An argument is invalid: a naive datetime, a negative timeout, a bad name."""


class PayloadError(BideError, TypeError):
    """Arguments or a result do not fit the queue's encoding, or are larger than 1 MB.

    For arguments, the call raises it, and adds no job. For a result, the job fails after its
    function has run, without a retry: return an id instead.
    """


class ResultDropped(PayloadError):
    """The server dropped a completed job's result, to keep its queue within its budget of bytes.

    `Retention(results=...)` sets the budget.
    """


class BadSignature(PayloadError):
    """The signature of a job, an item or a result is missing, or matches no key of this process.

    It is a job's error, and is raised by reading a pickled result.
    """


class PayloadTooNew(PayloadError):
    """The job needs a newer bide; an older worker leaves it to a newer worker."""


class TaskNotFound(BideError, LookupError):
    """A task has a name that this process does not serve, or that is the name of no function."""


class ServerUnavailable(BideError, ConnectionError):
    """The server could not be reached within `retry_for`; the call may have taken effect.

    `job_ids` are those of the jobs that were being enqueued: repeating with them is safe.
    """

    job_ids: tuple[str, ...] = ()


class DurabilityTimeout(BideError):
    """The requested durability was not confirmed in time; the jobs may exist, and may yet be lost.

    `job_ids` has the ids of the jobs that were being enqueued: repeating with these ids is safe.
    """

    job_ids: tuple[str, ...] = ()


class DurabilityUnavailable(BideError):
    """The server cannot give the requested durability; nothing was added."""


class ServerFull(BideError):
    """The server has reached its `maxmemory`, and refused to add the jobs."""


class ServerReadOnly(BideError):
    """The server cannot write to its disk, and refuses each change until it can.

    Workers wait until the server can write again.
    """


class ClientTooOld(BideError):
    """The queue has the schema of a newer bide; this bide has changed nothing."""


class AccessDenied(BideError, PermissionError):
    """The server refused the credentials, or the user lacks a permission that the call needs."""


class ServerRefused(BideError):
    """The server answered with an error that bide does not expect."""


class ScriptBug(BideError, AssertionError):
    """A script was called with arguments that its header does not allow: a bug in bide."""


class JobTimeout(BideError):
    """A job ran longer than its `timeout`.

    It is not a subclass of `TimeoutError`, which is an `OSError`: much code around files and
    sockets catches `OSError`, and would ignore the time-out. In `Retry(on=...)` and `never_on=`,
    `TimeoutError` includes it.
    """


class JobNotFound(BideError, LookupError):
    """No job has this id: it never existed, was deleted, or its retention has ended."""


class ScheduleNotFound(BideError, LookupError):
    """No schedule of the queue has this name: it was never set, or has been removed."""


class JobStateError(BideError):
    """The call is not possible in the present state of the job, which the message names."""


class DuplicateJob(BideError):
    """Another job, `job_id`, holds the key, and the call has `on_conflict="reject"`."""

    job_id: str | None = None


class JobFailed(BideError):
    """A job that the caller waited for has failed; `error` is its last error, if it is known."""

    error: Any = None


class JobCancelled(BideError):
    """A job that the caller waited for was cancelled; raised in a job, it cancels that job.

    `job_id` is the id of the job that the caller waited for. If a job waits for another job and
    does not catch this error, the waiting job fails; it is not cancelled.
    """

    job_id: str | None = None


class JobWaitTimeout(BideError, TimeoutError):
    """The job did not end within the time-out of the wait; the job itself continues."""


class WorkerCrashed(BideError):
    """The worker of a job died or stopped too often while it ran; only used as a job's error."""
