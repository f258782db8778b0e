"""`bide health`: whether the server answers, and whether jobs of queues run on time.

For probes of containers and monitors: it imports no code of the application, asks the server a
few times, and says with its exit code what it found. Where no queue is named, it also looks at the
delayed jobs of RQ's queues, which a Timer is to move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import Cell, count, echo, echo_json, hanging
from bide.cli.server import delayed_on_rq, queues_with_keys
from bide.contrib.rq_sets import DelaySet
from bide.errors import BideError, ClientTooOld, UsageError
from bide.model.durations import describe, to_us
from bide.model.ids import check_name, short_id
from bide.protocol.command import Command
from bide.protocol.commands import fsck as ops
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.fsck import Finding, Step
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo
from bide.protocol.keys import keys_of
from bide.views.queues import next_due
from bide.views.site import Site


@click.command()
@queues_option("Ask that a live worker serves it; again for more.")
@click.option(
    "--max-lateness",
    metavar="DURATION",
    help="Ask that no job is overdue by more, in the queues given or in all there are.",
)
@server_options
@json_option
@click.pass_context
def health(
    ctx: click.Context,
    queues: tuple[str, ...],
    max_lateness: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Exit with 0 if the server answers and queues are served.

    With --queue, a live worker must serve it; with --max-lateness, no job may be overdue by
    more. Otherwise it exits with 1 and says what is wrong, a line each. It imports no code
    of yours. A job is overdue while it waits, also in a paused queue. Without --queue, a live
    Timer (bide rq-timer) must serve RQ's queues if a delayed job of theirs is overdue.
    """
    limit = None if max_lateness is None else to_us(max_lateness, "--max-lateness") / 1e6
    site = Site(url, prefix)
    counts: dict[str, QueueStats] = {}
    workers: list[WorkerInfo] = []
    sets: list[DelaySet] = []
    try:
        there = site.queues()
        asked = list(dict.fromkeys(queues)) or there
        counts = site.counts(asked)
        workers = [worker for worker in site.workers() if worker.alive]
        problems = _problems(asked, bool(queues), there, counts, workers, limit)
        sets = [] if queues else delayed_on_rq(site.client) or []
        problems += _problems_of_rq(sets, limit)
    except UsageError:
        raise
    except BideError as error:
        if not as_json:
            raise
        problems = [str(error)]
    if as_json:
        echo_json(_report(site, problems, counts, workers, sets))
    elif problems:
        for problem in problems:
            echo(problem, "red")
    else:
        echo(f"ok: {site.where}{_served(counts, workers)}")
    ctx.exit(1 if problems else 0)


def _problems(
    queues: Sequence[str],
    named: bool,
    there: Sequence[str],
    counts: dict[str, QueueStats],
    workers: Sequence[WorkerInfo],
    limit: float | None,
) -> list[str]:
    found = []
    served = {queue for worker in workers for queue in worker.about.queues}
    for queue in queues:
        if named and queue not in served:
            unused = "" if queue in there else " and it has never been used"
            found.append(f"{queue}: no live worker serves it{unused}.")
        late = lateness(counts[queue])
        if limit is not None and late > limit:
            paused = ", and it is paused" if counts[queue].paused else ""
            found.append(f"{queue}: a job is overdue by {describe(late)}{paused}.")
    return found


def _problems_of_rq(sets: Sequence[DelaySet], limit: float | None) -> list[str]:
    found = []
    for each in sets:
        if each.overdue and not each.timers:
            found.append(f"{count(each.overdue, 'job')} overdue in {each.key}, no timer alive.")
        elif limit is not None and each.lateness > limit:
            found.append(f"{each.key}: a job is overdue by {describe(each.lateness)}.")
    return found


def lateness(counts: QueueStats) -> float:
    """Seconds by which the job that waits longest is overdue; 0 where none waits."""
    due = next_due(counts)
    return max(0.0, -due) if due is not None else 0.0


def _served(counts: dict[str, QueueStats], workers: Sequence[WorkerInfo]) -> str:
    if not counts:
        return " answers."
    late = max(lateness(each) for each in counts.values())
    overdue = f"the longest wait is {describe(late)}" if late else "nothing is overdue"
    return f" answers; live workers: {len(workers)}; {overdue}."


def _report(
    site: Site,
    problems: list[str],
    counts: dict[str, QueueStats],
    workers: Sequence[WorkerInfo],
    sets: Sequence[DelaySet],
) -> dict[str, Any]:
    return {
        "ok": not problems,
        "server": site.where,
        "problems": problems,
        "queues": {
            name: {
                "lateness": lateness(each),
                "workers": sum(name in worker.about.queues for worker in workers),
                "paused": each.paused,
            }
            for name, each in counts.items()
        },
        "rq": {
            each.key: {
                "lateness": each.lateness,
                "overdue": each.overdue,
                "waiting": each.waiting,
                "timers": each.timers,
            }
            for each in sets
        },
    }


_LATER: Final = 1.0
"""Seconds within which a queue is in the list after its first job."""


class Found(NamedTuple):
    """A finding, and where."""

    queue: str
    """Empty where it is of none."""
    finding: Finding


@click.command()
@queues_option("Only this queue; again for more.")
@click.option("--repair", is_flag=True, help="Mend what is found, and say of each what was done.")
@server_options
@json_option
@click.pass_context
def fsck(
    ctx: click.Context,
    queues: tuple[str, ...],
    repair: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Check that sets, jobs and records of the queues agree.

    Exits with 1 if something does not, also where it was mended. Workers and producers may go on
    meanwhile: each step is short, and what it finds is so. A repair loses no job: what can run
    again becomes due, what cannot has failed and says why.
    """
    site = Site(url, prefix)
    found: list[Found] = []
    for each in look(site, queues, repair):
        found.append(each)
        if not as_json:
            _print(each, repair)
    if as_json:
        echo_json(report(site, found, repair))
    else:
        _sum_up(found, repair)
    ctx.exit(1 if found else 0)


def look(site: Site, queues: tuple[str, ...], repair: bool) -> Iterator[Found]:
    """Look at these queues, or at all and at the lists of queues and of workers; each finding once.

    Raises:
        BideError: the server refused, or a queue that is named was never used.
    """
    if queues:
        names = site.known(queues)
    else:
        lists = list(_look_at_lists(site, repair))
        yield from lists
        if any(each.finding.kind == ops.TYPE for each in lists):
            return  # which queues there are cannot be known
        yield from _look_for_queues(site, repair)
        names = site.queues()
    for name in filter(_can_be, names):
        try:
            for finding in _once(_look_at_queue(site, name, repair)):
                yield Found(name, finding)
        except ClientTooOld as error:
            yield Found(name, Finding("schema", "", str(error), ""))


def _look_at_lists(site: Site, repair: bool) -> Iterator[Found]:
    everywhere = keys_of(None, site.prefix)
    for look_at in (ops.look_at_queues, ops.look_at_workers):
        for finding in _once(_steps(site, lambda c: look_at(everywhere, c, repair))):  # noqa: B023
            yield Found("", finding)


def _look_for_queues(site: Site, repair: bool) -> Iterator[Found]:
    """Those that the list has not; one that is new is in it a moment after its first job."""
    everywhere = keys_of(None, site.prefix)
    missing = queues_with_keys(site.client, site.prefix) - set(site.queues())
    if not missing:
        return
    time.sleep(_LATER)
    for name in sorted(filter(_can_be, missing - set(site.queues()))):
        says = "has keys, and is not in the list of queues"
        yield Found("", Finding("queues", name, says, "is added"))
        if repair:
            site.client.run(queue_commands.register_queues(everywhere, [name]))
        else:
            for finding in _once(_look_at_queue(site, name, repair)):
                yield Found(name, finding)


def _look_at_queue(site: Site, name: str, repair: bool) -> Iterator[Finding]:
    keys = keys_of(name, site.prefix)
    types = list(_steps(site, lambda cursor: ops.look_beside(keys, ops.TYPES, cursor, repair)))
    yield from types
    if any(not (repair and finding.fix) for finding in types):
        return  # nothing else can be looked at
    for part in ops.BESIDE:
        yield from _steps(site, lambda c: ops.look_beside(keys, part, c, repair))  # noqa: B023
    for part in ops.GROUPS:
        yield from _steps(site, lambda c: ops.look_at_groups(keys, part, c, repair))  # noqa: B023
    for part in ops.SCHEDULES:
        yield from _steps(site, lambda c: ops.look_at_schedules(keys, part, c, repair))  # noqa: B023
    for part, level in ops.JOBS:
        yield from _steps(
            site,
            lambda c: ops.look_at_jobs(keys, part, level, c, repair),  # noqa: B023
        )
    yield from _steps(site, lambda c: ops.look_at_edges(keys, c, repair))


def _steps(site: Site, step: Callable[[str], Command[Step]]) -> Iterator[Finding]:
    """What all steps find, from the first cursor to the last."""
    cursor = ops.BEGIN
    while True:
        cursor, findings = site.client.run(step(cursor))
        yield from findings
        if cursor == ops.BEGIN:
            return


def _can_be(name: str) -> bool:
    """Whether there can be a queue of this name; that it is in the list has been told."""
    try:
        check_name(name, "queue name")
    except UsageError:
        return False
    return True


def _once(findings: Iterator[Finding]) -> Iterator[Finding]:
    """A cursor may come by the same twice, and a job may be met in more than one key."""
    told: set[Finding] = set()
    for finding in findings:
        if finding not in told:
            told.add(finding)
            yield finding


def _print(found: Found, repair: bool) -> None:
    kind, id, says, fix = found.finding
    head = [Cell(found.queue or "-", "bold"), Cell(f"{kind:<9}", "yellow" if fix else "red")]
    done = (f"; {fix}" if repair else f"; with --repair it {fix}") if fix else "; left as it is"
    hanging(head, f"{short_id(id)} {says}{done}".strip())


def _sum_up(found: list[Found], repair: bool) -> None:
    all_, left = len(found), sum(not each.finding.fix for each in found)
    mends = "mends it" if all_ == 1 else "mends them"
    if left:
        mends = f"mends {all_ - left:,} of them"
    if not found:
        echo("All agrees.", "green")
    elif repair:
        are = "is left as it is" if left == 1 else "are left as they are"
        end = f", {left:,} {are}" if left else ""
        echo(f"{count(all_ - left, 'finding')} mended{end}.", "bold")
    else:
        echo(f"{count(all_, 'finding')}; `bide fsck --repair` {mends}.", "bold")


def report(site: Site, found: list[Found], repair: bool) -> dict[str, object]:
    """The findings as JSON has them."""
    return {
        "ok": not found,
        "server": site.where,
        "findings": [
            {"queue": queue or None, **finding._asdict(), "mended": repair and bool(finding.fix)}
            for queue, finding in found
        ],
    }
