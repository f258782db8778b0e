"""Groups of jobs: how things stand in them, and how their jobs run."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bide.command import Command, command
from bide.ids import check_name
from bide.keys import Keys
from bide.limits import written_rate
from bide.ops.reply import pieces, text
from bide.terms import check_concurrency

PAGE: Final = 200
"""Groups read per call, about: bounds the time one call may take on the server."""

BEGIN: Final = "0"
"""The cursor of a first page; and what the last one gives back."""

UNSET: Final = 0
"""In place of a number: what its jobs ask for holds."""


class GroupCounts(NamedTuple):
    """How things stand in a group."""

    name: str
    delayed: int
    waiting: int
    active: int
    priority: int
    """Of the whole group: that of the job that was enqueued last."""
    concurrency: int
    """How many of its jobs may run at once."""
    is_configured: bool
    """Whether that was configured; else it is what its jobs asked for, or 1."""
    paused: bool
    rate: str | None = None
    """How many may begin in which time, such as `"10/s"`; None for no limit."""
    burst: int | None = None
    """How many of them may begin at once, after a quiet time; None without a rate."""


class Page(NamedTuple):
    """Some of a queue's groups."""

    cursor: str
    """Where to go on; `BEGIN` at the end."""
    groups: list[GroupCounts]
    now_us: int
    turns: dict[str, int]
    """When each has its next turn; those that have none are left out."""


def configure(
    keys: Keys,
    name: str,
    concurrency: int | None = None,
    paused: bool | None = None,
    rate: str = "-",
) -> Command[None]:
    """Say how a group's jobs run; None leaves a thing as it is.

    Args:
        keys: of the queue.
        name: of the group.
        concurrency: how many at once; `UNSET` for what its jobs ask for.
        paused: whether none may begin.
        rate: as `stored_rate` writes it; `-` leaves it as it is.

    Raises:
        UsageError: a value cannot be meant.
    """
    if concurrency is not None and concurrency != UNSET:
        check_concurrency(concurrency)
    words = ["-" if value is None else str(int(value)) for value in (concurrency, paused)]
    return command(
        "group_configure", keys, (check_name(name, "group"), *words, rate), lambda reply: None
    )


def counts(keys: Keys, name: str) -> Command[GroupCounts]:
    """How things stand in a group.

    Raises:
        UsageError: nothing can have that name.
    """
    args = (check_name(name, "group"), BEGIN, 1)
    return command("groups", keys, args, lambda reply: _read(reply).groups[0])


def page(keys: Keys, cursor: str) -> Command[Page]:
    """Some of the groups that have jobs or are configured; one may be told twice."""
    return command("groups", keys, ("-", cursor, PAGE), _read)


def _read(reply: list[Any]) -> Page:
    found, turns = [], {}
    for name, *numbers, rate, turn_us in pieces(reply, 3, 10):
        delayed, waiting, running, priority, limit, configured, paused = numbers
        found.append(
            GroupCounts(
                text(name),
                *(delayed, waiting, running, priority, limit, bool(configured), bool(paused)),
                *written_rate(rate),
            )
        )
        if turn_us:
            turns[text(name)] = turn_us
    return Page(reply[2].decode(), found, reply[1], turns)
