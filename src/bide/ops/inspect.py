"""Reading jobs and queues; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from bide.clock import from_us
from bide.command import Command, command
from bide.errors import UsageError
from bide.job import RunRecord, Snapshot, Turn
from bide.keys import Keys
from bide.limits import Limits
from bide.ops.manage import DATA
from bide.ops.reply import number, pairs, pieces, raw, text, words
from bide.punctuality import Minute
from bide.retention import Retention
from bide.states import LISTABLE, State
from bide.terms import Terms

CHUNK: Final = 25
"""Jobs read per call at most. A call reads some megabytes at most, too; what is left is asked for
by a call of its own."""

MAX_PAGE: Final = 1_000
"""Jobs per page at most: bounds the time one call may take on the server."""

MAX_UPCOMING: Final = 500
MOST_MINUTES: Final = 1_500
"""The same of what is due next, for which as many of each priority are read."""


class Counts(NamedTuple):
    """How many jobs are in each state, and the queue's running totals."""

    now_us: int
    delayed: int
    waiting: int
    active: int
    completed: int
    failed: int
    cancelled: int
    blocked: int
    next_due_us: int
    """When the earliest job that has not been taken is due; 0 where there is none."""
    idle_workers: int
    paused: bool
    totals: dict[str, int]
    """Since the queue was first used: completed, failed, cancelled, of these expired, retried,
    reclaimed."""
    gap_us: int
    """The last jump of the server's clock, or stretch in which no worker claimed; 0 for none."""
    retention: Retention
    """What the queue keeps of finished jobs."""
    is_data: bool = False
    """Whether it is a delay queue: it holds data, and no worker serves it."""
    schema: int = 1
    """What a program must know to touch it."""
    schedules: int = 0
    """How many schedules it has."""
    next_fire_us: int = 0
    """When the first of them fires next; 0 where none will."""
    limits: Limits = Limits()
    """How many jobs may begin and run, and whether that holds any back now."""

    @property
    def now(self) -> datetime:
        """The server's time when it counted."""
        return from_us(self.now_us)

    @property
    def next_due(self) -> datetime | None:
        """When the earliest job that has not been taken is due; None where there is none."""
        return from_us(self.next_due_us) if self.next_due_us else None

    @property
    def gap(self) -> float:
        """`gap_us` in seconds; negative where the clock was set back."""
        return self.gap_us / 1e6


def fetch(
    keys: Keys, ids: Sequence[str], before: Sequence[Snapshot | None] = ()
) -> Command[list[Snapshot | None]]:
    """Everything that is known of jobs; None for an id that is not there.

    Args:
        keys: of the queue.
        ids: `CHUNK` of them at most.
        before: what earlier calls have read, to stand before it in the result.
    """

    def read(ids: Sequence[str], reply: list[Any]) -> list[Snapshot | None]:
        items = zip(ids, reply[2:], strict=True)
        return [*before, *(_snapshot(id, reply[1], item) for id, item in items)]

    def rest(reply: list[Any]) -> Command[list[Snapshot | None]] | None:
        count = len(reply) - 2
        if reply[0] != b"more" or count < 1:
            return None
        return fetch(keys, ids[count:], read(ids[:count], reply))

    return command(
        "fetch", keys, [raw(id) for id in ids], lambda reply: read(ids, reply), rest=rest
    )


def fetch_many(keys: Keys, ids: Sequence[str]) -> list[Command[list[Snapshot | None]]]:
    """The same for any number of jobs, in calls that share a round trip."""
    return [fetch(keys, ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)]


def counts(keys: Keys) -> Command[Counts]:
    """Count the jobs in each state."""
    return command("counts", keys, (), _read_counts)


def upcoming(keys: Keys, within_us: int, count: int) -> Command[list[tuple[str, int]]]:
    """Id and due time of the delayed jobs that are due next, whatever their priority.

    Args:
        keys: of the queue.
        within_us: how far to look ahead; 0 for no limit.
        count: how many at most.

    Raises:
        UsageError: the count is not within its bounds.
    """
    check_count(count, MAX_UPCOMING)

    def parse(reply: list[Any]) -> list[tuple[str, int]]:
        found = [(text(id), due_us) for id, due_us in pieces(reply, 2, 2)]
        return sorted(found, key=lambda job: (job[1], job[0]))[:count]

    return command("upcoming", keys, (within_us, count), parse)


def ahead(keys: Keys, within: Sequence[int]) -> Command[list[int]]:
    """How many delayed jobs are due within so many seconds, for each of 32 of them at most."""
    args = [seconds * 1_000_000 for seconds in within]
    return command("ahead", keys, args, lambda reply: reply[2:])


def minutes(keys: Keys, first: int, count: int = 1) -> Command[list[Minute]]:
    """How late jobs began and how long attempts ran, minute by minute.

    Args:
        keys: of the queue.
        first: how many minutes ago the first began; 0 for the one that is under way.
        count: how many, from the first on; `MOST_MINUTES` at most.
    """

    def parse(reply: list[Any]) -> list[Minute]:
        return [Minute.read(reply[2] + i, line) for i, line in enumerate(reply[3:])]

    return command("minutes", keys, (first, count), parse)


def watch(keys: Keys, id: str, for_us: int) -> Command[str]:
    """Wait for a job's end: its state, or `due`; its end is told over the channel `waiters`."""
    return command("watch", keys, (id, for_us), lambda reply: reply[2].decode())


def listing(keys: Keys, state: str, start: int, count: int) -> Command[list[str]]:
    """The ids of a page of the jobs in one state.

    Raises:
        UsageError: there is no such state, or the page is not within its bounds.
    """
    if state not in LISTABLE:
        raise UsageError(f"There is no state {state!r}; give one of {', '.join(LISTABLE)}.")
    check_count(count)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UsageError(f"start={start!r} is no place in a list; the first is 0.")
    return command("list", keys, (str(state), start, count), lambda reply: words(reply, 2))


def check_count(count: int, most: int = MAX_PAGE) -> None:
    """Refuse a page that is too long for one call.

    Raises:
        UsageError: it is not from 0 to `most`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
        raise UsageError(f"count={count!r} is no page: give 0 to {most}.")


def _snapshot(id: str, now_us: int, item: list[Any]) -> Snapshot | None:
    if item[0] == b"gone":
        return None
    state, since, priority, body, line, result, notes, asked, stored, turn, awaited = item
    terms = Terms.read(stored)
    run = RunRecord.read(line)
    known = run.priority if run else priority
    if state == b"blocked":
        known = terms.priority
    if run is not None and not run.started_us:  # cancelled before it was ever claimed
        run = None
    return Snapshot(
        id=id,
        state=State(state.decode()),
        now_us=now_us,
        since_us=since,
        priority=known,
        raw_body=body or b"",
        run=run,
        raw_result=result,
        raw_notes=notes,
        asked=asked is not None,
        terms=terms,
        turn=Turn.read(turn),
        awaits=awaited[0] if awaited else 0,
        awaited=tuple(map(text, awaited[1:])) if awaited else (),
    )


_TOTALS: Final = ("completed", "failed", "cancelled", "expired", "retried", "reclaimed")


def _read_counts(reply: list[Any]) -> Counts:
    meta = pairs(reply[11])
    return Counts(
        now_us=reply[1],
        delayed=reply[2],
        waiting=reply[3],
        active=reply[4],
        completed=reply[5],
        failed=reply[6],
        cancelled=reply[7],
        blocked=reply[8],
        next_due_us=reply[9],
        idle_workers=reply[10],
        paused="paused" in meta,
        totals={name: number(meta.get(name)) for name in _TOTALS},
        gap_us=number(meta.get("gap_us")),
        retention=Retention.read(meta.get("retention"), meta.get("result_budget")),
        is_data=meta.get("kind") == DATA.encode(),
        schema=number(meta.get("schema")) or 1,
        schedules=reply[12],
        next_fire_us=reply[13],
        limits=Limits.read(meta, reply[1]),
    )
