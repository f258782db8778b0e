"""`bide enqueue`, and `bide jobs`: cancel, retry, promote, reschedule and delete, by id or filter.

With a filter, the command first prints how many jobs match, and asks for confirmation; with ids it
does not ask. It finds matching jobs once: a job whose state has changed by its turn is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, get_args

import click

from bide.cli.options import (
    CommandGroup,
    all_modules,
    completing,
    flag,
    import_from_here,
    json_option,
    limit_option,
    mask_of,
    mask_option,
    masked_site_options,
    option,
    queue_option,
    say_masked,
    server_options,
    together,
    yes_option,
)
from bide.cli.screen import aside, bar, confirmed, echo, echo_json, shortened, table
from bide.cli.show import filter_options, in_order, job_columns, locate, ls, read_ids, scan, show
from bide.errors import BideError, JobCancelled, JobFailed, JobWaitTimeout, UsageError
from bide.logs import count, plain, printable
from bide.model.dedup import Unique
from bide.model.durations import to_us
from bide.model.ids import short_id
from bide.model.job import FINISHED, State
from bide.model.options import Durability, OnCrash
from bide.protocol.commands.enqueue import when
from bide.queue import AsyncTask, Job, Queue, Task
from bide.queue._sync.scan import changes
from bide.queue.job_view import failure, not_found, written
from bide.queue.select import (
    EVERY,
    VERBS,
    Filter,
    FoundJob,
    How,
    JobVerb,
    Mask,
    in_turn,
    masked_error,
    read_over,
    read_value,
)
from bide.tasks.registry import task_inside, task_name
from bide.tasks.task import import_task, signature_of
from bide.views._sync import Site
from bide.views.job import full
from bide.views.params import moment_exactly, read_moment, report

_SHOWN: Final = 10
"""Maximum number of jobs that a summary lists."""


@dataclass(frozen=True)
class Meant:
    """The jobs that the command line selects."""

    ids: tuple[str, ...]
    queues: tuple[str, ...]
    wanted: Filter
    all_queues: bool
    limit: int | None
    dry_run: bool
    yes: bool
    site: Site
    as_json: bool


_CHOOSING: Final = together(
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    filter_options,
    flag("--all-queues", "Look in all queues."),
    limit_option("jobs to change: the first that `bide jobs ls` lists", most=EVERY),
    flag("--dry-run", "List the matching jobs, and change nothing."),
    yes_option,
    masked_site_options,
)
"""Arguments and options that select jobs."""

_DUE: Final = together(
    option("--in delay", "DELAY", "New due time, from now: 30, 250ms, 5m, 1h30m."),
    option("--at", "MOMENT", "New due time: 2030-01-31T09:00:00+01:00."),
)
_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "cancel": flag("--leave-running", "Do not ask running jobs to stop."),
    "retry": _DUE,
    "reschedule": together(
        _DUE,
        option("--spread over", "DURATION", "Spread new due times evenly over this time from now."),
    ),
}
"""The options of a verb besides those that select jobs."""


def _command(verb: JobVerb) -> click.Command:
    usual = f"{' and '.join(sorted(verb.usual))} jobs"
    if {*verb.usual} == FINISHED:
        usual = "jobs that have ended"

    @click.command(
        verb.name,
        help=f"{verb.help}\n\nName jobs by ID (- reads ids from standard input), or select them by "
        f"options. Without --state, options select {usual}.",
    )
    @_CHOOSING
    @_OPTIONS.get(verb.name, together())
    def command(**given: Any) -> None:
        meant = Meant(**{one.name: given.pop(one.name) for one in fields(Meant)})
        how = _read_how(verb, **given)
        change(VERBS["spread"] if how.over_us else verb, meant, how)

    return command


def _read_how(
    verb: JobVerb,
    leave_running: bool = False,
    delay: str | None = None,
    at: str | None = None,
    over: str | None = None,
) -> How:
    """Read the options of a verb, before any job is read."""
    if over is not None:
        if delay is not None or at is not None:
            raise UsageError("Give one of --in, --at and --spread.")
        return How(over_us=read_over(over, "--spread"))
    if verb.name == "reschedule" and delay is None and at is None:
        raise UsageError(
            "Give the due time: --in 5m, --at 2030-01-31T09:00:00+01:00, or --spread 10m."
        )
    due = when(delay, None if at is None else read_moment(at, "--at"))
    return How(when=due, running=not leave_running)


def change(verb: JobVerb, meant: Meant, how: How) -> None:
    """Find the chosen jobs, ask if needed, change them, and report each outcome.

    If there is no job with an id, the other jobs are changed before the error.
    """
    if not meant.ids:
        _change_chosen(verb, meant, how)
    elif meant.all_queues or meant.limit is not None or meant.wanted != Filter(()):
        raise UsageError("Name jobs by id or choose them by options, not both.")
    else:
        _change_named(verb, meant, how)


def _change_named(verb: JobVerb, meant: Meant, how: How) -> None:
    ids = read_ids(meant.ids)
    found, missing = locate(meant.site, meant.queues, ids)
    refused: list[tuple[str, str]] = []
    possible = [state for state in verb.possible if how.running or state is not State.ACTIVE]
    if meant.dry_run:
        able = {*possible, *verb.fine}
        refused = [(seen.id, seen.state) for seen in found if seen.state not in able]
        found = [seen for seen in found if seen.state in able]
    where: dict[str, list[str]] = {}
    for seen in found:
        where.setdefault(seen.queue, []).append(seen.id)
    if meant.dry_run:
        _rehearse(verb, where, meant)
    else:
        outcomes = _act(verb, where, meant, how)
        if outcomes or meant.as_json:
            _report(verb, outcomes, missing, meant.as_json)
        refused = [(one["id"], one["word"]) for one in outcomes if one["word"] not in verb.fine]
        missing += [id for id, word in refused if word == "gone"]
        refused = [(id, word) for id, word in refused if word != "gone"]
    for id, word in refused[:_SHOWN]:
        allowed = " or ".join(state.value for state in possible)
        aside(f"{short_id(id)} is {word}; only {allowed} jobs can be {verb.past}.")
    if len(refused) > _SHOWN:
        aside(f"... and {len(refused) - _SHOWN:,} more.")
    if refused and not missing:
        click.get_current_context().exit(1)
    for id in missing[1 : _SHOWN + 1]:
        aside(str(not_found(id)))
    if missing:
        raise not_found(missing[0])


def _change_chosen(verb: JobVerb, meant: Meant, how: How) -> None:
    _check(verb, meant)
    states = meant.wanted.states or verb.usual
    wanted = meant.wanted.within(in_turn(states) if meant.limit is None else in_order(states))
    names = meant.site.known(meant.queues)
    where, tally = _choose(meant.site, names, wanted, meant.limit)
    if meant.dry_run:
        _rehearse(verb, where, meant)
        return
    if not tally:
        if meant.as_json:
            _report(verb, [], [], True)
        else:
            aside("No job matches; nothing was changed.")
        return
    parts = [count(n, f"{state} job") for state, n in tally.items()]
    question = f"{verb.name.capitalize()} {' and '.join(parts)} of {', '.join(where)}?"
    how = how._replace(states=wanted.states)
    if confirmed(question, meant.yes):
        _report(verb, _act(verb, where, meant, how), [], meant.as_json)


def _check(verb: JobVerb, meant: Meant) -> None:
    """Check that the options select jobs, and that the verb can change them."""
    if meant.wanted == Filter(()):
        raise UsageError(
            f"Name the jobs to {verb.name}: by id, or with --state, --task, --group, --arg, "
            "--meta, --error, --older-than, --due-before, --since or --until."
        )
    if not meant.queues and not meant.all_queues:
        raise UsageError(
            f"Name the queue whose jobs to {verb.name}: --queue NAME, or --all-queues."
        )
    if meant.queues and meant.all_queues:
        raise UsageError("Give --queue or --all-queues, not both.")
    verb.check(meant.wanted.states)


def _choose(
    site: Site, queues: Sequence[str], wanted: Filter, limit: int | None
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Return ids by queue, and their number by state; read jobs only if the filter needs them."""
    with bar("looking") as tick:
        chosen = scan(site, queues, wanted, tick).choose(limit)
    tally: Counter[str] = Counter()
    for ids in chosen.values():
        tally.update(ids.values())
    return {queue: [*ids] for queue, ids in chosen.items()}, tally


def _act(
    verb: JobVerb, where: dict[str, list[str]], meant: Meant, how: How
) -> list[dict[str, str]]:
    """Change jobs; if that is interrupted, report the outcomes so far."""
    outcomes: list[dict[str, str]] = []
    try:
        with bar(verb.name, sum(map(len, where.values()))) as tick:
            for queue, ids, words in changes(meant.site, verb, where, how):
                outcomes += [
                    {"queue": queue, "id": id, "word": word}
                    for id, word in zip(ids, words, strict=True)
                ]
                tick(len(ids))
    except (BideError, KeyboardInterrupt):
        if outcomes:
            _report(verb, outcomes, [], meant.as_json)
        raise
    return outcomes


def _report(
    verb: JobVerb, outcomes: Sequence[dict[str, str]], missing: Sequence[str], as_json: bool
) -> None:
    if as_json:
        gone = [{"queue": None, "id": id, "word": "gone"} for id in missing]
        changed = sum(outcome["word"] in verb.fine for outcome in outcomes)
        echo_json({"changed": changed, "jobs": [*outcomes, *gone]})
        return
    words = Counter(outcome["word"] for outcome in outcomes)
    asked = words.pop("asked", 0)
    changed = sum(words.pop(word, 0) for word in verb.fine)
    said = [f"{count(changed, 'job')} {verb.past}"] if changed or not asked else []
    if asked:
        said.append(f"{count(asked, 'running job')} asked to stop")
    left = [f"{n:,} {word}" for word, n in words.items()]
    if left:
        said.append(f"skipped: {', '.join(left)}")
    echo(printable("; ".join(said)) + ".")


def _rehearse(verb: JobVerb, where: dict[str, list[str]], meant: Meant) -> None:
    total = sum(map(len, where.values()))
    if meant.as_json:
        jobs = [{"queue": queue, "id": id} for queue, ids in where.items() for id in ids]
        echo_json({"would_change": total, "jobs": jobs})
        return
    shown: list[FoundJob] = []
    for queue, ids in where.items():
        room = _SHOWN - len(shown)
        shown += [FoundJob(queue, seen) for seen in meant.site.fetch(queue, ids[:room])]
    if shown:
        table(job_columns(True, meant.site.mask), shown)
    if total > len(shown):
        echo(f"... and {total - len(shown):,} more")
    echo(f"Would {verb.name} {count(total, 'job')}; nothing was changed.")


COMMANDS: Final = [_command(verb) for verb in VERBS.values() if verb.help]


@click.group(cls=CommandGroup)
@server_options
def jobs(url: str | None, prefix: str | None) -> None:
    """List, show and change jobs, by id or in bulk."""


for command in (ls, show, *COMMANDS):
    jobs.add_command(command)


F = TypeVar("F", bound=Callable[..., Any])


def _option(
    names: str, metavar: str, help: str, otherwise: str = "", **more: Any
) -> Callable[[F], F]:
    """Create an option of the job; `otherwise` is its default if the task does not set it."""
    if otherwise:
        help = f"{help}  [default: the task's, otherwise {otherwise}]"
    return option(names, metavar, help, **more)


@click.command()
@click.argument("task", metavar="TASK", shell_complete=completing("tasks"))
@click.argument("args", nargs=-1)
@queue_option("Queue of the job.  [default: the task's, otherwise default]")
@_option("--in delay", "DELAY", "Time until the job is due: 30, 250ms, 5m, 1h30m.", "none")
@_option("--at", "MOMENT", "Moment at which the job is due: 2030-01-31T09:00:00+01:00.")
@_option("-p --priority", "N", "Priority of the job, 0 to 9; 9 runs first.", "5")
@_option("--retry", "N", "Maximum number of retries after an error.", "0")
@_option("--timeout", "DURATION", "Maximum time of a run.", "5m")
@_option(
    *("--expires", "DURATION"),
    "Cancel the job if it has not started this long after its due time.",
    "never",
)
@_option("-g --group", "NAME", "Group of the job; its jobs run one at a time.", "none")
@_option("--retention", "DURATION", "Time for which the finished job is kept.", "the queue's")
@_option(
    *("--durability", "", "Wait until a replica, or the server's disk, has the job.", "local"),
    type=click.Choice(get_args(Durability)),
)
@_option(
    *("--on-crash", "", "If the worker dies: run the job again, or fail it.", "rerun"),
    type=click.Choice(get_args(OnCrash)),
)
@_option(
    *("--depends-on", "ID"),
    "Job that must complete first; repeat for more. A job of another queue is {QUEUE}ID.",
    multiple=True,
)
@_option("--id job_id", "ID", "Id of the job. If a job has this id, the call changes nothing.")
@_option("--unique", "KEY", "Key; while a job of this task holds it, no job is added.", "none")
@flag("--wait", "Wait until the job has ended, and print its result.")
@option(
    "--wait-timeout", "DURATION", "Wait as with --wait, at most for this time; the job continues."
)
@_option("--description", "TEXT", "Description of the job, for people.  [default: the call]")
@flag(
    "--no-check",
    "Do not import the function. The command then does not check that it exists, and ignores "
    "the task's --queue, --in, --priority, --expires, --group, --unique and --durability.",
)
@server_options
@mask_option
@json_option
def enqueue(
    task: str,
    args: tuple[str, ...],
    queue: str | None,
    no_check: bool,
    url: str | None,
    prefix: str | None,
    mask: str | None,
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
        to_us(wait_timeout, "--wait-timeout")  # raises before anything is added
    shown = mask_of(mask, as_json)
    name = task_name(task)
    positional, named = split(args)
    if not no_check:
        import_from_here()
        function = import_task(name, all_modules())
        function = task_inside(function) or function
        if queue is None and isinstance(function, Task | AsyncTask):
            queue = function.queue.name
        signature = signature_of(function, name)
        if signature is not None:  # otherwise a worker would refuse the call later
            signature.check(positional, named, name)
            signature.bind(positional, named, name)
    queue = "default" if queue is None else queue
    job = Queue(queue, url=url, prefix=prefix, retry_for=0).enqueue_call(
        name,
        positional,
        named,
        at=None if at is None else read_moment(at, "--at"),
        unique=None if unique is None else Unique(key=unique),
        depends_on=depends_on or None,
        **options,
    )
    if as_json:
        known = {"id": job.id, "queue": queue, "created": job.created, "result": job.enqueue_result}
        known |= report(job, "due", "confirmed")
        if not waits:
            echo_json(known)
            return
        error = _wait(job, wait_timeout, shown)
        ended = full(FoundJob(queue, job.refresh()._seen()), shown)
        echo_json(known | {"job": ended})
        say_masked([ended])
        if error is not None:
            raise error
        return
    if job.created and job.state == State.BLOCKED:
        echo(f"{job.id} on {queue}: {name}, waits for {count(len(depends_on), 'job')}")
    elif job.created:
        echo(f"{job.id} on {queue}: {name}, due {moment_exactly(job.due)}")
    elif job.enqueue_result == "duplicate":
        how = "exists" if job.id == options["job_id"] else "holds the key"
        echo(f"{short_id(job.id)} {how} and is {job.state}; nothing was changed.")
    else:
        due = moment_exactly(job.due)
        echo(f"{short_id(job.id)} on {queue}: {name}, {job.enqueue_result}, due {due}")
    if waits:
        if (error := _wait(job, wait_timeout, shown)) is not None:
            raise error
        result = shown(name, "result", plain(job.result))
        echo(f"completed: {shortened(written(result))}")


def _wait(job: Job[Any], timeout: str | None, mask: Mask) -> BideError | None:
    """Wait for the job's end; return the error that ended the wait, as the mask shows it."""
    try:
        job.wait(timeout)
    except JobFailed as error:
        return failure(job.id, job.task, masked_error(error.error, job.task, mask))
    except (JobCancelled, JobWaitTimeout) as error:
        return error
    return None


def split(args: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Split positional and keyword arguments: `name=value` is a keyword argument."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for arg in args:
        name, equals, value = arg.partition("=")
        if not (equals and name.isidentifier()):
            positional.append(read_value(arg))
        elif name in named:
            raise UsageError(f"The argument {name}= is given twice; give it once.")
        else:
            named[name] = read_value(value)
    return positional, named
