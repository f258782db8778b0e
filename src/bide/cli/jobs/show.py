"""`bide jobs show`: everything that is known of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

import click

from bide.cli.jobs.find import MOST, Wanted, filter_options, locate, read_ids, scan
from bide.cli.options import json_option, limit_option, queues_option, site_options
from bide.cli.screen import (
    Cell,
    Column,
    aside,
    bar,
    count,
    echo,
    echo_json,
    facts,
    remark,
    shortened,
    state_cell,
    table,
)
from bide.client.config import signing_keys
from bide.errors import PayloadError
from bide.model.dedup import describe_dedup
from bide.model.durations import describe, from_us
from bide.model.history import Attempt
from bide.model.ids import short_id
from bide.model.job import State
from bide.model.payload.batched import calls_in, is_batch
from bide.model.payload.signing import Kind, Seal, Verdict
from bide.protocol.keys import keys_of
from bide.queue.explain import Read, Reason, explain
from bide.queue.job_view import call, not_found, written
from bide.views.job import FoundJob, brief, error_line, full, given_description, why_report
from bide.views.params import moment_exactly, relative
from bide.views.site import Site
from bide.views.verbs import UNBEGUN


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@queues_option("Queue to look in; repeat for more.")
@site_options
@json_option
def show(ids: tuple[str, ...], queues: tuple[str, ...], site: Site, as_json: bool) -> None:
    """Show all data of jobs.

    With - as ID, the command reads ids from standard input.
    """
    keyring = signing_keys()
    found, missing = locate(site, queues, read_ids(ids))

    def signature(seen: FoundJob) -> Verdict:
        seal = Seal(keyring, keys_of(seen.queue, site.prefix))
        kind: Kind = "item" if seen.snapshot.is_item else "job"
        return seal.verdict(kind, seen.id, seen.snapshot.raw_body)

    reasons = _reasons(site, found)
    if as_json:
        echo_json(
            {
                "jobs": [
                    full(seen) | {"why": why_report(why), "signature": signature(seen)}
                    for seen, why in zip(found, reasons, strict=True)
                ]
            }
        )
    else:
        for i, seen in enumerate(found):
            if i:
                echo()
            _print(seen, reasons[i], _SIGNATURES[signature(seen)] if keyring else "")
    if missing:
        raise not_found(missing[0])


_SIGNATURES: Final[dict[Verdict, str | Cell]] = {
    "good": "good",
    "bad": Cell("not good: of other data, of another job or queue, or of a key not here", "red"),
    "none": Cell("none", "yellow"),
    "unchecked": "",
}


def _reasons(site: Site, found: Sequence[FoundJob]) -> list[list[Reason]]:
    """Why each has not run; read once for all of them, if there are such."""
    pending = {s.queue for s in found if s.state in UNBEGUN}
    if not pending:
        return [[] for _ in found]
    counts, workers = site.counts(sorted(pending)), site.workers()
    return [
        explain(Read(s.queue, s.snapshot, counts[s.queue], workers))
        if s.queue in pending and not s.snapshot.is_item
        else []
        for s in found
    ]


def _print(seen: FoundJob, reasons: Sequence[Reason], signature: str | Cell) -> None:
    known = [*_facts(seen, reasons), ("signature", signature)]
    facts((name, value) for name, value in known if value not in ("", Cell("")))
    job = seen.job
    if job.attempts:
        echo()
        echo("attempts that ended badly", "dim")
        for attempt in job.attempts:
            _print_attempt(attempt)
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


def _facts(seen: FoundJob, reasons: Sequence[Reason]) -> Iterator[tuple[str, str | Cell]]:
    job, now = seen.job, from_us(seen.snapshot.now_us)
    is_item = seen.snapshot.is_item
    yield "item" if is_item else "job", short_id(job.id)
    yield "queue", seen.queue
    state = state_cell(job.status)
    yield "state", Cell(f"{state.text}, asked to end", "yellow") if job.cancelling else state
    if is_item:
        yield "data", _or_why(lambda: shortened(written(seen.snapshot.data())))
    else:
        yield "task", job.task
        yield "description", shortened(given_description(seen))
        yield "arguments", _or_why(lambda: _arguments(seen))
    yield "schedule", _schedule(seen, now)
    yield "priority", "" if job.priority is None else str(job.priority)
    yield "due", _at(job.due, now) if job.status != State.BLOCKED else _once_freed(seen)
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
        took = (
            f", ran {describe((job.finished - job.started).total_seconds())}" if job.started else ""
        )
        yield "finished", f"{_at(job.finished, now)}{took}"
    yield "attempt", str(job.attempt or "")
    yield "worker", short_id(job.worker or "")
    if job.progress:
        progress = job.progress
        yield "progress", f"{progress.fraction:.0%} {progress.text} ({_ago(progress.at, now)})"
    if job.error:
        yield "error", Cell(error_line(job.error), "red")
    if seen.state == State.COMPLETED:
        yield "result", _or_why(lambda: shortened(written(job.result)))
    yield "meta", _meta(seen)


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
    """A text; or why what it shows cannot be read."""
    try:
        return text()
    except PayloadError as error:
        return Cell(str(error), "yellow")


def _arguments(seen: FoundJob) -> str | Cell:
    if seen.snapshot.head.codec == "pickle":
        return Cell("pickled, and not read here: reading a pickle can run any code", "dim")
    return shortened(call(seen.job.args, seen.job.kwargs)) or Cell("none", "dim")


def _meta(seen: FoundJob) -> str:
    try:
        meta: dict[str, Any] = seen.job.meta
    except PayloadError:
        return ""
    return shortened(written(meta)) if meta else ""


def _print_attempt(attempt: Attempt) -> None:
    ran = describe((attempt.ended - attempt.started).total_seconds())
    worker = short_id(attempt.worker)
    echo(f"  {attempt.number}  {moment_exactly(attempt.started)}  ran {ran} on {worker}")
    if attempt.error is None:
        echo(
            "     its worker died or stopped; it is not known how far the attempt came",
            "yellow",
        )
        return
    echo(f"     {error_line(attempt.error)}", "red")
    lines = attempt.error.traceback.splitlines()
    if any(line.startswith("  File ") for line in lines):  # otherwise it repeats the line above
        for line in lines:
            echo(f"     {line}", "dim")


def _at(at: datetime, now: datetime) -> str:
    return f"{moment_exactly(at)} ({_ago(at, now)})"


def _ago(at: datetime, now: datetime) -> str:
    return relative((at - now).total_seconds())


@click.command()
@filter_options
@limit_option("jobs to list", 50, MOST)
@click.option(
    "--offset", metavar="N", type=click.IntRange(0, MOST), default=0, help="Number of jobs to skip."
)
@click.option("--ids", "only_ids", is_flag=True, help="Print ids only, for `bide jobs ... -`.")
@site_options
@json_option
def ls(wanted: Wanted, limit: int, offset: int, only_ids: bool, site: Site, as_json: bool) -> None:
    """List jobs; without options, of all queues and states.

    Active jobs come first, then waiting and delayed jobs by priority and due time, then jobs that
    have ended, newest first.
    """
    meant = wanted.filter()
    names = site.known(wanted.queues)
    with bar("looking") as tick:
        found = list(islice(scan(site, names, meant, tick), offset, offset + limit + 1))
    more, found = len(found) > limit, found[:limit]
    if as_json:
        echo_json({"jobs": [brief(seen) for seen in found], "more": more})
        return
    if only_ids:
        for seen in found:
            echo(seen.id)
    elif found:
        print_jobs(found, len(names) > 1)
    else:
        aside("No job fits." if names else "No queue has been used yet.")
    if more:
        aside(f"There are more than these {count(limit, 'job')}; see --limit and --offset.")


def print_jobs(jobs: list[FoundJob], with_queue: bool) -> None:
    """Jobs as a table."""
    queue = Column("queue", lambda seen: seen.queue, cut="end")
    columns = [
        Column("id", lambda seen: short_id(seen.id)),
        *([queue] if with_queue else []),
        Column("state", lambda seen: state_cell(seen.state)),
        Column("when", lambda seen: relative(-seen.ago), right=True),
        Column("task", lambda seen: seen.snapshot.task, cut="start"),
        Column("", remark, cut="end"),
    ]
    table(columns, jobs)
