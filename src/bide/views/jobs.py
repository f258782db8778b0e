"""Jobs in lists and searches, one job, and failed jobs grouped by their error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.ids import LONGEST
from bide.model.job import FINISHED, State
from bide.model.payload.body import ErrorInfo
from bide.protocol.commands import jobs as job_commands
from bide.queue._async.scan import AsyncScan
from bide.queue.job_view import not_found
from bide.queue.select import (
    LONGEST_LINE,
    LOOK,
    Filter,
    FoundJob,
    Paging,
    check_range,
    first_line,
    kind_of,
    masked_error,
    pattern_of,
    read_pairs,
)
from bide.views._async import AsyncSite
from bide.views.job import masked_brief, masked_full, why_report
from bide.views.params import Params, moment_json
from bide.views.queues import dependencies, hidden
from bide.views.timeline import largest

PAGE: Final = 50

FILTER: Final = (
    *("state", "task", "group", "arg", "meta"),
    *("error", "kind", "text", "since", "until"),
)
"""The parameters of a filter."""


def read_filter(params: Params) -> Filter:
    """Read the parameters that `FILTER` names."""
    since_us, until_us = params.moment_us("since"), params.moment_us("until")
    check_range(since_us, until_us, "since=", "until=")
    return Filter(
        states=params.states(),
        task=pattern_of(params.text("task")),
        group=params.text("group") or None,
        args=read_pairs("arg", params.every("arg")),
        meta=read_pairs("meta", params.every("meta")),
        error=pattern_of(params.text("error")),
        kind=params.text("kind"),
        text=params.text("text"),
        since_us=since_us,
        until_us=until_us,
    )


async def jobs(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return a page of the jobs that match, and how many jobs were searched for them."""
    queues = await site.known(params.queues)
    wanted, after = read_filter(params), params.text("after")
    scan = AsyncScan(site, queues, wanted, look=LOOK, after=after)
    found = await scan.run(params.number("count", PAGE, 500) or PAGE)
    if wanted.text and not after:  # the text may be a job id, which needs no search
        met = {seen.id for seen in found}
        named = await _named(site, queues, wanted)
        found = [*(one for one in named if one.id not in met), *found]
    elif wanted.text:  # the first page had it
        found = [one for one in found if one.id != wanted.text]
    return {
        "jobs": [masked_brief(seen, site.mask) for seen in found],
        "looked": scan.looked,
        "total": scan.total,
        "filtered": scan.wanted.reads_jobs,
        "states": scan.states,
        "queues": await site.queues(),
        "next": scan.next and str(scan.next),
    }


async def _named(site: AsyncSite, queues: Sequence[str], wanted: Filter) -> list[FoundJob]:
    if len(wanted.text) > LONGEST:
        return []
    pages = await site.each(queues, lambda keys: job_commands.fetch(keys, [wanted.text]))
    found = [FoundJob(queue, seen) for queue, (seen,) in pages.items() if seen is not None]
    return [seen for seen in found if wanted.fits(seen, site.search_mask)]


async def job(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return all data of a job; without `q`, search all queues."""
    id = params.text("id")
    names = await site.known(params.queues)
    pages = await site.each(names if id else [], lambda keys: job_commands.fetch(keys, [id]))
    for name, (snapshot,) in pages.items():
        if snapshot is not None:
            run = snapshot.run
            above = set(await site.queues()) if snapshot.awaited else set()
            awaited = tuple(hidden(one, above) for one in snapshot.awaited)
            seen = FoundJob(name, snapshot._replace(awaited=awaited))
            (reasons,) = await site.reasons([seen])
            lease = snapshot.since_us if snapshot.state == State.ACTIVE else None
            return masked_full(FoundJob(name, snapshot), site.mask) | {
                **(await dependencies(site, name, snapshot)),
                "ended": snapshot.state in FINISHED,
                "first_due": run and moment_json(from_us(run.first_us)),
                "lease_until": lease and moment_json(from_us(lease)),
                "crashes": run.crashes if run else 0,
                "why": why_report(reasons),
            }
    raise not_found(id)


def read_range(params: Params) -> tuple[int, int]:
    """Read the range from `from` on and before `to`, in microseconds."""
    from_us, to_us = params.moment_us("from"), params.moment_us("to")
    if from_us is None or to_us is None:
        raise UsageError("A range needs from= and to=; choose one on the timeline.")
    if from_us >= to_us:
        raise UsageError("The range ends before it begins; exchange from= and to=.")
    return from_us, to_us


async def stretch(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Count the jobs of each queue that are due from `from` on and before `to`.

    Return the first by due time. For one queue, `after` gives the next page.
    """
    after_us, before_us = read_range(params)
    names = await site.known(params.queues)
    size = PAGE if len(names) > 1 else 0
    pages = await site.each(
        names, lambda keys: job_commands.list_due(keys, after_us, before_us, 0, size, by_due=True)
    )
    due = sorted((at, id, name) for name, page in pages.items() for id, at in page.jobs)[:PAGE]
    following = None
    if len(names) == 1:
        after = _read_place(params.text("after"), after_us, before_us)
        jobs, following = await _by_due(site, names[0], after, before_us)
        due = [(at, id, names[0]) for id, at in jobs]
    found = await site.next_due(names, due)
    sizes = {name: page.total for name, page in pages.items() if page.total}
    return {
        "from": moment_json(from_us(after_us)),
        "to": moment_json(from_us(before_us)),
        "from_us": after_us,
        "to_us": before_us,
        "queues": sizes,
        "total": sum(sizes.values()),
        "jobs": [masked_brief(seen, site.mask) for seen in found],
        "next": following and str(following),
    }


class _DuePlace(NamedTuple):
    """A position in the jobs of a range by due time, after a job."""

    due_us: int
    """The due time of the job."""
    number: int = 0
    """The number of jobs with this due time up to the job."""
    id: str = ""
    """The job's id; empty at the start of the range."""

    def __str__(self) -> str:
        return f"{self.due_us}.{self.number} {self.id}"


_PLACE: Final = re.compile(r"([0-9]{1,16})\.([0-9]{1,9}) (.+)", re.DOTALL)


def _read_place(text: str, from_us: int, to_us: int) -> _DuePlace:
    """Parse a position; an empty text means the start of the range."""
    if not text:
        return _DuePlace(from_us)
    found = _PLACE.fullmatch(text)
    if found is None or not from_us <= int(found[1]) < to_us:
        raise UsageError(
            f"after={text[:60]!r} is not a place in this range; leave it out for the first jobs."
        )
    return _DuePlace(int(found[1]), int(found[2]), found[3])


async def _by_due(
    site: AsyncSite, queue: str, after: _DuePlace, to_us: int
) -> tuple[list[tuple[str, int]], _DuePlace | None]:
    """Return a page of ids and due times, and the position of the next page."""
    paging = Paging(after.number, [after.id] if after.id else [])
    while True:
        start, size = paging.page(PAGE)
        command = job_commands.list_due(
            site.keys(queue), after.due_us, to_us, start, size, by_due=True
        )
        page = await site.client.run(command)
        fresh = paging.read([id for id, _ in page.jobs])
        if fresh or paging.is_over:
            break
    jobs = [(id, at) for id, at in page.jobs if id in fresh][:PAGE]
    if not jobs or fresh[jobs[-1][0]] + 1 >= page.total:
        return jobs, None
    id, at_us = jobs[-1]
    number = fresh[id] + 1 if at_us == after.due_us else sum(at == at_us for _, at in jobs)
    return jobs, _DuePlace(at_us, number, id)


LOOK_FAILED: Final = 2_000
"""Maximum number of failed jobs to read, of all queues together: the newest of each."""

LOOK_RETRIED: Final = 1_000
"""Maximum number of waiting and delayed jobs to read, to find those that will be retried."""

MOST_QUEUES: Final = 50
"""Maximum number of queues to read, those with the most failed jobs. It limits the round trips."""


@dataclass
class _Group:
    """The counters of a kind of failure, and its newest job."""

    error: str = ""
    message: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    first_us: int = 0
    last_us: int = 0
    sample: Mapping[str, str] = field(default_factory=dict)
    """Queue and id of the newest job."""

    def add(self, seen: FoundJob, kind: str, error: ErrorInfo | None) -> None:
        """Count a job."""
        at_us = seen.moment_us
        is_first = not self.queues  # the stored moment may be damaged, and have any value
        if is_first or at_us < self.first_us:
            self.first_us = at_us
        if is_first or at_us > self.last_us:
            self.last_us, self.sample = at_us, {"queue": seen.queue, "id": seen.id}
            self.error, self.message = (
                (error.type, first_line(error)[:LONGEST_LINE]) if error else (kind, "")
            )
        self.tasks[seen.snapshot.task] += 1
        self.queues[seen.queue] += 1

    def report(self, kind: str) -> dict[str, Any]:
        """Return the group in its JSON form."""
        return {
            "kind": kind,
            "error": self.error,
            "message": self.message,
            "count": self.queues.total(),
            "tasks": dict(self.tasks.most_common(5)),
            "queues": dict(self.queues.most_common(5)),
            "first": moment_json(from_us(self.first_us)),
            "last": moment_json(from_us(self.last_us)),
            "sample": self.sample,
        }


async def failures(site: AsyncSite, params: Params) -> dict[str, Any]:
    """Return failed jobs by kind of error, and jobs that will be retried.

    Numbers and quoted text may differ within a kind.
    """
    names = await site.known(params.queues)
    counts = await site.counts(names)
    failed = {name: each.failed for name, each in counts.items() if each.failed}
    ahead = {name: n for name, each in counts.items() if (n := each.waiting + each.delayed)}
    retried = Filter((State.WAITING, State.DELAYED), error="*")
    return {
        **await _by_kind(site, failed, Filter((State.FAILED,)), LOOK_FAILED),
        "retrying": await _by_kind(site, ahead, retried, LOOK_RETRIED),
        "queues": names,
    }


async def _by_kind(
    site: AsyncSite, counts: Mapping[str, int], wanted: Filter, look: int
) -> dict[str, Any]:
    """Group the matching jobs among up to `look` jobs by kind of error; `counts` is by queue."""
    groups: dict[str, _Group] = {}
    shown = largest(list(counts), MOST_QUEUES, counts.__getitem__)
    looked = 0
    for queue, share in _shares({queue: counts[queue] for queue in shown}, look).items():
        scan = AsyncScan(site, [queue], wanted, look=share)
        async for seen in scan.each():
            error = masked_error(seen.snapshot.notes.error, seen.snapshot.task, site.mask)
            kind = kind_of(error)
            groups.setdefault(kind, _Group()).add(seen, kind, error)
        looked += scan.looked
    ordered = sorted(groups.items(), key=lambda each: -each[1].queues.total())
    return {
        "groups": [group.report(kind) for kind, group in ordered],
        "looked": looked,
        "total": sum(counts.values()),
        "left_out": [queue for queue in counts if queue not in shown],
    }


def _shares(sizes: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divide a number equally among queues; pass on what a queue does not need."""
    shares: dict[str, int] = {}
    for queue in sorted(sizes, key=sizes.__getitem__):
        shares[queue] = min(sizes[queue], budget // (len(sizes) - len(shares)))
        budget -= shares[queue]
    return shares
