"""`bide enqueue`: add one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from bide.cli.options import (
    all_modules,
    completing,
    flag,
    import_from_here,
    json_option,
    option,
    queue_option,
    server_options,
)
from bide.cli.screen import count, echo, echo_json, shortened
from bide.errors import BideError, JobCancelled, JobFailed, JobWaitTimeout, UsageError
from bide.model.dedup import Unique
from bide.model.durations import to_us
from bide.model.ids import short_id
from bide.model.job import State
from bide.model.options import Durability, OnCrash
from bide.queue import AsyncTask, Job, Queue, Task
from bide.queue.job_view import written
from bide.queue.select import FoundJob, read_value
from bide.tasks.registry import task_name
from bide.tasks.task import import_task, signature_of
from bide.views.job import full
from bide.views.params import moment_exactly, read_moment, report

F = TypeVar("F", bound=Callable[..., Any])


def _option(
    names: str, metavar: str, help: str, otherwise: str = "", **more: Any
) -> Callable[[F], F]:
    """An option of the job; one that the task may set too says so, and what holds `otherwise`."""
    if otherwise:
        help = f"{help}  [default: the task's, otherwise {otherwise}]"
    return option(names, metavar, help, **more)


@click.command()
@click.argument("task", metavar="TASK", shell_complete=completing("tasks"))
@click.argument("args", nargs=-1)
@queue_option("Queue of the job.  [default: the task's, otherwise default]")
@_option("--in delay", "DELAY", "Due after 30, 250ms, 5m, 1h30m.", "at once")
@_option("--at", "MOMENT", "Due at 2030-01-31T09:00:00+01:00.")
@_option("-p --priority", "N", "0 to 9; 9 runs first.", "5")
@_option("--retry", "N", "Retries after an error.", "0")
@_option("--timeout", "DURATION", "Maximum run time.", "5m")
@_option(
    *("--expires", "DURATION"),
    "Cancel the job if it has not started this long after its due time.",
    "never",
)
@_option("-g --group", "NAME", "Group; its jobs run one at a time.", "none")
@_option("--retention", "DURATION", "How long to keep the finished job.", "the queue's")
@_option(
    *("--durability", "", "Wait until a replica, or the server's disk, has the job.", "local"),
    type=click.Choice(get_args(Durability)),
)
@_option(
    *("--on-crash", "", "If the worker dies: run the job again, or let it fail.", "rerun"),
    type=click.Choice(get_args(OnCrash)),
)
@_option(
    *("--depends-on", "ID"),
    "Wait until this job has completed; repeat for more. For another queue: {QUEUE}ID.",
    multiple=True,
)
@_option("--id job_id", "ID", "Id of the job. An id that exists changes nothing.")
@_option("--unique", "KEY", "Add no job while a job of this task holds this key.", "none")
@flag("--wait", "Wait until the job has ended, and print its result.")
@option("--wait-timeout", "DURATION", "The same, for this time at most; the job continues.")
@_option("--description", "TEXT", "A line for people.  [default: the call]")
@flag(
    "--no-check",
    "Do not import the function. The command then does not check that it exists, and ignores "
    "the task's --queue, --in, --priority, --expires, --group, --unique and --durability.",
)
@server_options
@json_option
def enqueue(
    task: str,
    args: tuple[str, ...],
    queue: str | None,
    no_check: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
    at: str | None,
    unique: str | None,
    depends_on: tuple[str, ...],
    wait: bool,
    wait_timeout: str | None,
    **options: Any,
) -> None:
    """Add a job that calls TASK with ARGS.

    TASK is MODULE:FUNCTION, or a task's own name. The command looks for such a name in the modules
    of [tool.bide.worker]. An argument that is valid JSON (42, true, '[1, 2]') is read as JSON,
    otherwise as text. NAME=VALUE passes a keyword argument.

    With --wait, the command exits with 1 if the job fails or is cancelled, and Ctrl-C ends only the
    waiting.
    """
    waits = wait or wait_timeout is not None
    if wait_timeout is not None:
        to_us(wait_timeout, "--wait-timeout")  # before anything is added
    name = task_name(task)
    positional, named = split(args)
    if not no_check:
        import_from_here()
        function = import_task(name, all_modules())
        if not queue and isinstance(function, Task | AsyncTask):
            queue = function.queue.name
        signature = signature_of(function, name)
        if signature is not None:  # a worker would refuse the same, later
            signature.check(positional, named, name)
            signature.bind(positional, named, name)
    queue = queue or "default"
    job = Queue(queue, url=url, prefix=prefix, retry_for=0).enqueue_call(
        name,
        positional,
        named,
        at=read_moment(at, "--at") if at else None,
        unique=None if unique is None else Unique(key=unique),
        depends_on=depends_on or None,
        **options,
    )
    if as_json:
        known = {"id": job.id, "queue": queue, "created": job.created, "result": job.enqueue_result}
        known |= report(job, "due", "confirmed")
        ended, error = _wait(job, wait_timeout) if waits else ({}, None)
        echo_json(known | ended)
        if error is not None:
            raise error
        return
    if job.created and job.status == State.BLOCKED:
        echo(f"{job.id} on {queue}: {name}, waits for {count(len(depends_on), 'job')}")
    elif job.created:
        echo(f"{job.id} on {queue}: {name}, due {moment_exactly(job.due)}")
    elif job.enqueue_result == "duplicate":
        how = "exists" if job.id == options["job_id"] else "holds the key"
        echo(f"{short_id(job.id)} {how} and is {job.status}; nothing was changed.")
    else:
        due = moment_exactly(job.due)
        echo(f"{short_id(job.id)} on {queue}: {name}, {job.enqueue_result}, due {due}")
    if waits:
        echo(f"completed: {shortened(written(job.wait(wait_timeout)))}")


def _wait(job: Job[Any], timeout: str | None) -> tuple[dict[str, Any], BideError | None]:
    """Wait for the job's end; return the job as JSON has it, and the error that ended the wait."""
    error: BideError | None = None
    try:
        job.wait(timeout)
    except (JobFailed, JobCancelled, JobWaitTimeout) as caught:
        error = caught
    return {"job": full(FoundJob(job.queue.name, job.refresh()._seen()))}, error


def split(args: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments; `name=value` is a keyword where `name` is a name."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for arg in args:
        name, equals, value = arg.partition("=")
        if not (equals and name.isidentifier()):
            positional.append(read_value(arg))
        elif name in named:
            raise UsageError(f"The argument {name}= is given twice.")
        else:
            named[name] = read_value(value)
    return positional, named
