"""Jobs in lists and searches, and one job."""

from __future__ import annotations

from typing import Any, Final

from bide.cli.jobs.look import Seen, why_report
from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.ids import LONGEST
from bide.job import Snapshot
from bide.ops import inspect
from bide.queue.view import not_found
from bide.states import FINISHED, State
from bide.web.asked import Asked
from bide.web.reads.family import family, hidden
from bide.web.reads.scan import LOOK, Scan, Wanted
from bide.web.reads.shape import brief, full
from bide.web.site import Site
from bide.why import Read, Reason, why

PAGE: Final = 50


async def jobs(site: Site, asked: Asked) -> dict[str, Any]:
    """A page of the jobs that fit, and how far was looked for them.

    Raises:
        UsageError: a parameter cannot be meant.
        NotFound: there is no queue `q`.
    """
    wanted, after = await Wanted.read(site, asked), asked.text("after")
    scan = Scan(site, wanted, look=LOOK, after=after)
    found = await scan.run(asked.number("count", PAGE, 500) or PAGE)
    if wanted.text and not after:  # one whose id that is need not be looked for
        named = [
            one for one in await _named(site, wanted) if one.id not in {seen.id for seen in found}
        ]
        found = [*named, *found]
    return {
        "jobs": [brief(seen.queue, seen.snapshot, site.mask) for seen in found],
        "looked": scan.looked,
        "total": scan.total,
        "filtered": scan.wanted.reads_jobs,
        "states": scan.states,
        "queues": await site.queues(),
        "next": scan.next and str(scan.next),
    }


async def _reasons(site: Site, queue: str, snapshot: Snapshot) -> list[Reason]:
    """Why it has not run; nothing where it has."""
    if snapshot.is_item or snapshot.state not in (State.BLOCKED, State.DELAYED, State.WAITING):
        return []
    counts, shown = await site.counts([queue]), set(await site.queues())
    awaited = tuple(hidden(one, shown) for one in snapshot.awaited)
    snapshot = snapshot._replace(awaited=awaited)
    return why(Read(queue, snapshot, counts[queue], await site.workers()))


async def _named(site: Site, wanted: Wanted) -> list[Seen]:
    """The jobs whose id the text is."""
    if len(wanted.text) > LONGEST:
        return []
    commands = [inspect.fetch(site.keys(queue), [wanted.text]) for queue in wanted.queues]
    return [
        Seen(queue, snapshot)
        for queue, (snapshot,) in zip(
            wanted.queues, await site.client.run_many(commands), strict=True
        )
        if snapshot is not None and wanted.fits(Seen(queue, snapshot), site)
    ]


async def job(site: Site, asked: Asked) -> dict[str, Any]:
    """Everything that is known of a job; without `q` it is looked for in all queues.

    Raises:
        JobNotFound: there is none.
        NotFound: there is no queue `q`.
    """
    id = asked.text("id")
    names = await site.known(asked.text("q"))
    commands = [inspect.fetch(site.keys(name), [id]) for name in names] if id else []
    for name, (snapshot,) in zip(names, await site.client.run_many(commands), strict=False):
        if snapshot is not None:
            shown = full(name, snapshot, site.mask)
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
