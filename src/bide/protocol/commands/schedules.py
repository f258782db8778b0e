"""Sets, reads, pauses and removes schedules, and sends more of their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.schedule import Missed, Schedule, Timing
from bide.protocol.commands import Command, command, gone_is_ok, pieces, text, words
from bide.protocol.commands.enqueue import Receipt, read_result
from bide.protocol.keys import Keys

T = TypeVar("T")

PAGE: Final = 200
"""Approximate number of schedules per call that reads them."""

CHUNK: Final = 100
"""Maximum number of names per call."""


class Draft(NamedTuple):
    """A schedule that is ready to be set. Setting it twice changes nothing."""

    name: str
    timing: Timing
    missed: Missed
    jitter_us: int
    priority: int
    task: str
    body: bytes
    """The body of its jobs, signed for the schedule if there is a key."""
    constraints: str = ""
    """The constraints of its jobs besides their due times, as `bide.model.options` writes them."""


class Set(NamedTuple):
    """The effect of `set_schedule`."""

    is_changed: bool
    schedule: Schedule | None
    """As it is now."""


class Edited(NamedTuple):
    """The effect of `edit_schedule`."""

    result: str
    """`ok`; `same`: nothing to change; `stale`: it has changed since it was read; `gone`."""
    schedule: Schedule | None
    """The present schedule; None if it does not exist."""


class SchedulePage(NamedTuple):
    """A page of a queue's schedules."""

    cursor: str
    """The position of the next page; `0` at the end."""
    now_us: int
    schedules: list[Schedule]


def set_schedule(keys: Keys, draft: Draft) -> Command[Set]:
    """Set a schedule; if its times do not change, it keeps its next time.

    The server has the next times of an expression. They are sent again if they are no longer right,
    because the rules of the time zone have changed.
    """

    def parse(reply: list[Any]) -> Set:
        word = reply[0].decode()
        if word == "data":
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; set "
                "the schedule on another queue."
            )
        if word == "many":
            raise UsageError(
                f"Queue {keys.queue} has the maximum number of schedules; remove some that have "
                f"ended."
            )
        return Set(word == "ok", Schedule.read(draft.name, reply[2]))

    return _set(keys, draft, "", parse)


def edit_schedule(
    keys: Keys, known: Schedule, timing: Timing, missed: Missed, jitter_us: int
) -> Command[Edited]:
    """Change the times of a schedule, unless it has changed since it was read; its jobs stay.

    Args:
        keys: the keys of the queue.
        known: the schedule as it was read.
        timing: the new times.
        missed: the rule for times that passed while no worker was running.
        jitter_us: maximum time by which its jobs are due after its times.
    """

    def parse(reply: list[Any]) -> Edited:
        result = reply[0].decode()
        return Edited(result, None if result == "gone" else Schedule.read(known.name, reply[2]))

    draft = Draft(known.name, timing, missed, jitter_us, known.priority, known.task, b"")
    return _set(keys, draft, known.stand, parse)


def _set(
    keys: Keys,
    draft: Draft,
    was: str,
    parse: Callable[[list[Any]], T],
    ahead: tuple[Sequence[int], bool] | None = None,
) -> Command[T]:
    """Set a schedule; `ahead` has its next times, and whether there are no others.

    The times of an expression count from a moment on the server's clock. So the first command reads
    that moment, and the second sends the times.
    """
    timing = draft.timing
    if ahead is None:
        ahead = (timing.at_us, True) if timing.kind == "at" else ((), False)
    times, closed = ahead
    args = (
        *(draft.name, timing.kind, draft.priority, timing.every_us, draft.jitter_us, draft.missed),
        *(timing.limit, timing.start_us, timing.end_us, _written(times), int(closed)),
        *(timing.written(), draft.task, draft.constraints, draft.body, was),
    )

    def followup(reply: list[Any]) -> Command[T] | None:
        if reply[0] == b"same" and timing.cron:
            return _corrected(keys, draft, reply, parse)
        if reply[0] != b"times":
            return None
        times = timing.ahead(reply[2], reply[1], each=draft.missed == "all")
        return _set(keys, draft, was, parse, times)

    return command("schedule_set", keys, args, parse, followup=followup)


def _corrected(
    keys: Keys, draft: Draft, reply: list[Any], parse: Callable[[list[Any]], T]
) -> Command[T] | None:
    """Return the command that replaces the times of an expression if they are wrong; else None."""
    stored = Schedule.read(draft.name, reply[2])
    if stored is None or stored.closed or stored.paused:
        return None
    times, closed = draft.timing.ahead(stored.seen_us, reply[1], each=draft.missed == "all")
    future = [at for at in stored.times if at > reply[1]]
    if future == [at for at in times if at > reply[1]][: len(future)]:
        return None
    # If another has set the schedule meanwhile, it stays as it is.
    return _refill(keys, stored, times, closed, lambda new: parse(new if _is_ok(new) else reply))


def read_page(keys: Keys, cursor: str) -> Command[SchedulePage]:
    """Read a page of schedules, without unreadable ones (`bide fsck` reports those)."""
    return command("schedule_list", keys, (cursor, PAGE), _read_page)


def read_schedules(keys: Keys, names: Sequence[str]) -> Command[SchedulePage]:
    """Read up to `CHUNK` schedules by name; missing ones are left out."""
    return command("schedule_list", keys, ("0", PAGE, *names[:CHUNK]), _read_page)


def refill(keys: Keys, schedule: Schedule, times: Sequence[int], closed: bool) -> Command[bool]:
    """Send more times of a schedule; return whether the server stored them."""
    return _refill(keys, schedule, times, closed, _is_ok)


def _refill(
    keys: Keys,
    schedule: Schedule,
    times: Sequence[int],
    closed: bool,
    parse: Callable[[list[Any]], T],
) -> Command[T]:
    args = (schedule.name, str(schedule.version), _written(times), int(closed))
    return command("schedule_refill", keys, args, parse)


def _is_ok(reply: list[Any]) -> bool:
    return bool(reply[0] == b"ok")


def refills(keys: Keys, page: SchedulePage) -> list[Command[bool]]:
    """Return the commands that send more times of these schedules.

    Raises:
        UsageError: this machine cannot read an expression or its time zone.
    """
    return [
        refill(keys, one, *one.timing.ahead(one.seen_us, page.now_us, each=one.missed == "all"))
        for one in page.schedules
    ]


def pause_schedule(keys: Keys, name: str, paused: bool) -> Command[Schedule | None]:
    """Pause or resume a schedule; return None if it does not exist."""

    def parse(reply: list[Any]) -> Schedule | None:
        return Schedule.read(name, reply[2]) if reply[0] == b"ok" else None

    return command("schedule_pause", keys, (name, int(paused)), parse)


def remove_schedules(keys: Keys, names: Sequence[str]) -> Command[list[str]]:
    """Remove up to `CHUNK` schedules; return `ok` or `gone` for each."""
    return command(
        "schedule_remove",
        keys,
        names[:CHUNK],
        lambda reply: words(reply, 1),
        repeated=gone_is_ok,
    )


def run_schedule(keys: Keys, name: str, id: str) -> Command[Receipt | None]:
    """Create a job of a schedule, due now; return None if the schedule does not exist."""

    def parse(reply: list[Any]) -> Receipt | None:
        if reply[0] == b"gone":
            return None
        return Receipt(text(reply[4]), reply[3], read_result(reply[2]))

    return command("schedule_run", keys, (name, id), parse)


def _written(times: Sequence[int]) -> str:
    return " ".join(map(str, times))


def _read_page(reply: list[Any]) -> SchedulePage:
    read = [Schedule.read(text(name), record) for name, record in pieces(reply, 3, 2)]
    return SchedulePage(reply[2].decode(), reply[1], [one for one in read if one is not None])
