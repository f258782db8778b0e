"""`bide enqueue`: add one job."""

from __future__ import annotations

from typing import Any, Literal, get_args

import click

from bide.cli.options import (
    complete_queues,
    import_from_here,
    json_option,
    read_at,
    read_value,
    server_options,
)
from bide.cli.screen import count, echo, echo_json
from bide.client.config import settings
from bide.errors import UsageError
from bide.model.dedup import Unique
from bide.model.ids import short_id
from bide.model.job import State
from bide.model.options import Durability
from bide.queue import AsyncTask, Queue, Task
from bide.tasks.registry import task_name
from bide.tasks.task import import_task, signature_of
from bide.views.times import moment_exactly, moment_json


@click.command()
@click.argument("task", metavar="TASK")
@click.argument("args", nargs=-1)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queues,
    help="Queue of the job.  [default: the task's, otherwise default]",
)
@click.option(
    "--in",
    "delay",
    metavar="DELAY",
    help="Due after 30, 250ms, 5m, 1h30m.  [default: the task's, otherwise at once]",
)
@click.option("--at", metavar="MOMENT", help="Due at 2030-01-31T09:00:00+01:00.")
@click.option(
    "-p",
    "--priority",
    metavar="N",
    type=int,
    help="0 to 9; 9 runs first.  [default: the task's, otherwise 5]",
)
@click.option(
    "--retry",
    metavar="N",
    type=int,
    help="Retries after an error.  [default: the task's, otherwise 0]",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    help="Maximum run time.  [default: the task's, otherwise 5m]",
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Cancel the job if it has not started this long after its due time.  "
    "[default: the task's, otherwise never]",
)
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    help="Group; its jobs run one at a time.  [default: the task's, otherwise none]",
)
@click.option(
    "--retention",
    metavar="DURATION",
    help="How long to keep the finished job.  [default: the task's, otherwise the queue's]",
)
@click.option(
    "--durability",
    type=click.Choice(get_args(Durability)),
    help="Wait until a replica, or the server's disk, has the job.  "
    "[default: the task's, otherwise local]",
)
@click.option(
    "--on-crash",
    type=click.Choice(["rerun", "fail"]),
    help="If the worker dies: run the job again, or let it fail.  "
    "[default: the task's, otherwise rerun]",
)
@click.option(
    "--depends-on",
    "depends_on",
    multiple=True,
    metavar="ID",
    help="Wait until this job has completed; of another queue, {QUEUE}ID; again for more.",
)
@click.option(
    "--id", "job_id", metavar="ID", help="Id of the job. An id that exists changes nothing."
)
@click.option(
    "--unique",
    "key",
    metavar="KEY",
    help="Add no job while a job of this task holds this key.  "
    "[default: the task's, otherwise none]",
)
@click.option("--description", metavar="TEXT", help="A line for people.  [default: the call]")
@click.option(
    "--no-check",
    is_flag=True,
    help="Do not import the function. The command then does not check that it exists, and ignores "
    "the task's --queue, --in, --priority, --expires, --group, --unique and --durability.",
)
@server_options
@json_option
def enqueue(
    task: str,
    args: tuple[str, ...],
    queue: str | None,
    delay: str | None,
    at: str | None,
    priority: int | None,
    retry: int | None,
    timeout: str | None,
    expires: str | None,
    group: str | None,
    retention: str | None,
    durability: Durability | None,
    on_crash: Literal["rerun", "fail"] | None,
    depends_on: tuple[str, ...],
    job_id: str | None,
    key: str | None,
    description: str | None,
    no_check: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Add a job that calls TASK with ARGS.

    TASK is MODULE:FUNCTION, or the name that a task was given; that one is looked for in the
    modules of [tool.bide.worker]. An argument is read as JSON where it is JSON (42, true,
    '[1, 2]'), else as text; NAME=VALUE passes a keyword argument.
    """
    name = task_name(task)
    positional, named = split(args)
    if not no_check:
        import_from_here()
        function = import_task(name, settings().worker.modules)
        queue = queue or _queue_of(function)
        signature = signature_of(function, name)
        if signature is not None:  # a worker would refuse the same, later
            signature.check(positional, named, name)
            signature.bind(positional, named, name)
    queue = queue or "default"
    job = Queue(queue, url=url, prefix=prefix, retry_for=0).enqueue_call(
        name,
        positional,
        named,
        delay=delay,
        at=read_at(at) if at else None,
        priority=priority,
        job_id=job_id,
        timeout=timeout,
        retry=retry,
        expires=expires,
        group=group,
        retention=retention,
        durability=durability,
        on_crash=on_crash,
        unique=None if key is None else Unique(key=key),
        depends_on=depends_on or None,
        description=description,
    )
    if as_json:
        report = {
            "id": job.id,
            "queue": queue,
            "created": job.created,
            "result": job.enqueue_result,
            "due": moment_json(job.due),
            "confirmed": job.confirmed,
        }
        echo_json(report)
    elif job.created and job.status == State.BLOCKED:
        echo(f"{job.id} on {queue}: {name}, waits for {count(len(depends_on), 'job')}")
    elif job.created:
        echo(f"{job.id} on {queue}: {name}, due {moment_exactly(job.due)}")
    elif job.enqueue_result == "duplicate":
        how = "exists" if job.id == job_id else "holds the key"
        echo(f"{short_id(job.id)} {how} and is {job.status}; nothing was changed.")
    else:
        due = moment_exactly(job.due)
        echo(f"{short_id(job.id)} on {queue}: {name}, {job.enqueue_result}, due {due}")


def _queue_of(task: object) -> str | None:
    """The queue that the task was registered on, if it was."""
    return task.queue.name if isinstance(task, Task | AsyncTask) else None


def split(args: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments; `name=value` is a keyword where `name` is a name.

    Raises:
        UsageError: a keyword is given twice.
    """
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
