"""Which jobs a command means: those of some ids, or all that fit a filter.

While a list is read page by page, jobs come and go; `bide.views.jobs` says how it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Final

import click

from bide.cli.options import queues_option, together
from bide.cli.screen import aside
from bide.errors import UsageError
from bide.model.durations import at_to_us, to_us
from bide.model.ids import check_name, short_id
from bide.model.job import State
from bide.protocol.commands import jobs as job_commands
from bide.views.job import FoundJob
from bide.views.jobs import OVERLAP, Filter, Paging, anywhere
from bide.views.params import read_moment
from bide.views.site import Site, mask_secrets

MOST: Final = 1_000_000_000
"""More jobs than any server holds: what `--limit` and `--offset` may be."""

PAGE: Final = job_commands.MAX_PAGE

ORDER: Final = (
    State.ACTIVE,
    State.WAITING,
    State.DELAYED,
    State.BLOCKED,
    State.FAILED,
    State.CANCELLED,
    State.COMPLETED,
)
"""States as lists show them: what may need a look comes first."""


@dataclass(frozen=True)
class Wanted:
    """What the options of a command say of the jobs that are meant."""

    queues: tuple[str, ...]
    states: tuple[str, ...]
    task: str | None
    error: str | None
    older_than: str | None
    due_before: str | None

    @property
    def given(self) -> tuple[tuple[str, ...] | str | None, ...]:
        """What they say besides the queue; None, or no states, where an option is not given."""
        return (self.states or None, self.task, self.error, self.older_than, self.due_before)

    def filter(self, otherwise: Sequence[State] = ORDER) -> Filter:
        """Make a filter; without `states` it has the states `otherwise`."""
        asked = [State(state) for state in self.states] or otherwise
        older, before = self.older_than, self.due_before
        return Filter(
            states=tuple(state for state in ORDER if state in asked),
            task=self.task,
            error=None if self.error is None else anywhere(self.error),
            older_us=None if older is None else to_us(older, "--older-than"),
            due_before_us=None if before is None else _read_before(before),
        )


def filter_options(function: Callable[..., Any]) -> Any:
    """Options that say which jobs are meant; the command gets them as `wanted`."""

    @wraps(function)
    def with_wanted(*args: Any, **options: Any) -> Any:
        said = {field.name: options.pop(field.name) for field in fields(Wanted)}
        return function(*args, wanted=Wanted(**said), **options)

    return _FILTER(with_wanted)


_FILTER: Final = together(
    queues_option("Queue to look in; repeat for more."),
    click.option(
        *("-s", "--state", "states"),
        multiple=True,
        metavar="STATE",
        type=click.Choice([state.value for state in ORDER]),
        help=f"State of the jobs; repeat for more: {', '.join(ORDER)}.",
    ),
    click.option("--task", metavar="PATTERN", help="Name of the task, or a pattern: 'shop:*'."),
    click.option(
        "--error",
        metavar="PATTERN",
        help="Part of the last error, or a pattern: 'KeyError: *'.",
    ),
    click.option(
        "--older-than",
        metavar="DURATION",
        help="Minimum age of a job, since its end, start or due time (depending on its state).",
    ),
    click.option(
        "--due-before",
        metavar="WHEN",
        help="Jobs that are due before a moment, or within a duration from now.",
    ),
)


def _read_before(text: str) -> int:
    try:
        ahead = timedelta(microseconds=to_us(text, "--due-before"))
    except UsageError:
        return at_to_us(read_moment(text, "--due-before"))
    return at_to_us(datetime.now(UTC) + ahead)


# -- by filter


def scan(
    site: Site, queues: Sequence[str], wanted: Filter, tick: Callable[[int], None]
) -> Iterator[FoundJob]:
    """The jobs that fit, state by state and queue by queue; `tick` gets how many were looked at."""
    for _, queue, ids in pages(site, queues, wanted.states, tick):
        for seen in look_up(site, queue, ids):
            if wanted.fits(seen, mask_secrets):
                yield seen


def pages(
    site: Site, queues: Sequence[str], states: Sequence[State], tick: Callable[[int], None]
) -> Iterator[tuple[State, str, list[str]]]:
    """State, queue and ids, a page at a time, each id once."""
    for state in states:
        for queue in queues:
            paging = Paging()
            while not paging.is_over:
                start, size = paging.page(PAGE - OVERLAP)
                ids = site.client.run(job_commands.listing(site.keys(queue), state, start, size))
                fresh = list(paging.read(ids))
                tick(len(fresh))
                if fresh:
                    yield state, queue, fresh


def look_up(site: Site, queue: str, ids: Sequence[str]) -> Iterator[FoundJob]:
    """Jobs of one queue by id, those that are there; a round trip for each page."""
    for i in range(0, len(ids), PAGE):
        commands = job_commands.fetch_many(site.keys(queue), ids[i : i + PAGE])
        for chunk in site.client.run_many(commands):
            yield from (FoundJob(queue, seen) for seen in chunk if seen is not None)


# -- by id


def read_ids(ids: Sequence[str]) -> list[str]:
    """Ids as given; `-` stands for those on standard input, the first word of each line."""
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
    """The jobs of these ids, in the order given, and the ids that lead nowhere."""
    found: dict[str, FoundJob] = {}
    for queue in site.known(queues):
        for seen in look_up(site, queue, ids):
            if seen.id in found:
                raise UsageError(
                    f"There is a job {short_id(seen.id)!r} in {found[seen.id].queue} and in "
                    f"{queue}; say which is meant with --queue."
                )
            found[seen.id] = seen
    return [found[id] for id in ids if id in found], [id for id in ids if id not in found]
