"""Reads and changes the jobs and the settings of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.ids import new_id
from bide.model.job import FINISHED, LISTABLE, RunRecord, Snapshot, State, Turn
from bide.model.latency import Minute
from bide.model.limits import KEEP, TOGETHER, Declared, Limits, Retention, read_declared
from bide.model.options import Constraints
from bide.protocol.commands import (
    Arg,
    Command,
    command,
    gone_is_ok,
    number,
    pairs,
    pieces,
    raw,
    text,
    words,
)
from bide.protocol.commands.enqueue import NOW
from bide.protocol.keys import Keys

MOST_CHANGED: Final = 100
"""Maximum jobs cancelled or deleted per call, which limits its time on the server."""

DATA: Final = "data"
"""The `kind` of a delay queue, in the settings."""

SWEEP: Final = 500
"""Jobs deleted per call while a queue is purged."""


class ChangeResult(NamedTuple):
    """The effect of a call that reschedules, promotes or retries a job."""

    result: str
    """`ok`; or the state that prevented the change; or `gone` if the job does not exist."""
    due_us: int


class PurgeReply(NamedTuple):
    """The reply to one step of a purge."""

    aside: int
    """Number of jobs that this purge has set aside."""
    more: bool
    """Whether jobs are left to delete."""
    busy: bool = False
    """Whether jobs of an earlier purge were left and are deleted first; then start again."""


def cancel(keys: Keys, ids: Sequence[str], running: bool = True) -> Command[list[str]]:
    """Cancel up to `MOST_CHANGED` jobs.

    The result for each is `ok`, `asked` (a running job was asked to stop), or the state that
    prevented the change.
    """
    _check_few(ids)

    def read(reply: list[Any]) -> list[str]:
        return words(reply, 2)

    return _change("cancel", keys, (int(running),), ids, read)


def reschedule(keys: Keys, ids: Sequence[str], when: str) -> Command[list[ChangeResult]]:
    """Give up to `CHUNK` jobs another due time, in the form of `enqueue.when`."""
    _check_few(ids)
    return _change("reschedule", keys, (when, 0), ids, _read_moved, partial(_begun_is_ok, when))


def promote(keys: Keys, ids: Sequence[str]) -> Command[list[ChangeResult]]:
    """Make up to `CHUNK` jobs due now."""
    _check_few(ids)
    return _change("reschedule", keys, (NOW, 1), ids, _read_moved, partial(_begun_is_ok, NOW))


def retry(
    keys: Keys, ids: Sequence[str], when: str, states: Iterable[State] = State
) -> Command[list[ChangeResult]]:
    """Run up to `CHUNK` finished jobs again, those that are in one of the states.

    The jobs store the id of the command. So a repeat after a lost reply runs none of them again,
    even if they have ended meanwhile.
    """
    _check_few(ids)
    args = (new_id(), when, " ".join(states), *map(raw, ids))
    return command("retry", keys, args, _read_moved)


def delete(keys: Keys, ids: Sequence[str], states: Iterable[State] = State) -> Command[list[str]]:
    """Delete up to `MOST_CHANGED` jobs, those that are in one of the states.

    The states of jobs that have not started count as one: such a job may change between them. The
    result for each is `ok`, the state that prevented it, or `gone`. A repeat does not know whether
    the first call deleted a job that is gone, and returns `ok`.
    """
    _check_few(ids)
    given = " ".join(state if state in FINISHED else State.WAITING for state in states)

    def read(reply: list[Any]) -> list[str]:
        return words(reply, 1)

    return _change("delete", keys, (given,), ids, read, gone_is_ok)


def pause(keys: Keys) -> Command[None]:
    """Pause the queue, and make workers return the jobs that they have claimed ahead."""

    def again(reply: list[Any]) -> Command[None] | None:
        return pause(keys) if reply[0] == _HELD else None

    return command("pause", keys, (), lambda reply: None, followup=again)


def resume(keys: Keys) -> Command[None]:
    """Let workers claim jobs again."""
    return command("resume", keys, (), lambda reply: None)


def configure(keys: Keys, retention: Retention | str) -> Command[None]:
    """Set the retention of finished jobs.

    Raises:
        UsageError: `retention` is not a `Retention`, or an age or the count in it is invalid.
    """
    bounds, results = stored_retention(retention)
    return command("configure", keys, (bounds, "-", results), lambda reply: None)


def stored_retention(retention: Retention | str) -> tuple[str, int]:
    """Check and convert a retention; raises as `configure`."""
    if not isinstance(retention, Retention):
        raise UsageError(
            "retention must be a bide.Retention, such as Retention(completed='7d'), not "
            f"{retention!r}."
        )
    return retention.stored(), retention.result_bytes()


def limit(keys: Keys, rate: str, concurrency: str, group_rate: str = KEEP) -> Command[None]:
    """Set the rate and the concurrency of the queue: see `bide.model.limits`."""
    return command("limit", keys, (rate, concurrency, group_rate), lambda reply: None)


def declare(keys: Keys, settings: Declared, starts: bool) -> Command[list[str] | None]:
    """Apply the settings that a worker's program declares, except those that people changed.

    Args:
        keys: of the queue.
        settings: the declared settings.
        starts: whether the worker starts. Otherwise nothing is changed while a worker lives that
            declares others.

    Returns:
        The names of the settings that stay as people configured them; None if another worker's
        apply.
    """

    def read(reply: list[Any]) -> list[str] | None:
        return words(reply, 2) if reply[0] == b"ok" else None

    return command("declare", keys, (*settings, int(starts)), read)


def mark_data(keys: Keys, retention: Retention, pushes: bool) -> Command[bool]:
    """Mark a queue as a delay queue, with its retention; return whether it is one.

    It becomes one with its first push, or if it has items. A queue with jobs stays unchanged.
    """
    args = (retention.stored(), DATA if pushes else "maybe", retention.result_bytes())
    return command("configure", keys, args, lambda reply: reply[1] == DATA.encode())


def purge(keys: Keys, begin: str | None) -> Command[PurgeReply]:
    """Run one limited step of a purge: remove delayed, waiting and blocked jobs.

    Args:
        keys: the keys of the queue.
        begin: a new id, to set the jobs aside; a repeat with this id sets no more aside. None to
            continue to delete them.
    """
    return command("purge", keys, (begin or "-", SWEEP), _read_purged)


def forget(keys: Keys) -> Command[dict[str, int]]:
    """Remove the remaining data of a queue that holds nothing and has no worker.

    Returns:
        An empty mapping if it was removed. Otherwise the number of each kind of content (see
        `forget.lua`), and nothing was removed.
    """
    return command(
        "forget", keys, (), lambda reply: {what.decode(): n for what, n in pieces(reply, 1, 2)}
    )


T = TypeVar("T", str, ChangeResult)

_HELD: Final = b"held"
"""A worker has claimed the job ahead, and returns it; or the call has done enough. So the call is
repeated: a few milliseconds later the job can be changed, or has started."""


def _change(
    script: str,
    keys: Keys,
    args: tuple[Arg, ...],
    ids: Sequence[str],
    read: Callable[[list[Any]], list[T]],
    repeated: Callable[[list[Any]], list[Any]] | None = None,
    known: Sequence[T | None] = (),
) -> Command[list[T]]:
    """Change jobs, and repeat the call for those that a worker returns first.

    `known` has the results of earlier calls, and None for each job that is left.
    """
    known = known or [None] * len(ids)
    left: list[Arg] = [raw(id) for id, result in zip(ids, known, strict=True) if result is None]

    def parse(reply: list[Any]) -> list[T]:
        new = iter(read(reply))
        return [next(new) if result is None else result for result in known]

    def again(reply: list[Any]) -> Command[list[T]] | None:
        if _HELD not in reply:
            return None
        results = [None if result in _STILL_HELD else result for result in parse(reply)]
        return _change(script, keys, args, ids, read, repeated, results)

    return command(script, keys, (*args, *left), parse, followup=again, repeated=repeated)


_STILL_HELD: Final = ("held", ChangeResult("held", 0))


def _check_few(ids: Sequence[str]) -> None:
    if len(ids) > MOST_CHANGED:
        raise UsageError(
            f"{len(ids)} jobs are too many for one call; give {MOST_CHANGED} at a time."
        )


def _read_moved(reply: list[Any]) -> list[ChangeResult]:
    return [ChangeResult(word.decode(), due_us) for word, due_us in pieces(reply, 2, 2)]


_BEGUN: Final = (b"active", b"completed", b"failed")


def _begun_is_ok(when: str, reply: list[Any]) -> list[Any]:
    """Read the reply to a repeat: a job that the first call made due may have started since."""
    is_due = when == NOW or (when[0] == "=" and int(when[1:]) <= reply[1])
    return [b"ok" if is_due and word in _BEGUN else word for word in reply]


def _read_purged(reply: list[Any]) -> PurgeReply:
    if reply[0] == b"busy":
        return PurgeReply(0, True, busy=True)
    return PurgeReply(reply[1], bool(reply[2]))


CHUNK: Final = 25
"""Maximum jobs per call that reads them. A call also reads at most some megabytes; another call
reads the rest."""

MAX_PAGE: Final = 1_000
"""Maximum jobs per page, which limits the time of a call on the server."""

MAX_UPCOMING: Final = 500
"""Maximum upcoming jobs per call, which reads that many of each priority."""


class QueueStats(NamedTuple):
    """The number of jobs in each state, and the totals of the queue."""

    now_us: int
    delayed: int
    waiting: int
    active: int
    completed: int
    failed: int
    cancelled: int
    blocked: int
    next_due_us: int
    """When the next unclaimed job is due; 0 if there is none."""
    idle_workers: int
    """Number of workers that wait for jobs."""
    paused: bool
    """Whether the queue is paused."""
    totals: dict[str, int]
    """Totals since the queue was first used: completed, failed, cancelled (expired among them),
    retried, reclaimed."""
    gap_us: int
    """The last jump of the server's clock, or the last time without a claim; 0 for none."""
    retention: Retention
    """The retention of finished jobs."""
    is_data: bool = False
    """Whether it is a delay queue: it holds data, and no worker serves it."""
    schedules: int = 0
    """Number of schedules."""
    next_fire_us: int = 0
    """When the next schedule fires, in microseconds since 1970; 0 if there is none."""
    limits: Limits = Limits()
    """The limits, and whether a limit holds back a job now."""
    declared: Mapping[str, Any] = MappingProxyType({})
    """The settings (`bide.QueueSettings`) that a worker's program declared last."""

    @property
    def overridden(self) -> dict[str, Any]:
        """The declared settings that have no effect, because others were configured."""
        stored = {**self.limits._asdict(), "retention": self.retention}
        return {
            name: self.declared[name]
            for names in TOGETHER
            if any(name in self.declared and self.declared[name] != stored[name] for name in names)
            for name in names
        }

    @property
    def now(self) -> datetime:
        """The server's time of the counts."""
        return from_us(self.now_us)

    @property
    def next_due(self) -> datetime | None:
        """The due time of the next job that no worker has claimed; None if there is none."""
        return from_us(self.next_due_us) if self.next_due_us else None

    @property
    def gap(self) -> float:
        """`gap_us` in seconds; negative if the clock was set back."""
        return self.gap_us / 1e6


def fetch(
    keys: Keys, ids: Sequence[str], before: Sequence[Snapshot | None] = ()
) -> Command[list[Snapshot | None]]:
    """Read all data of jobs; None for a job that does not exist.

    Args:
        keys: the keys of the queue.
        ids: at most `CHUNK` ids.
        before: the results of earlier calls, which come first in the result.
    """

    def read(ids: Sequence[str], reply: list[Any]) -> list[Snapshot | None]:
        items = zip(ids, reply[2:], strict=True)
        return [*before, *[_snapshot(id, reply[1], item) for id, item in items]]

    def followup(reply: list[Any]) -> Command[list[Snapshot | None]] | None:
        count = len(reply) - 2
        if reply[0] != b"more" or count < 1:
            return None
        return fetch(keys, ids[count:], read(ids[:count], reply))

    return command("fetch", keys, [*map(raw, ids)], partial(read, ids), followup=followup)


def fetch_many(keys: Keys, ids: Sequence[str]) -> list[Command[list[Snapshot | None]]]:
    """Read any number of jobs as `fetch` does, in calls that share a round trip."""
    return [fetch(keys, ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)]


def counts(keys: Keys) -> Command[QueueStats]:
    """Count the jobs in each state."""
    return command("counts", keys, (), _read_counts)


def upcoming(keys: Keys, within_us: int, count: int) -> Command[list[tuple[str, int]]]:
    """Read id and due time of the delayed jobs that are due next, of any priority.

    Args:
        keys: the keys of the queue.
        within_us: maximum time until a job is due; 0 for no limit.
        count: maximum number of jobs.

    Raises:
        UsageError: the count is out of range.
    """
    check_count(count, MAX_UPCOMING)

    def parse(reply: list[Any]) -> list[tuple[str, int]]:
        found = [(text(id), due_us) for id, due_us in pieces(reply, 2, 2)]
        return sorted(found, key=lambda job: (job[1], job[0]))[:count]

    return command("upcoming", keys, (within_us, count), parse)


def count_due(keys: Keys, within: Sequence[int]) -> Command[list[int]]:
    """Count the delayed jobs that are due within each number of seconds; at most 32 numbers."""
    args = [seconds * 1_000_000 for seconds in within]
    return command("count_due", keys, args, lambda reply: reply[2:])


def latency(keys: Keys, first: int, count: int = 1) -> Command[list[Minute]]:
    """Read the lateness and the run times of jobs, by minute.

    Args:
        keys: the keys of the queue.
        first: how many minutes ago the first minute began; 0 for the present one.
        count: number of minutes from the first on, at most 1,500.
    """

    def parse(reply: list[Any]) -> list[Minute]:
        return [Minute.read(reply[2] + i, line) for i, line in enumerate(reply[3:])]

    return command("latency_minutes", keys, (first, count), parse)


def await_end(keys: Keys, id: str, for_us: int) -> Command[str]:
    """Return the state of a job, or `due`; its end will be published on the channel `waiters`."""
    return command("await_end", keys, (id, for_us), lambda reply: reply[2].decode())


def listing(keys: Keys, state: str, start: int, count: int) -> Command[list[str]]:
    """Read the ids of a page of the jobs in a state.

    Raises:
        UsageError: there is no such state, or the page is out of range.
    """
    if state not in LISTABLE:
        raise UsageError(f"There is no state {state!r}; give one of {', '.join(LISTABLE)}.")
    check_count(count)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UsageError(f"start={start!r} must be a whole number, 0 or more; 0 is the first.")
    return command("list", keys, (str(state), start, count), lambda reply: words(reply, 2))


def check_count(count: int, most: int = MAX_PAGE) -> None:
    """Refuse an invalid length of a page.

    Raises:
        UsageError: the length is not from 0 to `most`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
        raise UsageError(f"count={count!r} must be a whole number from 0 to {most}.")


def _snapshot(id: str, now_us: int, item: list[Any]) -> Snapshot | None:
    if item[0] == b"gone":
        return None
    state, since, priority, body, line, result, notes, asked, stored, turn, awaited = item
    constraints = Constraints.read(stored) if stored else Constraints()
    run = RunRecord.read(line) if line else None
    known = run.priority if run else priority
    if state == b"blocked":
        known = constraints.priority
    if run is not None and not run.started_us:  # cancelled before its first claim
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
        constraints=constraints,
        turn=Turn.read(turn) if turn else None,
        awaits=awaited[0] if awaited else 0,
        awaited=tuple(map(text, awaited[1:])) if awaited else (),
    )


_TOTALS: Final = ("completed", "failed", "cancelled", "expired", "retried", "reclaimed")


def _read_counts(reply: list[Any]) -> QueueStats:
    meta = pairs(reply[11])
    return QueueStats(
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
        schedules=reply[12],
        next_fire_us=reply[13],
        limits=Limits.read(meta, reply[1]),
        declared=read_declared(meta),
    )


MOST_STRETCHES: Final = 240
"""Maximum intervals of a timeline, which limits the time of a call, however many jobs there are."""


class Timeline(NamedTuple):
    """How many jobs are due, and have ended, in each of several intervals."""

    now_us: int
    from_us: int
    """The start of the first interval."""
    step_us: int
    overdue: int
    """Number of waiting jobs: due and not claimed."""
    later: int
    """Number of jobs due after the last interval."""
    due: tuple[int, ...]
    completed: tuple[int, ...]
    """Counts only jobs that are still kept, here and below."""
    failed: tuple[int, ...]

    @property
    def to_us(self) -> int:
        """The end of the last interval."""
        return self.from_us + self.step_us * len(self.due)


class DuePage(NamedTuple):
    """Jobs due in an interval."""

    now_us: int
    total: int
    jobs: list[tuple[str, int]]
    """Id and due time of each job of a page."""


def timeline(
    keys: Keys, step_us: int, count: int, *, offset_us: int = 0, at_us: int | None = None
) -> Command[Timeline]:
    """Count the jobs of `count` intervals of `step_us` each.

    Args:
        keys: the keys of the queue.
        step_us: the length of an interval; the first starts at a multiple of it.
        count: the number of intervals, at most `MOST_STRETCHES`.
        offset_us: the start, from the server's present time; negative for the past.
        at_us: the start as a moment, instead of `offset_us`.

    Raises:
        UsageError: the step or the count is out of range.
    """
    if step_us < 1 or not 1 <= count <= MOST_STRETCHES:
        raise UsageError(
            f"A timeline has 1 to {MOST_STRETCHES} stretches of a microsecond or more, not {count} "
            f"of {step_us}."
        )
    start = f"{offset_us:+d}" if at_us is None else f"={at_us:d}"

    def parse(reply: list[Any]) -> Timeline:
        now_us, from_us, overdue, later = reply[1:5]
        due, completed, failed = zip(*pieces(reply, 5, 3), strict=True)
        return Timeline(now_us, from_us, step_us, overdue, later, due, completed, failed)

    return command("timeline", keys, (start, step_us, count), parse)


def list_due(
    keys: Keys, from_us: int, to_us: int, start: int = 0, count: int = 50, by_due: bool = False
) -> Command[DuePage]:
    """Count the jobs that are due from `from_us` on and before `to_us`, and read a page of them.

    Args:
        keys: the keys of the queue.
        from_us: the start of the range.
        to_us: its end, which is not in it.
        start: the number of jobs to skip. With `by_due`, it skips only jobs due at `from_us`.
        count: the maximum number of jobs.
        by_due: whether the page is in the order of due times; otherwise of priorities.

    Raises:
        UsageError: the page is out of range.
    """
    check_count(count)

    def parse(reply: list[Any]) -> DuePage:
        jobs = [(text(id), due_us) for id, due_us in pieces(reply, 3, 2)]
        if by_due:  # stable, so that jobs due at the same time stay in the order of `start`
            jobs = sorted(jobs, key=lambda job: job[1])[:count]
        return DuePage(reply[1], reply[2], jobs)

    return command("list_due", keys, (from_us, to_us, start, count, int(by_due)), parse)


HOLD_US: Final = 610_000_000
"""Microseconds for which a listener holds the stream open: ten minutes from its last read, and some
seconds more, because it does not report each read."""


class Position(NamedTuple):
    """The position from which a listener continues."""

    after: str
    """The id of the event before the next one."""
    gap: bool
    """Whether events before this position were lost."""


def listen(keys: Keys, name: str, after: str, hold_us: int = HOLD_US) -> Command[Position]:
    """Hold the stream of events open.

    Args:
        keys: the keys of the queue.
        name: the listener's name.
        after: the id of the last event that it read; `-` for new events only.
        hold_us: for how long from now; 0 to stop holding it open.
    """

    def parse(reply: list[Any]) -> Position:
        return Position(reply[2].decode(), bool(reply[3]))

    return command("events_hold", keys, (name, after, hold_us), parse)
