"""What jobs wait for: said of many step by step, asked of and told to other queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.model.options import Kinds
from bide.protocol.command import Arg, Command, command, raw, words
from bide.protocol.keys import Keys

T = TypeVar("T")

GATE: Final = "{}"
"""Stands for more that a job waits for, and that is not known yet."""

MOST_PARENTS: Final = 20_000
"""Jobs that one may wait for."""

MOST_POST: Final = 250
"""Messages that are read, and delivered, in one call at most."""

Followup = Callable[[list[Any]], Any]
"""Reads a reply, and returns the command that continues, or None."""


def is_remote(parent: str) -> bool:
    """Whether what is waited for, or waits, is of another queue."""
    return parent.startswith("{")


def check_count(parents: Sequence[str]) -> None:
    """Refuse to wait for too many.

    Raises:
        UsageError: there are more than `MOST_PARENTS`.
    """
    if len(parents) > MOST_PARENTS:
        raise UsageError(
            f"A job can wait for {MOST_PARENTS:,} others, not for {len(parents):,}; have some jobs "
            "wait for a part of them each, and this one for those."
        )


def split_reference(reference: str) -> tuple[str, str]:
    """Queue and id of a job of another queue."""
    queue, _, id = reference[1:].partition("}")
    return queue, id


def add_dependencies(
    keys: Keys,
    child: str,
    told: Sequence[tuple[str, str]],
    is_last: bool,
    parse: Callable[[list[Any]], T],
    confirm: Kinds = (),
    followup: Followup | None = None,
) -> Command[T]:
    """Say what else a job waits for that is being placed.

    Args:
        keys: of its queue.
        child: the job.
        told: what it waits for, and `-`; of another queue's job that has ended, how: `C`, `F`, `X`,
            or `U` where there is none.
        is_last: this is all that it waits for.
        parse: reads the last reply.
        confirm: what is to be waited for behind it.
        followup: reads the reply.
    """
    args: list[Arg] = [raw(child), int(is_last)]
    for parent, outcome in told:
        args += (raw(parent), outcome)
    return command("dep_add", keys, args, parse, confirm, followup)


def subscribe(
    keys: Keys, awaited: Sequence[tuple[str, str]], followup: Followup | None = None
) -> Command[list[str]]:
    """Have a queue tell the ends of its jobs to those of another; how each has ended by now.

    For each `-` where it has not; `C`, `F`, `X` as `deps_edges.lua` has it; `U` where there is no
    such job; `D` where the queue is a delay queue.

    Args:
        keys: of the queue that is to tell.
        awaited: who waits, as `{queue}id`, and the id of the job here.
        followup: reads the reply.
    """
    args: list[Arg] = []
    for child, parent in awaited:
        args += (raw(child), raw(parent))
    return command("dep_subscribe", keys, args, lambda reply: words(reply, 1), followup=followup)


class Children(NamedTuple):
    """The jobs that wait for one, or have waited for it and have not ended."""

    total: int
    ids: list[str]
    """The first of them; of jobs of other queues, `{queue}id`."""


def children(keys: Keys, id: str, most: int) -> Command[Children]:
    """Who waits for a job.

    Args:
        keys: of its queue.
        id: the job.
        most: how many are read at most.
    """
    return command(
        "children", keys, (raw(id), most), lambda reply: Children(reply[2], words(reply, 3))
    )


class DependencyMessage(NamedTuple):
    """Something to be told to, or asked of, another queue."""

    stored: str
    """As it stands on the server."""
    queue: str
    """The other."""
    asks: bool
    child: str
    """The job that waits: its id, in the other queue where that is told, here where it is asked."""
    parent: str
    """The job that is waited for: its id."""
    outcome: str = ""
    """How it has ended, where that is told."""


def read_outbox(keys: Keys, after: str, done: Sequence[str]) -> Command[list[DependencyMessage]]:
    """Take off what was told or asked, and read what else is to be.

    Args:
        keys: of the queue.
        after: the last that was read, as it stands on the server; `-` to begin.
        done: what was told or asked, as it stands on the server.
    """
    args: list[Arg] = [raw(after), MOST_POST, *map(raw, done)]
    return command("dep_outbox", keys, args, lambda reply: [*map(_message, words(reply, 1))])


def resolve(keys: Keys, told: Sequence[tuple[str, str, str]]) -> Command[None]:
    """Tell a queue what came of jobs of another: of `MOST_POST` at most.

    Args:
        keys: of the queue whose jobs wait.
        told: the job that waits; what it waits for, as `{queue}id`; `C`, `F` or `X`.
    """
    args: list[Arg] = []
    for child, parent, outcome in told:
        args += (raw(child), raw(parent), outcome)
    return command("dep_resolve", keys, args, lambda reply: None)


def _message(stored: str) -> DependencyMessage:
    mark, rest = stored[0], stored[1:]
    if mark == "@":
        child, parent, outcome = rest.split(" ")
        queue, child = split_reference(child)
        return DependencyMessage(stored, queue, False, child, parent, outcome)
    child, parent = rest.split(" ")
    queue, parent = split_reference(parent)
    return DependencyMessage(stored, queue, True, child, parent)
