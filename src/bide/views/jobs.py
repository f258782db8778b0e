"""Jobs in lists and searches, and one job."""

from __future__ import annotations

from typing import Any, Final

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.durations import from_us as to_moment
from bide.model.ids import LONGEST
from bide.model.job import FINISHED, Snapshot, State
from bide.protocol.commands import jobs as job_commands
from bide.queue.explain import Read, Reason, explain
from bide.queue.job_view import not_found
from bide.views.find import LOOK, Scan, Wanted
from bide.views.job import FoundJob, masked_brief, masked_full, why_report
from bide.views.params import Asked
from bide.views.queues import family, hidden
from bide.views.site import AsyncSite
from bide.views.times import moment_json

PAGE: Final = 50


async def jobs(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """Return a page of the jobs that match, and how many jobs were searched for them.

    Raises:
        UsageError: a parameter is invalid.
        NotFound: there is no queue `q`.
    """
    wanted, after = await Wanted.read(site, asked), asked.text("after")
    scan = Scan(site, wanted, look=LOOK, after=after)
    found = await scan.run(asked.number("count", PAGE, 500) or PAGE)
    if wanted.text and not after:  # the text may be a job id, which needs no search
        named = [
            one for one in await _named(site, wanted) if one.id not in {seen.id for seen in found}
        ]
        found = [*named, *found]
    return {
        "jobs": [masked_brief(seen.queue, seen.snapshot, site.mask) for seen in found],
        "looked": scan.looked,
        "total": scan.total,
        "filtered": scan.wanted.reads_jobs,
        "states": scan.states,
        "queues": await site.queues(),
        "next": scan.next and str(scan.next),
    }


async def _reasons(site: AsyncSite, queue: str, snapshot: Snapshot) -> list[Reason]:
    """Why it has not run; nothing where it has."""
    if snapshot.is_item or snapshot.state not in (State.BLOCKED, State.DELAYED, State.WAITING):
        return []
    counts, shown = await site.counts([queue]), set(await site.queues())
    awaited = tuple(hidden(one, shown) for one in snapshot.awaited)
    snapshot = snapshot._replace(awaited=awaited)
    return explain(Read(queue, snapshot, counts[queue], await site.workers()))


async def _named(site: AsyncSite, wanted: Wanted) -> list[FoundJob]:
    """The jobs whose id the text is."""
    if len(wanted.text) > LONGEST:
        return []
    commands = [job_commands.fetch(site.keys(queue), [wanted.text]) for queue in wanted.queues]
    return [
        FoundJob(queue, snapshot)
        for queue, (snapshot,) in zip(
            wanted.queues, await site.client.run_many(commands), strict=True
        )
        if snapshot is not None and wanted.fits(FoundJob(queue, snapshot), site)
    ]


async def job(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """Everything that is known of a job; without `q` it is looked for in all queues.

    Raises:
        JobNotFound: there is none.
        NotFound: there is no queue `q`.
    """
    id = asked.text("id")
    names = await site.known(asked.text("q"))
    commands = [job_commands.fetch(site.keys(name), [id]) for name in names] if id else []
    for name, (snapshot,) in zip(names, await site.client.run_many(commands), strict=False):
        if snapshot is not None:
            shown = masked_full(name, snapshot, site.mask)
            run = snapshot.run
            lease = snapshot.since_us if snapshot.state == State.ACTIVE else None
            return shown | {
                **(await family(site, name, snapshot)),
                "ended": snapshot.state in FINISHED,
                "first_due": run and moment_json(from_us(run.first_us)),
                "lease_until": lease and moment_json(from_us(lease)),
                "crashes": run.crashes if run else 0,
                "why": why_report(await _reasons(site, name, snapshot)),
            }
    raise not_found(id)


def read_range(asked: Asked) -> tuple[int, int]:
    """The range from `from` on and before `to`, in microseconds.

    Raises:
        UsageError: one is missing, or they are the wrong way round.
    """
    from_us, to_us = asked.moment_us("from"), asked.moment_us("to")
    if from_us is None or to_us is None:
        raise UsageError("A range needs from= and to=; choose one on the timeline.")
    if from_us >= to_us:
        raise UsageError("The range ends before it begins; exchange from= and to=.")
    return from_us, to_us


async def stretch(site: AsyncSite, asked: Asked) -> dict[str, Any]:
    """Count the jobs of each queue that are due from `from` on and before `to`; return some.

    Raises:
        UsageError: a parameter is invalid.
        NotFound: there is no queue `q`.
    """
    from_us, to_us = read_range(asked)
    start = asked.number("start", 0, 1_000_000_000)
    names = await site.known(asked.text("q"))
    pages = await site.client.run_many(
        [job_commands.list_due(site.keys(name), from_us, to_us, start, PAGE) for name in names]
    )
    found = sorted(
        (due_us, id, name)
        for name, page in zip(names, pages, strict=True)
        for id, due_us in page.jobs
    )[:PAGE]
    shown = []
    for name in names:
        ids = [id for _, id, queue in found if queue == name]
        shown += [(s.due_us, name, s) for s in await site.fetch(name, ids)] if ids else []
    shown.sort(key=lambda each: (each[0], each[2].id))
    sizes = {name: page.total for name, page in zip(names, pages, strict=True) if page.total}
    total = sum(sizes.values())
    # Several queues have only a first page: `start` counts the jobs of one queue.
    more = len(names) == 1 and start + PAGE < total
    return {
        "from": moment_json(to_moment(from_us)),
        "to": moment_json(to_moment(to_us)),
        "from_us": from_us,
        "to_us": to_us,
        "queues": sizes,
        "total": total,
        "jobs": [masked_brief(name, snapshot, site.mask) for _, name, snapshot in shown],
        "next": start + PAGE if more else None,
    }
