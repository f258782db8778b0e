"""Reading jobs and queues; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.durations import from_us
from bide.model.ids import new_id
from bide.model.job import LISTABLE, RunRecord, Snapshot, State, Turn
from bide.model.latency import Minute
from bide.model.limits import KEEP, TOGETHER, Declared, Limits, Retention, read_declared
from bide.model.options import Constraints
from bide.protocol.commands import Arg, Command, command, number, pairs, pieces, raw, text, words
from bide.protocol.keys import SCHEMA, Keys

MOST_CHANGED: Final = 100
"""Jobs cancelled or deleted per call at most: bounds the time one call may take on the server."""

DATA: Final = "data"
"""The `kind` of a delay queue, in the settings."""

SWEEP: Final = 500
"""Jobs deleted per call while a queue is purged."""


class ChangeResult(NamedTuple):
    """What became of a job that was to be rescheduled, promoted or retried."""

    result: str
    """`ok`, or the state that the job is in instead (`gone` if there is none)."""
    due_us: int


class PurgeReply(NamedTuple):
    """One step of a purge."""

    aside: int
    """How many jobs this purge has set aside."""
    more: bool
    """Some are not deleted yet."""
    busy: bool = False
    """An earlier trash was left, and is being swept first: begin again."""


def cancel(keys: Keys, ids: Sequence[str], running: bool = True) -> Command[list[str]]:
    """Take up to `CHUNK` jobs back.

    For each `ok`, `asked` (it runs, and was asked to end), or the state that it is in instead.
    """
    _check_few(ids)

    def read(reply: list[Any]) -> list[str]:
        return words(reply, 2)

    return _change("cancel", keys, (int(running),), ids, read)


def reschedule(keys: Keys, ids: Sequence[str], when: str) -> Command[list[ChangeResult]]:
    """Give up to `CHUNK` jobs another due time, `when` as `enqueue.when` writes it."""
    _check_few(ids)
    return _change("reschedule", keys, (when, 0), ids, _read_moved)


def promote(keys: Keys, ids: Sequence[str]) -> Command[list[ChangeResult]]:
    """Make up to `CHUNK` jobs due now."""
    _check_few(ids)
    return _change("reschedule", keys, ("+0", 1), ids, _read_moved)


def retry(keys: Keys, ids: Sequence[str], when: str) -> Command[list[ChangeResult]]:
    """Run up to `CHUNK` jobs that have ended once more.

    The command has a name, which the jobs remember: a repeat after a lost reply runs none of them
    again, though they may have ended meanwhile.
    """
    _check_few(ids)
    return command("retry", keys, (new_id(), when, *map(raw, ids)), _read_moved)


def delete(keys: Keys, ids: Sequence[str], unbegun: bool = True) -> Command[list[str]]:
    """Remove up to `CHUNK` jobs.

    For each `ok`, `active` or (if none may go that has not begun) `unended`: nothing was removed;
    or `gone`.
    """
    _check_few(ids)

    def read(reply: list[Any]) -> list[str]:
        return words(reply, 1)

    return _change("delete", keys, (int(unbegun),), ids, read)


def pause(keys: Keys) -> Command[None]:
    """Let nothing be claimed, and have the jobs returned that were claimed ahead."""

    def again(reply: list[Any]) -> Command[None] | None:
        return pause(keys) if reply[0] == _HELD else None

    return command("pause", keys, (), lambda reply: None, followup=again)


def resume(keys: Keys) -> Command[None]:
    """Let jobs be claimed again."""
    return command("resume", keys, (), lambda reply: None)


def configure(keys: Keys, retention: Retention | str) -> Command[None]:
    """Set what the queue keeps of finished jobs.

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
    """Set how many jobs may start in a time, and run at once: see `bide.model.limits`."""
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
    """Mark a queue as one of data, with its retention; whether it is one.

    It is by its first push, or if it has items already; a queue with jobs of a worker's stays as
    it is.
    """
    args = (retention.stored(), DATA if pushes else "maybe", retention.result_bytes())
    return command("configure", keys, args, lambda reply: reply[1] == DATA.encode())


def purge(keys: Keys, begin: str | None) -> Command[PurgeReply]:
    """One bounded step of removing all delayed and waiting jobs.

    Args:
        keys: of the queue.
        begin: a new id, to set the jobs aside (its repeat sets nothing more aside); None to
            continue deleting them.
    """
    return command("purge", keys, (begin or "-", SWEEP), _read_purged)


def forget(keys: Keys) -> Command[dict[str, int]]:
    """Remove what is left of a queue that holds nothing and has no worker.

    Returns:
        Nothing, if it was removed; else how many it holds of what (see `forget.lua`), and nothing
        was removed.
    """
    return command(
        "forget", keys, (), lambda reply: {what.decode(): n for what, n in pieces(reply, 1, 2)}
    )


class Upgraded(NamedTuple):
    """One step of bringing a queue to another schema."""

    cursor: str
    """With which the next step continues; `0` at the end."""
    changed: int
    """How much this step has converted."""
    found: int
    """0; or the schema of the queue, from which this target cannot be reached in one step."""


def upgrade(keys: Keys, target: int, cursor: str) -> Command[Upgraded]:
    """One bounded step of bringing a queue to the next schema, or back by one.

    A step that is repeated changes nothing, and all of it may be begun again at any time.

    Args:
        keys: of the queue.
        target: the schema.
        cursor: what the last step has returned; `0` to begin.

    Raises:
        UsageError: this bide does not know that schema.
    """
    return command("upgrade", keys, (check_schema(target), cursor), _read_upgraded)


def check_schema(schema: int) -> int:
    """A schema that this bide knows.

    Raises:
        UsageError: it does not.
    """
    if not 1 <= schema <= SCHEMA:
        raise UsageError(f"bide knows the schemas 1 to {SCHEMA} here; {schema} is none of them.")
    return schema


def _read_upgraded(reply: list[Any]) -> Upgraded:
    if reply[0] == b"cannot":
        return Upgraded("0", 0, reply[1])
    return Upgraded(reply[1].decode(), reply[2], 0)


T = TypeVar("T", str, ChangeResult)

_HELD: Final = b"held"
"""A worker has claimed the job ahead, and returns it. So the call is repeated: a few milliseconds
later the job can be changed, or has started."""


def _change(
    script: str,
    keys: Keys,
    args: tuple[Arg, ...],
    ids: Sequence[str],
    read: Callable[[list[Any]], list[T]],
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
        return _change(script, keys, args, ids, read, results)

    return command(script, keys, (*args, *left), parse, followup=again)


_STILL_HELD: Final = ("held", ChangeResult("held", 0))


def _check_few(ids: Sequence[str]) -> None:
    if len(ids) > MOST_CHANGED:
        raise UsageError(
            f"{len(ids)} jobs are too many for one call; give {MOST_CHANGED} at a time."
        )


def _read_moved(reply: list[Any]) -> list[ChangeResult]:
    return [ChangeResult(word.decode(), due_us) for word, due_us in pieces(reply, 2, 2)]


def _read_purged(reply: list[Any]) -> PurgeReply:
    if reply[0] == b"busy":
        return PurgeReply(0, True, busy=True)
    return PurgeReply(reply[1], bool(reply[2]))


CHUNK: Final = 25
"""Jobs read per call at most. A call reads some megabytes at most, too; what is left is asked for
by a call of its own."""

MAX_PAGE: Final = 1_000
"""Jobs per page at most: bounds the time one call may take on the server."""

MAX_UPCOMING: Final = 500
"""The same of what is due next, for which as many of each priority are read."""


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
    """When the earliest job that has not been taken is due; 0 where there is none."""
    idle_workers: int
    paused: bool
    totals: dict[str, int]
    """Totals since the queue was first used: completed, failed, cancelled (expired among them),
    retried, reclaimed."""
    gap_us: int
    """The last jump of the server's clock, or time in which no worker claimed; 0 for none."""
    retention: Retention
    """The retention of finished jobs."""
    is_data: bool = False
    """Whether it is a delay queue: it holds data, and no worker serves it."""
    schema: int = 1
    """The schema of the stored data; an older program refuses a newer schema."""
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
        """The server's time when it counted."""
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
    """Everything that is known of jobs; None for an id that is not there.

    Args:
        keys: of the queue.
        ids: `CHUNK` of them at most.
        before: what earlier calls have read, to stand before it in the result.
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
    """The same for any number of jobs, in calls that share a round trip."""
    return [fetch(keys, ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)]


def counts(keys: Keys) -> Command[QueueStats]:
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


def count_due(keys: Keys, within: Sequence[int]) -> Command[list[int]]:
    """How many delayed jobs are due within so many seconds, for each of 32 of them at most."""
    args = [seconds * 1_000_000 for seconds in within]
    return command("count_due", keys, args, lambda reply: reply[2:])


def latency(keys: Keys, first: int, count: int = 1) -> Command[list[Minute]]:
    """How late jobs began and how long attempts ran, minute by minute.

    Args:
        keys: of the queue.
        first: how many minutes ago the first began; 0 for the one that is under way.
        count: how many, from the first on; 1,500 at most.
    """

    def parse(reply: list[Any]) -> list[Minute]:
        return [Minute.read(reply[2] + i, line) for i, line in enumerate(reply[3:])]

    return command("latency_minutes", keys, (first, count), parse)


def await_end(keys: Keys, id: str, for_us: int) -> Command[str]:
    """Wait for a job's end: its state, or `due`; its end is told over the channel `waiters`."""
    return command("await_end", keys, (id, for_us), lambda reply: reply[2].decode())


def listing(keys: Keys, state: str, start: int, count: int) -> Command[list[str]]:
    """The ids of a page of the jobs in one state.

    Raises:
        UsageError: there is no such state, or the page is not within its bounds.
    """
    if state not in LISTABLE:
        raise UsageError(f"There is no state {state!r}; give one of {', '.join(LISTABLE)}.")
    check_count(count)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UsageError(f"start={start!r} must be a whole number, 0 or more; 0 is the first.")
    return command("list", keys, (str(state), start, count), lambda reply: words(reply, 2))


def check_count(count: int, most: int = MAX_PAGE) -> None:
    """Refuse a page that is too long for one call.

    Raises:
        UsageError: it is not from 0 to `most`.
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
        schema=number(meta.get("schema")) or 1,
        schedules=reply[12],
        next_fire_us=reply[13],
        limits=Limits.read(meta, reply[1]),
        declared=read_declared(meta),
    )


MOST_STRETCHES: Final = 240
"""Stretches of a timeline at most: bounds the time one call may take on the server, however many
jobs there are."""


class Timeline(NamedTuple):
    """How many jobs are due, and have ended, in each of some stretches of time."""

    now_us: int
    from_us: int
    """Where the first stretch begins."""
    step_us: int
    overdue: int
    """Jobs that wait: due, and not taken."""
    later: int
    """Jobs due after the last stretch."""
    due: tuple[int, ...]
    completed: tuple[int, ...]
    """Of those that are kept."""
    failed: tuple[int, ...]

    @property
    def to_us(self) -> int:
        """Where the last stretch ends."""
        return self.from_us + self.step_us * len(self.due)


class DuePage(NamedTuple):
    """Jobs due in a stretch of time."""

    now_us: int
    total: int
    jobs: list[tuple[str, int]]
    """Id and due time of a page of them."""


def timeline(
    keys: Keys, step_us: int, count: int, *, offset_us: int = 0, at_us: int | None = None
) -> Command[Timeline]:
    """Count what is due in `count` stretches of `step_us` each.

    Args:
        keys: of the queue.
        step_us: how long a stretch is; the first begins at a whole multiple of it.
        count: how many, `MOST_STRETCHES` at most.
        offset_us: where to begin, from the server's now; negative for the past.
        at_us: the same as a moment; it holds against `offset_us`.

    Raises:
        UsageError: the step or the count is not within its bounds.
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
    keys: Keys, from_us: int, to_us: int, start: int = 0, count: int = 50
) -> Command[DuePage]:
    """How many jobs are due from `from_us` on and before `to_us`, and a page of them.

    Raises:
        UsageError: the page is not within its bounds.
    """
    check_count(count)

    def parse(reply: list[Any]) -> DuePage:
        jobs = [(text(id), due_us) for id, due_us in pieces(reply, 3, 2)]
        return DuePage(reply[1], reply[2], jobs)

    return command("list_due", keys, (from_us, to_us, start, count), parse)


HOLD_US: Final = 610_000_000
"""Microseconds for which a listener holds the stream open: ten minutes from its last read, and a
little, because it does not say at each that it reads."""


class Position(NamedTuple):
    """Where a listener reads on."""

    after: str
    """The id behind which the next event stands."""
    gap: bool
    """Events before that were lost."""


def listen(keys: Keys, name: str, after: str, hold_us: int = HOLD_US) -> Command[Position]:
    """Hold the stream of events open.

    Args:
        keys: of the queue.
        name: of the listener.
        after: the id of the event that it read last; `-` to begin with what happens next.
        hold_us: for how long from now; 0 to let go of it.
    """

    def parse(reply: list[Any]) -> Position:
        return Position(reply[2].decode(), bool(reply[3]))

    return command("events_hold", keys, (name, after, hold_us), parse)
