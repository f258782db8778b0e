"""Jobs as `django.tasks` shows them: a `TaskResult`.

Which package a task is of, Django's own or `django-tasks`, the task itself tells.
"""

from __future__ import annotations

import importlib
import traceback
from datetime import datetime
from typing import Any, Final

import msgspec
from django.utils import timezone

from bide.current import CurrentJob
from bide.payload.serializers import simplify
from bide.queue import Job
from bide.states import State

STATUS: Final = {
    State.ACTIVE: "RUNNING",
    State.COMPLETED: "SUCCESSFUL",
    State.FAILED: "FAILED",
    State.CANCELLED: "FAILED",
}
"""What else there is waits, and is ready to be run when its time comes."""


def part_of(task: Any, part: str) -> Any:
    """A module of the package that a task is of."""
    package = type(task).__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{part}")


def result_id(queue: str, job_id: str) -> str:
    """What a result is called: where it is, and its job's id."""
    return f"{queue}:{job_id}"


def new_result(task: Any, job_id: str, args: Any, kwargs: Any) -> Any:
    """The result of a job that is about to be enqueued."""
    return _make(task, job_id, "READY", list(args), dict(kwargs), enqueued_at=timezone.now())


def running_result(
    task: Any,
    job: CurrentJob,
    args: Any = (),
    kwargs: Any = None,
    status: str = "RUNNING",
    value: Any = None,
) -> Any:
    """The result of the job that runs now, or, with a status, of one that has just ended."""
    task = _in_queue(task, job.queue)
    workers = [job.worker] * max(1, job.attempt)
    now = timezone.now()
    times = {"started_at": now, "last_attempted_at": now}
    errors = []
    if status != "RUNNING":
        times["finished_at"] = now
    if isinstance(value, BaseException):
        text = "".join(traceback.format_exception(value))
        kind = type(value)
        errors.append(_error(task, f"{kind.__module__}.{kind.__qualname__}", text))
        value = None
    # Arguments have become what annotations say; a result shows them as they travelled.
    args, kwargs = msgspec.to_builtins((list(args), dict(kwargs or {})), enc_hook=simplify)
    return _make(task, job.id, status, args, kwargs, value, workers=workers, errors=errors, **times)


def _in_queue(task: Any, queue: str) -> Any:
    """The task as `using` made it; as it was declared, in a queue that is none of its backend's."""
    queues = task.get_backend().queues
    return task if queues and queue not in queues else task.using(queue_name=queue)


def stored_result(task: Any, job: Job[Any]) -> Any:
    """The result of a job as it has been read."""
    status = STATUS.get(job.status, "READY")
    errors = [
        _error(task, attempt.error.type, attempt.error.traceback)
        for attempt in job.attempts
        if attempt.error is not None
    ]
    workers = [attempt.worker for attempt in job.attempts]
    if job.worker is not None and job.status in (State.ACTIVE, State.COMPLETED):
        workers.append(job.worker)
    first = job.attempts[0].started if job.attempts else job.started
    return _make(
        task,
        job.id,
        status,
        list(job.args),
        job.kwargs,
        job.result if status == "SUCCESSFUL" else None,
        workers=workers,
        errors=errors,
        started_at=_local(first),
        last_attempted_at=_local(job.started),
        finished_at=_local(job.finished),
    )


def _make(
    task: Any,
    job_id: str,
    status: str,
    args: Any,
    kwargs: Any,
    value: Any = None,
    workers: Any = (),
    errors: Any = (),
    **times: datetime | None,
) -> Any:
    base = part_of(task, "base")
    for name in ("enqueued_at", "started_at", "last_attempted_at", "finished_at"):
        times.setdefault(name, None)
    result = base.TaskResult(
        task=task,
        id=result_id(task.queue_name, job_id),
        status=base.TaskResultStatus[status],
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=list(errors),
        worker_ids=list(workers),
        **times,
    )
    object.__setattr__(result, "_return_value", value)  # it is frozen, and no argument
    return result


def _error(task: Any, path: str, text: str) -> Any:
    path = path if "." in path else f"builtins.{path}"
    return part_of(task, "base").TaskError(exception_class_path=path, traceback=text)


def _local(at: datetime | None) -> datetime | None:
    """As Django's settings want moments: aware, or naive and local."""
    from django.conf import settings

    return at if at is None or settings.USE_TZ else timezone.make_naive(at)
