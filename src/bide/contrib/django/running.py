"""How a worker runs a task of `django.tasks`: with its context, its signals, fresh connections."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from bide.contrib.django.connections import fresh_connections
from bide.contrib.django.results import part_of, running_result
from bide.current import CurrentJob, current_job
from bide.naming import task_name
from bide.payload.hints import resolved
from bide.task import register

known: Final[dict[str, Any]] = {}
"""Name -> task, of those that this process has; no other is looked for, whatever a job names."""


def serve(task: Any) -> str:
    """Let workers of this process run a task; its name.

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
    """Tell that a task has finished, and how."""
    _finished(job, "SUCCESSFUL", value)


def failed(job: CurrentJob, error: BaseException) -> None:
    """Tell that a task has failed for good."""
    _finished(job, "FAILED", error)


def _finished(job: CurrentJob, status: str, value: Any) -> None:
    task = known[job.task]
    result = running_result(task, job, status=status, value=value)
    part_of(task, "signals").task_finished.send(type(task.get_backend()), task_result=result)


def _wrapped(task: Any) -> Callable[..., Any]:
    """The function as a worker calls it; its parameters are those that a producer gives."""
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
    """What a producer gives; annotations are looked up here, as a wrapper has another module."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    hints = resolved(written, getattr(function, "__globals__", {}))
    return signature.replace(
        parameters=[p.replace(annotation=hints.get(p.name, p.empty)) for p in parameters],
        return_annotation=signature.empty,
    )
