"""For monitoring: `bide health`, `bide fsck`, and `bide metrics` for Prometheus.

`bide health` is for probes of containers and for monitors. It imports no code of the application,
makes a few calls, and returns the result as its exit code. Without `--queue`, it also checks the
delayed jobs of RQ's queues, which a Timer moves.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import click

from bide.cli.options import (
    flag,
    import_from_here,
    json_option,
    option,
    queues_option,
    site_options,
)
from bide.cli.screen import Cell, echo, echo_json, hanging
from bide.cli.server import delayed_on_rq, memory, queues_with_keys
from bide.client.coalesce import ReadThroughCache
from bide.contrib.rq_sets import DelaySet
from bide.errors import BideError, ClientTooOld, ServerRefused, UsageError
from bide.logs import count
from bide.model.durations import describe, to_us
from bide.model.ids import check_name, short_id
from bide.model.job import LISTABLE
from bide.model.latency import Family, expose
from bide.model.limits import Limits
from bide.protocol.commands import Command
from bide.protocol.commands import fsck as ops
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.fsck import Finding, Step
from bide.protocol.commands.jobs import QueueStats, count_due
from bide.protocol.commands.queues import WorkerInfo
from bide.views._sync import Site
from bide.views.params import report
from bide.views.timeline import overdue
from bide.worker.relay import OutboxLike, explained, load_outbox
from bide.worker.supervisor import Metrics, serve


@click.command()
@queues_option("Queue that a live worker must serve; repeat for more.")
@option(
    "--max-lateness",
    "DURATION",
    "Maximum time by which a job may be overdue, in the given queues or in all queues.",
)
@site_options
@json_option
@click.pass_context
def health(
    ctx: click.Context, queues: tuple[str, ...], max_lateness: str | None, site: Site, as_json: bool
) -> None:
    """Exit with 0 if the server answers and queues are served.

    With --queue, a live worker must serve that queue. With --max-lateness, no job may be overdue by
    more. Otherwise the command exits with 1, and prints a line for each problem. It imports no code
    of yours. A job is overdue while it waits, also in a paused queue, or if a limit or its group
    holds it back. Without --queue, a live Timer (bide rq-timer) must serve RQ's queues if one of
    their delayed jobs is overdue.
    """
    limit = None if max_lateness is None else to_us(max_lateness, "--max-lateness") / 1e6
    counts: dict[str, QueueStats] = {}
    served: Counter[str] = Counter()
    problems: list[str] = []
    sets: list[DelaySet] = []
    workers: list[WorkerInfo] = []
    try:
        there = site.queues()
        asked = list(dict.fromkeys(queues)) or there
        counts = site.counts(asked)
        workers = [worker for worker in site.workers() if worker.alive]
        served = Counter(queue for worker in workers for queue in {*worker.about.queues})
        for queue in asked:
            if queues and queue not in served:
                unused = "" if queue in there else " and it has never been used"
                problems.append(f"{queue}: no live worker serves it{unused}.")
            late = overdue(counts[queue])
            if limit is not None and late > limit:
                paused = ", and it is paused" if counts[queue].paused else ""
                problems.append(f"{queue}: a job is overdue by {describe(late)}{paused}.")
        sets = [] if queues else delayed_on_rq(site.client) or []
        for each in sets:
            if each.overdue and not each.timers:
                late_jobs = count(each.overdue, "job")
                problems.append(f"{late_jobs} overdue in {each.key}, no timer alive.")
            elif limit is not None and each.lateness > limit:
                problems.append(f"{each.key}: a job is overdue by {describe(each.lateness)}.")
    except UsageError:
        raise
    except BideError as error:
        if not as_json:
            raise
        problems = [str(error)]
    if as_json:
        shown = {
            name: {"lateness": overdue(each), "workers": served[name], "paused": each.paused}
            for name, each in counts.items()
        }
        rq = {one.key: report(one, "lateness", "overdue", "waiting", "timers") for one in sets}
        found = {"ok": not problems, "server": site.where, "problems": problems}
        echo_json(found | {"queues": shown, "rq": rq})
    elif problems:
        for problem in problems:
            echo(problem, "red")
    else:
        echo(f"ok: {site.where}{_served(counts, workers)}")
    ctx.exit(1 if problems else 0)


def _served(counts: dict[str, QueueStats], workers: Sequence[WorkerInfo]) -> str:
    if not counts:
        return " answers."
    late = max(overdue(each) for each in counts.values())
    longest = f"the longest wait is {describe(late)}" if late else "nothing is overdue"
    return f" answers; live workers: {len(workers)}; {longest}."


_LATER: Final = 1.0
"""Seconds from the first job of a queue until the queue must be in the list."""


class Found(NamedTuple):
    """A finding and its queue."""

    queue: str
    """The queue; empty if the finding is about no queue."""
    finding: Finding


@click.command()
@queues_option("Queue to check; repeat for more.")
@flag("--repair", "Repair what is found, and print each repair.")
@site_options
@json_option
@click.pass_context
def fsck(
    ctx: click.Context, queues: tuple[str, ...], repair: bool, site: Site, as_json: bool
) -> None:
    """Check that sets, jobs and records of the queues agree.

    The command exits with 1 if it found something, also if it repaired it. Workers and producers
    may continue meanwhile: each step is short, and its findings are exact. A repair loses no job:
    a job that can run again becomes due, and any other job fails with the reason.
    """
    found: list[Found] = []
    for each in look(site, queues, repair):
        found.append(each)
        if not as_json:
            _print(each, repair)
    if as_json:
        findings = [
            {"queue": queue or None, **finding._asdict(), "repaired": repair and bool(finding.fix)}
            for queue, finding in found
        ]
        echo_json({"ok": not found, "server": site.where, "findings": findings})
    else:
        _sum_up(found, repair)
    ctx.exit(1 if found else 0)


def look(site: Site, queues: tuple[str, ...], repair: bool) -> Iterator[Found]:
    """Check these queues, or all queues and the lists; yield each finding once."""
    if queues:
        names = site.known(queues)
    else:
        lists = [
            Found("", finding)
            for look_at in (ops.look_at_queues, ops.look_at_workers)
            for finding in _once(_steps(site, partial(look_at, site.everywhere), repair))
        ]
        yield from lists
        if any(each.finding.kind == ops.TYPE for each in lists):
            return  # the list of queues cannot be read
        yield from _look_for_queues(site, repair)
        names = site.queues()
    for name in filter(_can_be, names):
        try:
            for finding in _once(_look_at_queue(site, name, repair)):
                yield Found(name, finding)
        except ClientTooOld as error:
            yield Found(name, Finding("schema", "", str(error), ""))


def _look_for_queues(site: Site, repair: bool) -> Iterator[Found]:
    """Yield queues missing in the list; a new queue is listed a moment after its first job."""
    missing = queues_with_keys(site.client, site.prefix) - set(site.queues())
    if not missing:
        return
    time.sleep(_LATER)
    for name in sorted(filter(_can_be, missing - set(site.queues()))):
        says = "has keys, and is not in the list of queues"
        yield Found("", Finding("queues", name, says, "is added"))
        if repair:
            site.client.run(queue_commands.register_queues(site.everywhere, [name]))
        else:
            for finding in _once(_look_at_queue(site, name, repair)):
                yield Found(name, finding)


def _look_at_queue(site: Site, name: str, repair: bool) -> Iterator[Finding]:
    keys = site.keys(name)
    types = list(_steps(site, partial(ops.look_beside, keys, ops.TYPES), repair))
    yield from types
    if any(not (repair and finding.fix) for finding in types):
        return  # nothing else can be checked
    looks: list[Callable[[str, bool], Command[Step]]] = [
        *(partial(ops.look_beside, keys, part) for part in ops.BESIDE),
        *(partial(ops.look_at_groups, keys, part) for part in ops.GROUPS),
        *(partial(ops.look_at_schedules, keys, part) for part in ops.SCHEDULES),
        *(partial(ops.look_at_jobs, keys, part, level) for part, level in ops.JOBS),
        partial(ops.look_at_edges, keys),
    ]
    for look_at in looks:
        yield from _steps(site, look_at, repair)


def _steps(
    site: Site, look_at: Callable[[str, bool], Command[Step]], repair: bool
) -> Iterator[Finding]:
    """Yield the findings of all steps, from the first cursor to the last."""
    cursor = ops.BEGIN
    while True:
        cursor, findings = site.client.run(look_at(cursor, repair))
        yield from findings
        if cursor == ops.BEGIN:
            return


def _can_be(name: str) -> bool:
    """Whether the name is valid; an invalid name in the list has been reported already."""
    try:
        check_name(name, "queue name")
    except UsageError:
        return False
    return True


def _once(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield each finding once: a scan may return a key twice, and several keys name a job."""
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
    repairs = "repairs it" if all_ == 1 else "repairs them"
    if left:
        repairs = f"repairs {all_ - left:,} of them"
    if not found:
        echo("All agrees.", "green")
    elif repair:
        are = "is left as it is" if left == 1 else "are left as they are"
        end = f", {left:,} {are}" if left else ""
        echo(f"{count(all_ - left, 'finding')} repaired{end}.", "bold")
    else:
        echo(f"{count(all_, 'finding')}; `bide fsck --repair` {repairs}.", "bold")


WITHIN: Final = (1, 10, 60, 600, 3600, 86_400)
"""The times ahead, in seconds, for which due jobs are counted."""


@click.command()
@queues_option("Queue to report; repeat for more.  [default: all]")
@option(
    "--port",
    "",
    "Port that answers /metrics until Ctrl-C, instead of printing once.",
    type=click.IntRange(0, 65_535),
)
@option(
    "--host", "", "The interface for --port; 0.0.0.0 lets other machines in.  [default: 127.0.0.1]"
)
@option("--outbox", "OUTBOX", "Outbox whose rows are counted too: shop.db:outbox.")
@site_options
def metrics(
    queues: tuple[str, ...], port: int | None, host: str | None, outbox: str | None, site: Site
) -> None:
    """Print what queues hold, for Prometheus.

    One scrape target for a server is enough. Workers report their own metrics at /metrics of their
    --health-port.
    """
    if host and port is None:
        raise click.UsageError("--host is where --port answers; give that too: --port 9500.")
    found = None
    if outbox is not None:
        import_from_here()
        found = load_outbox(outbox)
    if port is None:
        click.echo(all_metrics(site, queues, found), nl=False)
    else:
        asyncio.run(_serve(site, queues, found, host or "127.0.0.1", port))


async def _serve(
    site: Site, queues: Sequence[str], outbox: OutboxLike | None, host: str, port: int
) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        server = await serve(host, port, {}, answering(site, queues, outbox))
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise ServerRefused(
            f"The command cannot listen on {host}, port {port} ({error}); give "
            "another --port or --host."
        ) from None
    where, number = server.sockets[0].getsockname()[:2]
    click.echo(
        f"answers http://{f'[{where}]' if ':' in where else where}:{number}/metrics", err=True
    )
    await stopped.wait()
    server.close()


def answering(site: Site, queues: Sequence[str], outbox: OutboxLike | None = None) -> Metrics:
    """Return what answers a scrape; scrapes at the same time share one read of the server."""
    reads = ReadThroughCache[str](0)
    return lambda: reads.read("", lambda: asyncio.to_thread(all_metrics, site, queues, outbox))


def all_metrics(site: Site, queues: Sequence[str], outbox: OutboxLike | None) -> str:
    """Return the figures of queues and of an outbox, as text for Prometheus."""
    text = queue_metrics(site, queues)
    if outbox is None:
        return text
    with explained():
        stats = outbox.stats()
    rows = [({"state": "waiting"}, stats.waiting), ({"state": "refused"}, stats.refused)]
    age = "Seconds since the oldest waiting row of the outbox was written."
    return text + expose(
        [
            Family("bide_outbox_rows", "gauge", "Rows of the outbox that were not sent.", rows),
            Family("bide_outbox_age_seconds", "gauge", age, [({}, stats.age)]),
        ]
    )


def queue_metrics(site: Site, queues: Sequence[str]) -> str:
    """Return the server's figures of these queues, or of all, as text for Prometheus."""
    names = site.known(queues)
    counts = site.counts(names)
    due = site.each(names, lambda keys: count_due(keys, WITHIN))
    workers = [worker.about for worker in site.workers() if worker.alive]

    def family(name: str, help: str, by_queue: Mapping[str, float]) -> Family:
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        return Family(name, kind, help, [({"queue": q}, value) for q, value in by_queue.items()])

    jobs = [
        ({"queue": name, "state": state}, getattr(seen, state))
        for name, seen in counts.items()
        for state in LISTABLE
    ]
    within = [
        ({"queue": name, "seconds": str(seconds)}, number)
        for name, numbers in due.items()
        for seconds, number in zip(WITHIN, numbers, strict=True)
    ]
    late = {name: overdue(seen) for name, seen in counts.items()}
    paused = {name: int(seen.paused) for name, seen in counts.items()}
    limited = {name: int(_is_limited(seen.limits)) for name, seen in counts.items()}
    serving = {name: sum(name in worker.queues for worker in workers) for name in counts}
    servers = memory(site.client)
    totals = {total: {n: seen.totals[total] for n, seen in counts.items()} for total in _TOTALS}
    return expose(
        [
            Family("bide_jobs", "gauge", "Jobs by state; waiting: due, not claimed.", jobs),
            Family("bide_jobs_due_within", "gauge", "Delayed jobs due within so many s.", within),
            family("bide_overdue_seconds", "Seconds by which the oldest due job is late.", late),
            family("bide_queue_paused", "1 if the queue is paused.", paused),
            family("bide_queue_limited", "1 if a limit may hold back due jobs.", limited),
            family("bide_queue_workers", "Live workers that serve the queue.", serving),
            *(family(f"bide_jobs_{t}_total", help, totals[t]) for t, help in _TOTALS.items()),
            Family(
                "bide_server_memory_bytes",
                "gauge",
                "Memory that the server uses.",
                [({"server": server}, each.used) for server, each in servers.items()],
            ),
            Family(
                "bide_server_memory_max_bytes",
                "gauge",
                "The server's maxmemory; 0 if it has no limit.",
                [({"server": server}, each.most) for server, each in servers.items()],
            ),
        ]
    )


def _is_limited(limits: Limits) -> bool:
    """Whether jobs of a queue may wait although they are due and a worker has free slots."""
    return any((limits.rate, limits.concurrency, limits.group_rate, limits.held_until))


_TOTALS: Final = {
    "completed": "Jobs that have completed.",
    "failed": "Jobs that have failed for good.",
    "cancelled": "Jobs that were cancelled before or during a run, or expired.",
    "expired": "Jobs that expired before they started.",
    "retried": "Failed attempts that were followed by another attempt.",
    "reclaimed": "Leases that ended without an outcome, and processes that died in a job.",
}
