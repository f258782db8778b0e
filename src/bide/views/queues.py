"""Queues at a glance, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bide.errors import PayloadError, UsageError
from bide.model.durations import from_us, to_us
from bide.model.job import Snapshot
from bide.model.limits import describe_limits
from bide.protocol.commands import dependencies as dependency_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as ops
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.dependencies import GATE, is_remote, split_reference
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import BEGIN, GroupCounts, Page, WorkerInfo
from bide.queue.dependencies import by_queue
from bide.views.job import describe, masked_brief
from bide.views.params import Asked
from bide.views.site import HIDDEN, AsyncSite
from bide.views.timeline import last_minutes, lateness
from bide.views.times import moment_json


async def groups(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """Some of the groups of `q`, those with most jobs first; from `after` on.

    Raises:
        NotFound: there is no queue `q`.
        UsageError: `q` is not given, or `after` is none that was told.
    """
    queue = await site.one(asked.text("q"))
    after = asked.text("after") or BEGIN
    if not (after.isascii() and after.isdecimal()) or len(after) > 20:
        raise UsageError(
            f"after={after[:60]!r} is not a place in the list of groups; leave it out."
        )
    return {"name": queue, **piece(await site.client.run(ops.page(site.keys(queue), after)))}


def piece(page: Page) -> dict[str, Any]:
    """Groups as the page and the API have them."""
    found = sorted(page.groups, key=lambda one: (-one.delayed - one.waiting - one.active, one.name))
    listed = {
        one.name: one._asdict() | {"next": moment_json(from_us(page.turns[one.name]))}
        if one.name in page.turns
        else one._asdict() | {"next": None}
        for one in found
    }
    return {
        "now": moment_json(from_us(page.now_us)),
        "groups": list(listed.values()),
        "next": None if page.cursor == BEGIN else page.cursor,
    }


def workers_report(workers: list[WorkerInfo]) -> list[dict[str, Any]]:
    """Workers as JSON has them."""
    return [
        {
            "name": worker.name,
            "host": worker.about.host,
            "pid": worker.about.pid,
            "queues": worker.about.queues,
            "executor": worker.about.executor,
            "concurrency": worker.about.concurrency,
            "started": moment_json(from_us(worker.about.started_us)),
            "seen_ago": worker.ago,
            "alive": worker.alive,
            "version": worker.about.version,
            "busy": worker.about.busy,
            "doing": [
                {
                    "queue": job.queue,
                    "id": job.id,
                    "task": job.task,
                    "since": moment_json(job.since),
                }
                for job in worker.about.doing
            ],
            "rss": worker.about.rss,
            "unserved": worker.about.unserved,
            "skew": worker.about.skew,
        }
        for worker in workers
    ]


async def workers(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """The workers that live or hold a job.

    Raises:
        NotFound: there is no queue `q`.
    """
    names = await site.known(asked.text("q"))
    seen = await site.workers()
    return {"workers": workers_report([w for w in seen if set(names) & set(w.about.queues)])}


STATES = ("blocked", "delayed", "waiting", "active", "completed", "failed", "cancelled")


def queues_report(counts: dict[str, QueueStats]) -> dict[str, Any]:
    """Queues as JSON has them."""
    return {
        name: {state: getattr(each, state) for state in STATES}
        | {"paused": each.paused, "next_due_in": next_due(each), "totals": each.totals}
        | {"limits": limits_report(each), "schedules": each.schedules}
        for name, each in counts.items()
    }


def limits_report(counts: QueueStats) -> dict[str, Any]:
    """The same as JSON has it."""
    limits = counts.limits
    return {
        "rate": limits.rate,
        "burst": limits.burst,
        "concurrency": limits.concurrency,
        "held_until": moment_json(limits.held_until),
        "limited_until": moment_json(limits.limited_until),
    }


def next_due(counts: QueueStats) -> float | None:
    """Seconds until the next job is due, negative if it is overdue; None where there is none."""
    return (counts.next_due_us - counts.now_us) / 1e6 if counts.next_due_us else None


HOUR: Final = 60
"""The last minutes, of which lateness is told."""

GROUPS: Final = 10
"""Groups that are shown with a queue; more have a page of their own."""

_NEXT: Final = 10


async def queues(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """All queues with their jobs by state, and how many workers serve each."""
    names = await site.queues()
    counts = await site.counts(names)
    seen = await site.workers(jobs=0)
    report = queues_report(counts)
    for name, each in report.items():
        each["workers"] = sum(name in one.about.queues for one in seen)
    return {"now": _now(counts), "queues": report, "workers": len(seen)}


async def queue(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """One queue: its counts, what is due next, who serves it, how late its jobs began lately.

    Raises:
        UsageError: `q` is not given.
        NotFound: there is no queue `q`.
    """
    name = await site.one(asked.text("q"))
    keys = site.keys(name)
    counts, ahead, found = await site.client.run_many(
        [
            job_commands.counts(keys),
            job_commands.upcoming(keys, 0, _NEXT),
            queue_commands.page(keys, queue_commands.BEGIN),
        ]
    )
    coming = await site.fetch(name, [id for id, _ in ahead])
    retention = counts.retention
    return {
        "now": moment_json(counts.now),
        "name": name,
        "counts": queues_report({name: counts})[name],
        "is_data": counts.is_data,
        "retention": {
            "count": retention.count,
            **{
                state: to_us(getattr(retention, state), state) / 1e6
                for state in ("completed", "failed", "cancelled")
            },
        },
        "lateness": lateness(await last_minutes(site, name, HOUR)),
        "groups": (shown := piece(found))["groups"][:GROUPS],
        "more_groups": shown["next"] is not None or len(shown["groups"]) > GROUPS,
        "upcoming": [masked_brief(name, snapshot, site.mask) for snapshot in coming],
        **await workers(site, asked),
    }


def _now(counts: dict[str, QueueStats]) -> str | None:
    latest = max((each.now_us for each in counts.values()), default=0)
    return moment_json(from_us(latest)) if latest else None


MOST_RELATED: Final = 20
"""Parents and children that are named, at most."""


async def family(site: AsyncSite, queue: str, snapshot: Snapshot) -> dict[str, Any]:
    """Parents and children of a job, those of queues that are not shown without a name."""
    if snapshot.is_item:
        return {}
    try:
        parents = list(snapshot.head.parents)
    except PayloadError:
        parents = []
    below = await site.client.run(
        dependency_commands.children(site.keys(queue), snapshot.id, MOST_RELATED)
    )
    shown = set(await site.queues())
    waits_for = [hidden(one, shown) for one in snapshot.awaited if one != GATE]
    cause = snapshot.terms.cause
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
    """A reference without the name of a queue that is not shown."""
    if not is_remote(reference) or split_reference(reference)[0] in shown:
        return reference
    return HIDDEN


async def _named(
    site: AsyncSite, home: str, references: Sequence[str], shown: set[str]
) -> list[dict[str, Any]]:
    """Where each is, what it is and how it stands; a state of None for one that is no more."""
    seen: dict[tuple[str, str], Snapshot] = {}
    for queue, ids in by_queue(home, references).items():
        if queue in shown:
            seen |= {(queue, one.id): one for one in await site.fetch(queue, ids)}
    named: list[dict[str, Any]] = []
    for reference in references:
        queue, id = split_reference(reference) if is_remote(reference) else (home, reference)
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
    """What is configured of a group, as in `paused, 100/s, 2 at once`."""
    at_once = group.concurrency if with_count and group.is_configured else None
    parts = describe_limits(group.rate, group.burst, at_once)
    return ", ".join([*(["paused"] if group.paused else []), *parts])


def group_report(group: GroupCounts) -> dict[str, Any]:
    """The same as JSON has it."""
    return {
        "group": group.name,
        "rate": group.rate,
        "burst": group.burst,
        "concurrency": group.concurrency if group.is_configured else None,
        "paused": group.paused,
    }
