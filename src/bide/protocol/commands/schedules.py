"""Schedules: setting, reading, pausing and removing them; sending them more of their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.schedule import Missed, Schedule, Timing
from bide.protocol.commands import Command, command, pieces, text, words
from bide.protocol.commands.enqueue import Receipt, read_result
from bide.protocol.keys import Keys

T = TypeVar("T")

PAGE: Final = 200
"""Schedules read per call, about."""

CHUNK: Final = 100
"""Schedules named in a call, at most."""


class Draft(NamedTuple):
    """A schedule that is ready to be set. Setting it twice changes nothing."""

    name: str
    timing: Timing
    missed: Missed
    jitter_us: int
    priority: int
    task: str
    body: bytes
    """Of its jobs; signed for the schedule, where there is a key."""
    constraints: str = ""
    """What is asked of its jobs beside their due times, as `bide.model.options` writes it."""


class Set(NamedTuple):
    """What became of a schedule that was to be set."""

    is_changed: bool
    schedule: Schedule | None
    """As it is now."""


class Edited(NamedTuple):
    """What became of a schedule that was to fire at other times."""

    result: str
    """`ok`; `same` where it does already; `stale`: another has changed it since; `gone`."""
    schedule: Schedule | None
    """As it is now; None where it is gone."""


class SchedulePage(NamedTuple):
    """Some of a queue's schedules."""

    cursor: str
    """With which the next page is asked for; `0` at the end."""
    now_us: int
    schedules: list[Schedule]


def set_schedule(keys: Keys, draft: Draft) -> Command[Set]:
    """Set a schedule; one that fires when it did before keeps its next time."""

    def parse(reply: list[Any]) -> Set:
        word = reply[0].decode()
        if word == "data":
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; set "
                "the schedule on another queue."
            )
        if word == "many":
            raise UsageError(
                f"Queue {keys.queue} has as many schedules as a queue may have; remove some that "
                "are over."
            )
        return Set(word == "ok", Schedule.read(draft.name, reply[2]))

    return _set(keys, draft, "", parse)


def edit_schedule(
    keys: Keys, known: Schedule, timing: Timing, missed: Missed, jitter_us: int
) -> Command[Edited]:
    """Have a schedule fire at other times, unless another has changed it; its jobs stay.

    Args:
        keys: of the queue.
        known: the schedule as it was read.
        timing: when it is to fire.
        missed: what becomes of times that have passed.
        jitter_us: by which its jobs are due after its times, at most.
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
    """Set a schedule, with its times in `ahead` and whether these are all.

    The times of an expression count from a moment that only the server's clock can tell. So the
    first command asks for it, and the second sends them.
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
        if reply[0] != b"times":
            return None
        times = timing.ahead(reply[2], reply[1], each=draft.missed == "all")
        return _set(keys, draft, was, parse, times)

    return command("schedule_set", keys, args, parse, followup=followup)


def read_page(keys: Keys, cursor: str) -> Command[SchedulePage]:
    """Read some of a queue's schedules; what cannot be read is left out (`bide fsck` says so)."""
    return command("schedule_list", keys, (cursor, PAGE), _read_page)


def read_schedules(keys: Keys, names: Sequence[str]) -> Command[SchedulePage]:
    """Read schedules by their names, `CHUNK` at most; those that are not there are left out."""
    return command("schedule_list", keys, ("0", PAGE, *names[:CHUNK]), _read_page)


def refill(keys: Keys, schedule: Schedule, times: Sequence[int], closed: bool) -> Command[bool]:
    """Send a schedule more of its times; whether they were taken."""
    args = (schedule.name, str(schedule.version), _written(times), int(closed))
    return command("schedule_refill", keys, args, lambda reply: reply[0] == b"ok")


def refills(keys: Keys, page: SchedulePage) -> list[Command[bool]]:
    """Send the schedules that were read more of their times.

    Raises:
        UsageError: an expression or its time zone cannot be read here.
    """
    return [
        refill(keys, one, *one.timing.ahead(one.seen_us, page.now_us, each=one.missed == "all"))
        for one in page.schedules
    ]


def pause_schedule(keys: Keys, name: str, paused: bool) -> Command[Schedule | None]:
    """Let a schedule fire no more, or again; None where there is none."""

    def parse(reply: list[Any]) -> Schedule | None:
        return Schedule.read(name, reply[2]) if reply[0] == b"ok" else None

    return command("schedule_pause", keys, (name, int(paused)), parse)


def remove_schedules(keys: Keys, names: Sequence[str]) -> Command[list[str]]:
    """Remove schedules, `CHUNK` at most; for each `ok` or `gone`."""
    return command("schedule_remove", keys, names[:CHUNK], lambda reply: words(reply, 1))


def run_schedule(keys: Keys, name: str, id: str) -> Command[Receipt | None]:
    """Make a job of a schedule, due now; what came of it, or None where there is no schedule."""

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
