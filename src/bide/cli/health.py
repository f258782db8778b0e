"""`bide health`: whether the server answers, and whether jobs of queues run on time.

For probes of containers and monitors: it imports no code of the application, asks the server a
few times, and says with its exit code what it found. Where no queue is named, it also looks at the
delayed jobs of RQ's queues, which a Timer is to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.probe import delayed_on_rq
from bide.cli.queues import next_due
from bide.cli.screen import count, echo, echo_json
from bide.cli.site import Site
from bide.clock import describe, to_us
from bide.contrib.rq_sets import DelaySet
from bide.errors import BideError, UsageError
from bide.ops.inspect import Counts
from bide.ops.registry import WorkerSeen


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
    counts: dict[str, Counts] = {}
    workers: list[WorkerSeen] = []
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
    counts: dict[str, Counts],
    workers: Sequence[WorkerSeen],
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


def lateness(counts: Counts) -> float:
    """Seconds by which the job that waits longest is overdue; 0 where none waits."""
    due = next_due(counts)
    return max(0.0, -due) if due is not None else 0.0


def _served(counts: dict[str, Counts], workers: Sequence[WorkerSeen]) -> str:
    if not counts:
        return " answers."
    late = max(lateness(each) for each in counts.values())
    overdue = f"the longest wait is {describe(late)}" if late else "nothing is overdue"
    return f" answers; live workers: {len(workers)}; {overdue}."


def _report(
    site: Site,
    problems: list[str],
    counts: dict[str, Counts],
    workers: Sequence[WorkerSeen],
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
