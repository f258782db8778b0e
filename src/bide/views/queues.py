"""The overview of queues, a single queue, groups, workers, and the outboxes of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from bide.errors import BideError, PayloadError, UsageError
from bide.model.durations import from_us, to_us
from bide.model.job import LISTABLE, Snapshot
from bide.model.limits import Retention, describe_limits
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import GATE, is_remote, split_reference
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import BEGIN, GroupCounts, GroupPage, WorkerInfo
from bide.queue.dependencies import by_queue
from bide.queue.select import FoundJob
from bide.views._async import AsyncSite
from bide.views.job import HIDDEN, describe, masked_brief
from bide.views.params import NotFound, Params, moment_json, report
from bide.views.timeline import last_minutes, summarize_lateness
from bide.worker.relay import OutboxLike, OutboxRow, explained


async def groups(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return some groups of `q`, from `after` on, those with the most jobs first."""
    queue = await site.one(params.text("q"))
    after = params.text("after") or BEGIN
    if not (after.isascii() and after.isdecimal()) or len(after) > 20:
        raise UsageError(
            f"after={after[:60]!r} is not a place in the list of groups; leave it out."
        )
    return {
        "name": queue,
        **piece(await site.client.run(queue_commands.page(site.keys(queue), after))),
    }


def most_first(groups: Iterable[GroupCounts]) -> list[GroupCounts]:
    """Sort groups by their number of jobs, largest first."""
    return sorted(groups, key=lambda one: (-one.delayed - one.waiting - one.active, one.name))


def piece(page: GroupPage) -> dict[str, Any]:
    """Return groups in the form of the dashboard and its API."""
    turns = {name: moment_json(from_us(at_us)) for name, at_us in page.turns.items()}
    return {
        "now": moment_json(from_us(page.now_us)),
        "groups": [
            one._asdict() | {"next": turns.get(one.name)} for one in most_first(page.groups)
        ],
        "next": None if page.cursor == BEGIN else page.cursor,
    }


def workers_report(workers: list[WorkerInfo]) -> list[dict[str, Any]]:
    """Return workers in their JSON form."""
    return [
        {
            "name": worker.name,
            **report(about, "host", "pid", "queues", "executor", "concurrency", "started"),
            "seen_ago": worker.ago,
            "alive": worker.alive,
            **report(about, "version", "busy"),
            "doing": [report(job, "queue", "id", "task", "since") for job in about.doing],
            **report(about, "paused", "rss", "tasks", "unknown_tasks", "skew"),
        }
        for worker in workers
        for about in [worker.about]
    ]


async def workers(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return the workers that live or hold a job."""
    names = await site.known(params.queues)
    seen = await site.workers()
    return {"workers": workers_report([w for w in seen if set(names) & set(w.about.queues)])}


def queues_report(counts: dict[str, QueueStats]) -> dict[str, Any]:
    """Return queues in their JSON form."""
    return {
        name: report(each, *LISTABLE)
        | {"paused": each.paused, "next_due_in": next_due(each), "totals": each.totals}
        | {"limits": limits_report(each), "schedules": each.schedules}
        for name, each in counts.items()
    }


def limits_of(limits: Mapping[str, Any]) -> list[str]:
    """Describe the limits of a queue, from the result of `limits_report`."""
    names = ("rate", "burst", "concurrency", "group_rate", "group_burst")
    return describe_limits(*(limits[name] for name in names))


def limits_report(counts: QueueStats) -> dict[str, Any]:
    """The same as JSON has it."""
    names = ("rate", "burst", "concurrency", "group_rate", "group_burst")
    known = report(counts.limits, *names, "held_until", "limited_until", "declared")
    overridden = counts.overridden
    if (kept := overridden.get("retention")) is not None:
        overridden["retention"] = retention_report(kept)
    return known | {"overridden": overridden}


def retention_report(retention: Retention) -> dict[str, Any]:
    """Return a retention in its JSON form: ages in seconds."""
    return {
        "count": retention.count,
        "results": retention.result_bytes(),
        **{
            state: to_us(getattr(retention, state), state) / 1e6
            for state in ("completed", "failed", "cancelled")
        },
    }


def next_due(counts: QueueStats) -> float | None:
    """Return seconds until the next job is due, negative if overdue; None if there is none."""
    return (counts.next_due_us - counts.now_us) / 1e6 if counts.next_due_us else None


HOUR: Final = 60
"""Number of minutes over which lateness is shown."""

GROUPS: Final = 10
"""Maximum number of groups on the page of a queue."""

_NEXT: Final = 10


async def queues(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return all queues with their jobs by state and their number of workers."""
    names = await site.queues()
    counts = await site.counts(names)
    alive = [one for one in await site.workers(jobs=0) if one.alive]
    shown = queues_report(counts)
    for name, each in shown.items():
        each["workers"] = sum(name in one.about.queues for one in alive)
    latest = max((each.now_us for each in counts.values()), default=0)
    now = moment_json(from_us(latest)) if latest else None
    return {"now": now, "queues": shown, "workers": len(alive)}


async def queue(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return a queue: its counts, upcoming jobs, workers and recent lateness."""
    name = await site.one(params.text("q"))
    keys = site.keys(name)
    counts, ahead, found = await site.client.run_many(
        [
            job_commands.counts(keys),
            job_commands.upcoming(keys, 0, _NEXT),
            queue_commands.page(keys, queue_commands.BEGIN),
        ]
    )
    coming = await site.fetch(name, [id for id, _ in ahead])
    return {
        "now": moment_json(counts.now),
        "name": name,
        "counts": queues_report({name: counts})[name],
        "is_data": counts.is_data,
        "retention": retention_report(counts.retention),
        "lateness": summarize_lateness(await last_minutes(site, name, HOUR)),
        "groups": (shown := piece(found))["groups"][:GROUPS],
        "more_groups": shown["next"] is not None or len(shown["groups"]) > GROUPS,
        "upcoming": [masked_brief(FoundJob(name, snapshot), site.mask) for snapshot in coming],
        **await workers(site, params),
    }


MOST_RELATED: Final = 20
"""Maximum number of parents, and of children, that are shown."""


async def dependencies(site: AsyncSite, queue: str, snapshot: Snapshot) -> dict[str, Any]:
    """Return parents and children of a job; jobs of hidden queues have no names."""
    if snapshot.is_item:
        return {}
    try:
        parents = list(snapshot.head.parents)
    except PayloadError:
        parents = []
    below = await site.client.run(
        enqueue_commands.children(site.keys(queue), snapshot.id, MOST_RELATED)
    )
    shown = set(await site.queues())
    waits_for = [hidden(one, shown) for one in snapshot.awaited if one != GATE]
    cause = snapshot.constraints.cause
    return {
        "parents": [hidden(one, shown) for one in parents],
        "waits_for": waits_for,
        "cancelled_by": cause and hidden(cause, shown),
        "cause": (await _named(site, queue, [cause], shown))[0] if cause else None,
        "above": await _named(site, queue, parents[:MOST_RELATED], shown),
        "below": await _named(site, queue, below.ids, shown),
        "below_count": below.total,
    }


def hidden(reference: str, shown: set[str]) -> str:
    """Remove the name of a hidden queue from a reference."""
    if not is_remote(reference) or split_reference(reference)[0] in shown:
        return reference
    return HIDDEN


async def _named(
    site: AsyncSite, own: str, references: Sequence[str], shown: set[str]
) -> list[dict[str, Any]]:
    """Return queue, description and state of each job; None for a job that no longer exists."""
    seen: dict[tuple[str, str], Snapshot] = {}
    for queue, ids in by_queue(own, references).items():
        if queue in shown:
            seen |= {(queue, one.id): one for one in await site.fetch(queue, ids)}
    named: list[dict[str, Any]] = []
    for reference in references:
        queue, id = split_reference(reference) if is_remote(reference) else (own, reference)
        if queue not in shown:
            named.append({"queue": None, "id": HIDDEN, "state": None, "description": None})
            continue
        one = seen.get((queue, id))
        told = one and describe(one, site.mask)
        named.append(
            {"queue": queue, "id": id, "state": one and one.state.value, "description": told}
        )
    return named


def group_line(group: GroupCounts, with_count: bool = True) -> str:
    """Describe the settings of a group: `paused, 100/s, 2 at once`."""
    concurrency = group.concurrency if with_count and group.is_configured else None
    parts = describe_limits(group.rate if group.has_own_rate else None, group.burst, concurrency)
    if group.rate and not group.has_own_rate:
        parts += [f"{one} by the queue" for one in describe_limits(group.rate, group.burst)]
    return ", ".join([*(["paused"] if group.paused else []), *parts])


def group_report(group: GroupCounts) -> dict[str, Any]:
    """The same as JSON has it."""
    return {
        "group": group.name,
        **report(group, "rate", "burst", "has_own_rate"),
        "concurrency": group.concurrency if group.is_configured else None,
        "paused": group.paused,
    }


T = TypeVar("T")

MOST_ROWS: Final = 50
"""Maximum number of refused rows, and of waiting rows, of each outbox."""


async def outboxes(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return the outboxes: the number of waiting rows, their age, and the oldest rows."""
    found = [await _look_at(name, outbox) for name, outbox in site.outboxes.items()]
    return {"now": moment_json(site.now), "outboxes": found}


def outbox_of(site: AsyncSite, name: str) -> OutboxLike:
    """Return an outbox by its name.

    Raises:
        NotFound: the dashboard does not have it.
    """
    if name not in site.outboxes:
        raise NotFound(f"There is no outbox {name[:60]!r} here; start with --outbox to show it.")
    return site.outboxes[name]


async def in_thread(call: Callable[[], T]) -> T:
    """Call the database in a thread, and convert its error to bide's."""

    def called() -> T:
        with explained():
            return call()

    return await asyncio.to_thread(called)


async def repair_rows(site: AsyncSite, params: Params, verb: str) -> int:
    """Retry or delete the row in a form, or retry all refused rows; return their number.

    Raises:
        NotFound: the row does not exist any more.
        UsageError: the form names no row.
    """
    outbox = outbox_of(site, params.text("outbox"))
    if verb == "retry-rows":
        return await in_thread(outbox.retry_rows)
    number = params.number("row", 0, 2**63 - 1)
    if not number:
        raise UsageError("Which row? Give its number as row=.")
    change = outbox.retry_rows if verb == "retry-row" else outbox.delete_rows
    done = await in_thread(lambda: change([number]))
    if not done:
        kind = "refused row" if verb == "retry-row" else "row"
        raise NotFound(f"There is no {kind} {number} any more; it was sent, retried or deleted.")
    return done


async def _look_at(name: str, outbox: OutboxLike) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        stats = outbox.stats()
        refused = outbox.list_rows(MOST_ROWS, refused=True) if stats.refused else []
        # Refused rows may be the oldest rows, so twice as many are read.
        oldest = outbox.list_rows(MOST_ROWS + min(stats.refused, 1_000)) if stats.waiting else []
        waiting = [row for row in oldest if not row.refused][:MOST_ROWS]
        return {
            **stats._asdict(),
            "refused_rows": [_row_report(row) for row in refused],
            "waiting_rows": [_row_report(row) for row in waiting],
        }

    try:
        return {"name": name, "problem": None, **await in_thread(read)}
    except BideError as error:  # the other outboxes are shown
        return {"name": name, "problem": str(error)}


def _row_report(row: OutboxRow) -> dict[str, Any]:
    return {**row._asdict(), "written": moment_json(row.written)}
