"""Runs tasks of `django.tasks` in workers: with their context, their signals and fresh connections.

Django closes a connection that is too old, or broken, when a request starts and ends. A job has no
request: without this module, a worker's thread would keep connections that the database has closed.

A connection that is in a transaction before the job starts stays open. A test has started the
transaction and runs the job in it, and closing the connection would break the transaction.

A task may be of Django itself or of the package `django-tasks`; its class shows which.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Final, Generic, ParamSpec

import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections, transaction
from django.utils import timezone

from bide.errors import UsageError
from bide.model.context import CurrentJob, current_job
from bide.model.job import State
from bide.model.payload.convert import resolved
from bide.model.payload.serializers import simplify
from bide.queue import Job, Queue
from bide.queue._sync.job import BlockingCall
from bide.tasks.middleware import Around, Middleware
from bide.tasks.registry import task_name
from bide.tasks.task import register


class DatabaseConnections(Middleware):
    """Close old database connections around each run, as Django does around a request.

    `manage.py bide worker` has this middleware. In other workers, tasks of `@queue.task` need it;
    tasks of `django.tasks` need no middleware for this.
    """

    def running(self, job: CurrentJob) -> Around:
        """On the event loop, the thread of Django's asynchronous calls closes the connections."""
        around: Around = fresh_connections()
        return around


def fresh_connections() -> Any:
    """Return a context manager that closes old connections, for threads and event loops."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_thread()
    return _on_loop()


@contextmanager
def _in_thread() -> Iterator[None]:
    left = _close_old()
    try:
        yield
    finally:
        _close_old(left)


@asynccontextmanager
async def _on_loop() -> AsyncIterator[None]:
    left = await sync_to_async(_close_old)()
    try:
        yield
    finally:
        await sync_to_async(_close_old)(left)


def _close_old(but: Collection[str] | None = None) -> list[str]:
    """Close connections as `close_old_connections` of Django does.

    Args:
        but: the aliases of the connections to keep open if they are in a transaction; by default
            all that are in one.

    Returns:
        The aliases of the connections that stay open.
    """
    left = []
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and (but is None or connection.alias in but):
            left.append(connection.alias)
        else:
            connection.close_if_unusable_or_obsolete()
    return left


STATUS: Final = {
    State.ACTIVE: "RUNNING",
    State.COMPLETED: "SUCCESSFUL",
    State.FAILED: "FAILED",
    State.CANCELLED: "FAILED",
}
"""A job in any other state waits: its status is READY."""


def part_of(task: Any, part: str) -> Any:
    """Import a module of the package of a task."""
    package = type(task).__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{part}")


def result_id(queue: str, job_id: str) -> str:
    """Return the id of a result: its queue and the job's id."""
    return f"{queue}:{job_id}"


def new_result(task: Any, job_id: str, args: Any, kwargs: Any) -> Any:
    """Return the result of a job that is about to be enqueued."""
    return _make(task, job_id, "READY", list(args), dict(kwargs), enqueued_at=timezone.now())


def running_result(
    task: Any,
    job: CurrentJob,
    args: Any = (),
    kwargs: Any = None,
    status: str = "RUNNING",
    value: Any = None,
) -> Any:
    """Return the result of the running job, or with a status, of a job that has just ended."""
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
    # Arguments were converted to annotated types; a result shows their stored forms.
    args, kwargs = msgspec.to_builtins((list(args), dict(kwargs or {})), enc_hook=simplify)
    return _make(task, job.id, status, args, kwargs, value, workers=workers, errors=errors, **times)


def _in_queue(task: Any, queue: str) -> Any:
    """Return the task for a queue; the declared task if the backend does not have the queue."""
    queues = task.get_backend().queues
    return task if queues and queue not in queues else task.using(queue_name=queue)


def stored_result(task: Any, job: Job[Any]) -> Any:
    """Return the result of a job that was read."""
    status = STATUS.get(job.state, "READY")
    errors = [
        _error(task, attempt.error.type, attempt.error.traceback)
        for attempt in job.attempts
        if attempt.error is not None
    ]
    workers = [attempt.worker for attempt in job.attempts]
    if job.worker is not None and job.state in (State.ACTIVE, State.COMPLETED):
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
    object.__setattr__(result, "_return_value", value)  # frozen, and not an argument
    return result


def _error(task: Any, path: str, text: str) -> Any:
    path = path if "." in path else f"builtins.{path}"
    return part_of(task, "base").TaskError(exception_class_path=path, traceback=text)


def _local(at: datetime | None) -> datetime | None:
    """Convert a moment as Django's settings require: aware, or naive and local."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


known: Final[dict[str, Any]] = {}
"""Name -> task of this process. No other task is looked up, whatever name a job contains."""


def serve(task: Any) -> str:
    """Let workers of this process run a task; return its name.

    Options travel with each job: a task may be enqueued by several backends.

    Raises:
        UsageError: no worker could find it by its name.
    """
    name = task_name(task.func)
    if name not in known or known[name].func is not task.func:
        register(_wrapped(task), {"on_success": succeeded, "on_failure": failed})
        known[name] = task
    return name


def succeeded(job: CurrentJob, value: Any) -> None:
    """Send the signal that a task has finished."""
    _finished(job, "SUCCESSFUL", value)


def failed(job: CurrentJob, error: BaseException) -> None:
    """Send the signal that a task has failed for good."""
    _finished(job, "FAILED", error)


def _finished(job: CurrentJob, status: str, value: Any) -> None:
    task = known[job.task]
    result = running_result(task, job, status=status, value=value)
    part_of(task, "signals").task_finished.send(type(task.get_backend()), task_result=result)


def _wrapped(task: Any) -> Callable[..., Any]:
    """Wrap the function for a worker; the wrapper has the parameters that producers pass."""
    function = task.func

    def begin(args: Any, kwargs: Any) -> Any:
        result = running_result(task, current_job(), args, kwargs)
        signals = part_of(task, "signals")
        signals.task_started.send(type(task.get_backend()), task_result=result)
        if task.takes_context:
            return (part_of(task, "base").TaskContext(task_result=result), *args)
        return args

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with fresh_connections():
            return function(*begin(args, kwargs), **kwargs)

    @functools.wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        async with fresh_connections():
            return await function(*begin(args, kwargs), **kwargs)

    wrapped: Any = run_async if inspect.iscoroutinefunction(function) else run
    if task.takes_context:
        wrapped.__signature__ = _without_context(function)
    return wrapped  # type: ignore[no-any-return]


def _without_context(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature for producers, with annotations that are looked up already."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    hints = resolved(written, getattr(function, "__globals__", {}))
    return signature.replace(
        parameters=[p.replace(annotation=hints.get(p.name, p.empty)) for p in parameters],
        return_annotation=signature.empty,
    )


P = ParamSpec("P")


class OnCommit(Generic[P]):
    """A task whose jobs are enqueued at the commit."""

    def __init__(self, call: BlockingCall[P, Any], using: str | None) -> None:
        self._call = call
        self._using = using

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Check and encode a job now; send it at the commit, or now if there is no transaction.

        A delay counts from the moment of sending.

        Returns:
            The job's id; `queue.fetch(id)` finds the job after it was sent.

        Raises:
            PayloadError: an argument cannot be stored, or does not fit the task.
            UsageError: an option is invalid.
        """
        prepared = self._call.prepare(*args, **kwargs)
        at_commit(lambda: self._call.queue.enqueue_many([prepared]), self._using)
        return prepared.id


def on_commit(call: BlockingCall[P, Any], *, using: str | None = None) -> OnCommit[P]:
    """Return a task whose jobs are enqueued when the transaction is committed.

    `on_commit(remind.later("3d")).enqueue(order.id)`

    Args:
        call: a task of a `bide.Queue`.
        using: the alias of the database whose transaction counts; by default `default`.

    Raises:
        UsageError: `call` is not a task of a `bide.Queue`.
    """
    if not isinstance(call, BlockingCall) or not isinstance(call.queue, Queue):
        raise UsageError(
            f"on_commit() needs a task of a bide.Queue, such as send or send.later('5m'), not "
            f"{call!r}."
        )
    return OnCommit(call, using)


class AtCommit:
    """A send at the commit; `hint` recognises it among other callbacks."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self._send = send
        self.waits = True

    def __call__(self) -> None:
        """Send."""
        self.waits = False
        self._send()


def at_commit(send: Callable[[], Any], using: str | None) -> None:
    """Call a function at the commit; immediately if no database is configured."""
    name = using or "default"
    if connections[name].settings_dict["ENGINE"] == "django.db.backends.dummy":
        send()
    else:
        transaction.on_commit(AtCommit(send), using=name)


def hint() -> str:
    """Return a hint for a test about enqueues that wait for a commit; empty if there are none."""
    if not settings.configured:  # Django is installed, but the test does not use it
        return ""
    waiting = sum(
        isinstance(call, AtCommit) and call.waits
        for connection in connections.all(initialized_only=True)
        for _, call, *_ in connection.run_on_commit
    )
    if not waiting:
        return ""
    what = "1 enqueue waits" if waiting == 1 else f"{waiting} enqueues wait"
    return (
        f"{what} for the commit of a transaction. A TestCase never commits: make the call inside "
        "of `with self.captureOnCommitCallbacks(execute=True):`."
    )
