"""Looking ahead: how many jobs are due when, and which; nothing here changes anything."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bide.command import Command, command
from bide.errors import UsageError
from bide.keys import Keys
from bide.ops.inspect import check_count
from bide.ops.reply import pieces, text

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


class Between(NamedTuple):
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


def between(
    keys: Keys, from_us: int, to_us: int, start: int = 0, count: int = 50
) -> Command[Between]:
    """How many jobs are due from `from_us` on and before `to_us`, and a page of them.

    Raises:
        UsageError: the page is not within its bounds.
    """
    check_count(count)

    def parse(reply: list[Any]) -> Between:
        jobs = [(text(id), due_us) for id, due_us in pieces(reply, 3, 2)]
        return Between(reply[1], reply[2], jobs)

    return command("between", keys, (from_us, to_us, start, count), parse)
