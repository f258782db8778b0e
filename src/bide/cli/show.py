"""`bide jobs ls` and `bide jobs show`: lists jobs, and shows all data of jobs.

This module also reads which jobs the verbs of `bide jobs` select, by id or by a filter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from itertools import islice
from typing import Any, Final

import click

from bide.cli.options import (
    completing,
    flag,
    import_configured,
    limit_option,
    masked_site_options,
    option,
    queues_option,
    say_masked,
    together,
)
from bide.cli.screen import (
    Cell,
    Column,
    aside,
    bar,
    echo,
    echo_json,
    facts,
    remark,
    shortened,
    state_cell,
)
from bide.cli.screen import show as show_list
from bide.client.config import signing_keys
from bide.errors import PayloadError, UsageError
from bide.logs import count, plain
from bide.model.dedup import describe_dedup
from bide.model.durations import at_to_us, describe, from_us, to_us
from bide.model.history import Attempt
from bide.model.ids import check_name, short_id
from bide.model.job import State
from bide.model.payload.body import DEFAULT_TIMEOUT
from bide.model.payload.serializers import calls_in, is_batch
from bide.model.payload.signing import Kind, Seal, Verdict
from bide.protocol.commands.jobs import MAX_PAGE
from bide.queue._sync.scan import Scan
from bide.queue.job_view import Reason, error_line, not_found, written
from bide.queue.select import (
    EVERY,
    ORDER,
    PAGE,
    Filter,
    FoundJob,
    Mask,
    anywhere,
    check_range,
    checked_text,
    due_bounds,
    masked_error,
    read_pairs,
    unmasked,
)
from bide.views._sync import Site
from bide.views.job import brief, call_line, full, given_description, policy_line, why_report
from bide.views.params import moment_exactly, read_moment, relative

_FILTER: Final = together(
    queues_option("Queue to look in; repeat for more."),
    option(
        "-s --state states",
        "STATE",
        f"State of the jobs; repeat for more: {', '.join(ORDER)}.",
        multiple=True,
        type=click.Choice([state.value for state in ORDER]),
    ),
    option(
        "--task",
        "PATTERN",
        "Name of the task, or a pattern: 'shop:*'.",
        shell_complete=completing("tasks"),
    ),
    option("-g --group", "NAME", "Group of the jobs."),
    option(
        "--arg args",
        "NAME=VALUE",
        "Argument of the jobs; repeat for more. 0=VALUE is the first positional argument. Names "
        "of positional arguments are known of the tasks in the modules of [tool.bide.worker].",
        multiple=True,
    ),
    option("--meta", "NAME=VALUE", "Entry of the jobs' meta; repeat for more.", multiple=True),
    option("--error", "PATTERN", "Part of the last error, or a pattern: 'KeyError: *'."),
    option(
        "--older-than",
        "DURATION",
        "Jobs that ended, started or were due (depending on their state) longer ago.",
    ),
    option(
        "--due-before", "WHEN", "Jobs that are due before a moment, or within a duration from now."
    ),
    option(
        "--since",
        "MOMENT",
        "Jobs that ended, started or are due (depending on their state) then or later.",
    ),
    option("--until", "MOMENT", "The same before this moment."),
)


def filter_options(function: Callable[..., Any]) -> Any:
    """Add the options that select jobs, which the command receives as `queues` and `wanted`.

    Without `--state`, the filter has no states.
    """

    @wraps(function)
    def with_filter(
        states: Sequence[str],
        task: str | None,
        group: str | None,
        args: Sequence[str],
        meta: Sequence[str],
        error: str | None,
        older_than: str | None,
        due_before: str | None,
        since: str | None,
        until: str | None,
        **options: Any,
    ) -> Any:
        if any(not pair[:1].isdecimal() for pair in args):
            import_configured("positional arguments have no names here")
        since_us = None if since is None else at_to_us(read_moment(since, "--since"))
        until_us = None if until is None else at_to_us(read_moment(until, "--until"))
        check_range(since_us, until_us, "--since", "--until")
        due_before_us, due_within_us = _read_due_before(due_before)
        wanted = Filter(
            states=in_order(states),
            task=task,
            group=group,
            args=read_pairs("--arg", args),
            meta=read_pairs("--meta", meta),
            error=None if error is None else anywhere(checked_text(error, "--error")),
            older_us=None if older_than is None else to_us(older_than, "--older-than"),
            since_us=since_us,
            until_us=until_us,
            due_before_us=due_before_us,
            due_within_us=due_within_us,
        )
        return function(wanted=wanted, **options)

    return _FILTER(with_filter)


def in_order(states: Sequence[str]) -> tuple[State, ...]:
    """Sort states in the order of lists."""
    return tuple(state for state in ORDER if state in states)


def _read_due_before(text: str | None) -> tuple[int | None, int | None]:
    try:
        return due_bounds(text, "--due-before")
    except UsageError:
        return due_bounds(read_moment(text or "", "--due-before"))


def scan(site: Site, queues: Sequence[str], wanted: Filter, tick: Callable[[int], None]) -> Scan:
    """Yield matching jobs by state and queue; `tick` is called with the number of jobs read."""
    return Scan(site, queues, wanted, look=EVERY, page=PAGE, tick=tick)


def read_ids(ids: Sequence[str]) -> list[str]:
    """Return the given ids; `-` stands for the first word of each line of standard input."""
    found: dict[str, None] = {}
    for id in ids:
        some = [line.split()[0] for line in sys.stdin if line.strip()] if id == "-" else [id]
        if not some:
            aside("There is no id on standard input.")
        found |= dict.fromkeys(some)
    return [check_name(id, "job id") for id in found]


def locate(
    site: Site, queues: Sequence[str], ids: Sequence[str]
) -> tuple[list[FoundJob], list[str]]:
    """Return the jobs of these ids, in the given order, and the ids without a job."""
    found: dict[str, FoundJob] = {}
    for queue in site.known(queues):
        for i in range(0, len(ids), MAX_PAGE):
            for snapshot in site.fetch(queue, ids[i : i + MAX_PAGE]):
                id = snapshot.id
                if id in found:
                    raise UsageError(
                        f"There is a job {short_id(id)!r} in {found[id].queue} and in {queue}; "
                        "choose one with --queue."
                    )
                found[id] = FoundJob(queue, snapshot)
    return [found[id] for id in ids if id in found], [id for id in ids if id not in found]


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@queues_option("Queue to look in; repeat for more.")
@masked_site_options
def show(ids: tuple[str, ...], queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """Show all data of jobs.

    With - as ID, the command reads ids from standard input.
    """
    keyring = signing_keys()
    found, missing = locate(site, queues, read_ids(ids))

    def signature(seen: FoundJob) -> Verdict:
        seal = Seal(keyring, site.keys(seen.queue))
        kind: Kind = "item" if seen.snapshot.is_item else "job"
        return seal.verdict(kind, seen.id, seen.snapshot.raw_body)

    reasons = site.reasons(found)
    if site.mask is not unmasked and any(map(_has_unnamed, found)):
        import_configured("positional arguments have no names here, so the mask cannot see them")
    if as_json:
        shown = [
            full(seen, site.mask) | {"why": why_report(why), "signature": signature(seen)}
            for seen, why in zip(found, reasons, strict=True)
        ]
        echo_json({"jobs": shown})
        say_masked(shown)
    else:
        for i, seen in enumerate(found):
            if i:
                echo()
            _print(seen, reasons[i], _SIGNATURES[signature(seen)] if keyring else "", site.mask)
    if missing:
        raise not_found(missing[0])


_SIGNATURES: Final[dict[Verdict, str | Cell]] = {
    "good": "good",
    "bad": Cell("not good: of other data, of another job or queue, or of a key not here", "red"),
    "none": Cell("none", "yellow"),
    "unchecked": "",
}


def _has_unnamed(seen: FoundJob) -> bool:
    """Whether it has positional arguments, for whose names the function is needed."""
    if seen.snapshot.is_item:
        return False
    try:
        return bool(seen.snapshot.head.args)
    except PayloadError:
        return False


def _print(seen: FoundJob, reasons: Sequence[Reason], signature: str | Cell, mask: Mask) -> None:
    known = [*_facts(seen, reasons, mask), ("signature", signature)]
    facts((name, value) for name, value in known if value not in ("", Cell("")))
    job = seen.job
    if job.attempts:
        echo()
        echo("attempts that ended badly", "dim")
        for attempt in job.attempts:
            _print_attempt(attempt, seen.snapshot.task, mask)
    if moves := seen.snapshot.notes.moves:
        echo()
        echo("rescheduled", "dim")
        for at, was, due in moves:
            told = f"{moment_exactly(at)}  from {moment_exactly(was)} to {moment_exactly(due)}"
            echo(f"  {told}")
    if job.logs:
        echo()
        echo("log", "dim")
        for line in job.logs:
            echo(f"  {moment_exactly(line.at)}  {line.text}")


def _facts(
    seen: FoundJob, reasons: Sequence[Reason], mask: Mask
) -> Iterator[tuple[str, str | Cell]]:
    job, now = seen.job, from_us(seen.snapshot.now_us)
    is_item = seen.snapshot.is_item

    def masked(kind: str, read: Callable[[], Any]) -> str | Cell:
        return _or_why(lambda: shortened(written(mask(seen.snapshot.task, kind, plain(read())))))

    yield "item" if is_item else "job", short_id(job.id)
    yield "queue", seen.queue
    state = state_cell(job.state)
    yield "state", Cell(f"{state.text}, asked to stop", "yellow") if job.cancelling else state
    if is_item:
        yield "data", masked("data", seen.snapshot.data)
    else:
        yield "task", job.task
        yield "description", shortened(given_description(seen))
        yield "arguments", _or_why(lambda: _arguments(seen, mask))
    yield "schedule", _schedule(seen, now)
    yield "priority", "" if job.priority is None else str(job.priority)
    yield "enqueued", _enqueued(seen, now)
    yield "due", _at(job.due, now) if job.state != State.BLOCKED else _once_freed(seen)
    yield "cancelled by", short_id(job.cancelled_by or "")
    if job.group is not None:
        yield "group", job.group
    constraints = seen.snapshot.constraints
    yield "calls", _calls(seen)
    yield "key", shortened(constraints.key or "")
    if job.expires:
        yield "expired" if job.expired else "expires", _at(job.expires, now)
    yield "not yet", "; ".join(reason.text for reason in reasons)
    if job.started:
        late = "" if job.lateness is None else f", {describe(job.lateness)} after it was due"
        yield "taken" if is_item else "started", f"{_at(job.started, now)}{late}"
    if job.finished:
        took = "" if job.run_time is None else f", ran {describe(job.run_time)}"
        yield "finished", f"{_at(job.finished, now)}{took}"
    elif job.state == State.ACTIVE and job.run_time is not None:
        yield "run time", f"{describe(job.run_time)} so far"
    yield from _policy(seen)
    yield "worker", short_id(job.worker or "")
    if job.progress:
        progress = job.progress
        yield "progress", f"{progress.fraction:.0%} {progress.text} ({_ago(progress.at, now)})"
    if error := masked_error(job.error, seen.snapshot.task, mask):
        yield "error", Cell(error_line(error), "red")
    if seen.state == State.COMPLETED:
        yield "result", masked("result", lambda: job.result)
    yield "meta", masked("meta", lambda: job.meta) if _has_meta(seen) else ""


def _enqueued(seen: FoundJob, now: datetime) -> str | Cell:
    """Return when the job was enqueued, from its id; or why that is not known."""
    job = seen.job
    if job.enqueued is not None:
        return _at(job.enqueued, now)
    if _schedule(seen, now):  # it has created the job, at its time
        return ""
    return Cell("not known, because its producer chose its id", "dim")


def _policy(seen: FoundJob) -> Iterator[tuple[str, str | Cell]]:
    """Yield the retry policy, the time-out and the retention of a job.

    The server has only the job's own options. The options of its task are known if this process has
    the task.
    """
    job = seen.job
    try:
        most, policy, timeout = job.max_attempts, job.retry_policy, job.timeout
        retention = job.retention
    except PayloadError:  # an item of data, or unreadable
        yield "attempt", str(job.attempt or "")
        return
    yield "attempt", f"{job.attempt} of {most}" if most else str(job.attempt or "")
    yield "retry", policy_line(policy) if policy else _of_task("none")
    yield "time-out", describe(timeout) if timeout else _of_task(describe(DEFAULT_TIMEOUT))
    yield "retention", _of_task("the queue's") if retention is None else describe(retention)


def _of_task(default: str) -> Cell:
    return Cell(f"the task's, otherwise {default}", "dim")


def _once_freed(seen: FoundJob) -> str:
    when = seen.snapshot.constraints.when
    if when[:1] == "=":
        return f"{moment_exactly(seen.job.due)}, if it does not wait any more by then"
    seconds = (seen.snapshot.due_us - seen.snapshot.now_us) / 1e6
    return f"{describe(seconds)} after that" if seconds else "as soon as it does not wait any more"


def _calls(seen: FoundJob) -> str:
    """Describe how calls are deduplicated into the job, and count its items."""
    told = describe_dedup(seen.snapshot.constraints.dedup or "")
    body = seen.snapshot.raw_body
    if not is_batch(body):
        return told
    try:
        return f"{told}; {len(calls_in(body))} so far"
    except PayloadError:
        return told


def _schedule(seen: FoundJob, now: datetime) -> str:
    job = seen.job
    try:
        if seen.snapshot.is_item or job.schedule is None:
            return ""
    except PayloadError:
        return ""
    at = job.schedule_time
    return f"{job.schedule}, {f'for {_at(at, now)}' if at else 'run by hand'}"


def _or_why(text: Callable[[], str | Cell]) -> str | Cell:
    """Return a text, or why its value cannot be read."""
    try:
        return text()
    except PayloadError as error:
        return Cell(str(error), "yellow")


def _arguments(seen: FoundJob, mask: Mask) -> str | Cell:
    if seen.snapshot.head.codec == "pickle":
        return Cell("pickled, and not read here: reading a pickle can run any code", "dim")
    line = call_line(seen.snapshot.task, seen.job.args, seen.job.kwargs, mask)
    return shortened(line) or Cell("none", "dim")


def _has_meta(seen: FoundJob) -> bool:
    try:
        return bool(seen.job.meta)
    except PayloadError:
        return False


def _print_attempt(attempt: Attempt, task: str, mask: Mask) -> None:
    ran = describe((attempt.ended - attempt.started).total_seconds())
    worker = short_id(attempt.worker)
    echo(f"  {attempt.number}  {moment_exactly(attempt.started)}  ran {ran} on {worker}")
    error = masked_error(attempt.error, task, mask)
    if error is None:
        echo(
            "     its worker died or stopped; it is not known how far the attempt came",
            "yellow",
        )
        return
    echo(f"     {error_line(error)}", "red")
    lines = error.traceback.splitlines()
    if any(line.startswith("  File ") for line in lines):  # otherwise it repeats the line above
        for line in lines:
            echo(f"     {line}", "dim")


def _at(at: datetime, now: datetime) -> str:
    return f"{moment_exactly(at)} ({_ago(at, now)})"


def _ago(at: datetime, now: datetime) -> str:
    return relative((at - now).total_seconds())


@click.command()
@filter_options
@limit_option("jobs to list", 50, EVERY)
@option("--offset", "N", "Number of jobs to skip.", type=click.IntRange(0, EVERY), default=0)
@flag("--ids only_ids", "Print ids only, for `bide jobs ... -`.")
@masked_site_options
def ls(
    queues: tuple[str, ...],
    wanted: Filter,
    limit: int,
    offset: int,
    only_ids: bool,
    site: Site,
    as_json: bool,
) -> None:
    """List jobs; without options, of all queues and states.

    Active jobs come first, then waiting and delayed jobs by priority and due time, then jobs that
    have ended, newest first. The jobs in a state are listed queue by queue, in the order of names.
    """
    if only_ids and as_json:
        raise UsageError("Give --ids or --json, not both.")
    names = site.known(queues)
    meant = replace(wanted, states=wanted.states or ORDER)
    with bar("looking") as tick:
        found = list(islice(scan(site, names, meant, tick).each(), offset, offset + limit + 1))
    more, found = len(found) > limit, found[:limit]
    if only_ids:
        for seen in found:
            echo(seen.id)
    else:
        shown = [brief(seen, site.mask) for seen in found] if as_json else []
        show_list(
            as_json,
            lambda: {"jobs": shown, "more": more},
            job_columns(len(names) > 1, site.mask),
            found,
            "No job matches." if names else "No queue has been used yet.",
        )
        say_masked(shown)
    if more and not as_json:
        found_more = count(limit, "job matches", "jobs match")
        aside(f"More than {found_more}; see --limit and --offset.")


def job_columns(with_queue: bool, mask: Mask) -> list[Column]:
    """The columns of a table of jobs."""
    queue = Column("queue", lambda seen: seen.queue, cut="end")
    return [
        Column("id", lambda seen: short_id(seen.id)),
        *([queue] if with_queue else []),
        Column("state", lambda seen: state_cell(seen.state)),
        Column("when", lambda seen: relative(-seen.ago) if seen.has_moment else "–", right=True),
        Column("task", lambda seen: seen.snapshot.task, cut="start"),
        Column("", partial(remark, mask), cut="end"),
    ]
