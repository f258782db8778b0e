"""Which jobs a command means: those of some ids, or all that fit a filter.

While a list is read page by page, jobs come and go. Pages overlap, so that a job which moves a
little is not passed over, and one that is met twice counts once; what moves further meanwhile may
be missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import click

from bide.cli.options import queues_option, read_at
from bide.cli.screen import aside
from bide.errors import UsageError
from bide.model.durations import at_to_us, to_us
from bide.model.ids import check_name, short_id
from bide.model.job import State
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of
from bide.views.job import FoundJob, error_line
from bide.views.site import Site

F = TypeVar("F", bound=Callable[..., Any])

MOST: Final = 1_000_000_000
"""More jobs than any server holds: what `--limit` and `--offset` may be."""

PAGE: Final = job_commands.MAX_PAGE
OVERLAP: Final = 100

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
class Filter:
    """What a job must be, to be meant."""

    states: tuple[State, ...]
    task: str | None = None
    error: str | None = None
    older_us: int | None = None
    due_before_us: int | None = None

    @property
    def reads_jobs(self) -> bool:
        """Whether ids alone do not say who is meant."""
        return (self.task, self.error, self.older_us, self.due_before_us) != (None,) * 4

    def fits(self, seen: FoundJob) -> bool:
        """Whether it is one of those that are meant."""
        if seen.state not in self.states:
            return False
        if self.task is not None and not fnmatchcase(seen.snapshot.task, self.task):
            return False
        if self.error is not None:
            error = seen.snapshot.notes.error
            if error is None or not _matches(error_line(error), self.error):
                return False
        if self.older_us is not None and seen.snapshot.now_us - seen.moment_us <= self.older_us:
            return False
        return self.due_before_us is None or seen.snapshot.due_us < self.due_before_us


def _matches(text: str, pattern: str) -> bool:
    """A pattern without wildcards may stand anywhere."""
    if any(char in pattern for char in "*?["):
        return fnmatchcase(text, pattern)
    return pattern in text


def filter_options(function: F) -> F:
    """Options that say which jobs are meant."""
    for option in reversed(
        [
            queues_option("In this queue; again for more."),
            click.option(
                "-s",
                "--state",
                "states",
                multiple=True,
                metavar="STATE",
                type=click.Choice([state.value for state in ORDER]),
                help=f"In this state; again for more: {', '.join(ORDER)}.",
            ),
            click.option(
                "--task", metavar="PATTERN", help="Whose task's name is, or fits, this: 'shop:*'."
            ),
            click.option(
                "--error",
                metavar="PATTERN",
                help="Whose last error holds this text, or fits it: 'KeyError: *'.",
            ),
            click.option(
                "--older-than",
                metavar="DURATION",
                help="That ended, began or were due (as their state has it) longer ago.",
            ),
            click.option(
                "--due-before",
                metavar="WHEN",
                help="Due before a moment, or within a duration from now.",
            ),
        ]
    ):
        function = option(function)
    return function


def read_filter(
    states: Sequence[str],
    task: str | None,
    error: str | None,
    older_than: str | None,
    due_before: str | None,
    otherwise: Sequence[State] = ORDER,
) -> Filter:
    """Make a filter from options; without `states` it has the states `otherwise`.

    Raises:
        UsageError: an option is invalid.
    """
    asked = [State(state) for state in states] or otherwise
    return Filter(
        states=tuple(state for state in ORDER if state in asked),
        task=task,
        error=error,
        older_us=None if older_than is None else to_us(older_than, "--older-than"),
        due_before_us=None if due_before is None else _read_before(due_before),
    )


def _read_before(text: str) -> int:
    try:
        ahead = timedelta(microseconds=to_us(text, "--due-before"))
    except UsageError:
        return at_to_us(read_at(text, "--due-before"))
    return at_to_us(datetime.now(UTC) + ahead)


# -- by filter


def scan(
    site: Site, queues: Sequence[str], wanted: Filter, tick: Callable[[int], None]
) -> Iterator[FoundJob]:
    """The jobs that fit, state by state and queue by queue; `tick` hears how many were looked at.

    Raises:
        BideError: the server failed.
    """
    for _, queue, ids in pages(site, queues, wanted.states, tick):
        for seen in look_up(site, queue, ids):
            if seen is not None and wanted.fits(seen):
                yield seen


def pages(
    site: Site, queues: Sequence[str], states: Sequence[State], tick: Callable[[int], None]
) -> Iterator[tuple[State, str, list[str]]]:
    """State, queue and ids, a page at a time, each id once."""
    for state in states:
        for queue in queues:
            keys, start, seen = keys_of(queue, site.prefix), 0, set[str]()
            while True:
                ids = site.client.run(job_commands.listing(keys, state, start, PAGE))
                fresh = [id for id in ids if id not in seen]
                seen.update(fresh)
                tick(len(fresh))
                if fresh:
                    yield state, queue, fresh
                if len(ids) < PAGE:
                    break
                start += PAGE - OVERLAP


def look_up(site: Site, queue: str, ids: Sequence[str]) -> Iterator[FoundJob | None]:
    """Jobs of one queue by id, a round trip for each page; None for one that is not there."""
    keys = keys_of(queue, site.prefix)
    for i in range(0, len(ids), PAGE):
        commands = job_commands.fetch_many(keys, ids[i : i + PAGE])
        for chunk in site.client.run_many(commands):
            for snapshot in chunk:
                yield None if snapshot is None else FoundJob(queue, snapshot)


# -- by id


def read_ids(ids: Sequence[str]) -> list[str]:
    """Ids as given; `-` stands for those on standard input, the first word of each line.

    Raises:
        UsageError: one cannot be an id.
    """
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
    """The jobs of these ids, in the order given, and the ids that lead nowhere.

    Args:
        site: where to look.
        queues: in which queues; none means all there are.
        ids: what to look for.

    Raises:
        UsageError: an id is in several queues, so it is not clear which is meant.
    """
    found: dict[str, FoundJob] = {}
    for queue in site.known(queues):
        for seen in look_up(site, queue, ids):
            if seen is None:
                continue
            if seen.id in found:
                raise UsageError(
                    f"There is a job {short_id(seen.id)!r} in {found[seen.id].queue} and in "
                    f"{queue}; say which is meant with --queue."
                )
            found[seen.id] = seen
    return [found[id] for id in ids if id in found], [id for id in ids if id not in found]
