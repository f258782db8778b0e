"""A row of the tables: one way to corrupt a queue."""

from __future__ import annotations

from typing import Any, NamedTuple

Id = tuple[str, str]
DAY, YEAR = 86_400, 366 * 86_400


class Case(NamedTuple):
    """One way to corrupt a queue."""

    name: str
    do: tuple[tuple[Any, ...], ...]
    finds: set[Id]
    places: dict[str, str | None]
    """Where jobs are after the repair; None: nowhere."""


def case(name: str, *do: tuple[Any, ...], finds: Id | set[Id], **places: str | None) -> Case:
    """Jobs are named as keywords, with `_` for `-`."""
    found = {finds} if isinstance(finds, tuple) else finds
    return Case(name, do, found, {id.replace("_", "-"): at for id, at in places.items()})


def record(head: str = "", rest: str = " 5 1 0 0 0 1700000000000000 w1 1700000000000000") -> str:
    """A run record; `head` is the token and outcome of the last claim, and of the one before."""
    return (head or "1700000000000000-") + "0000000000000000-" + rest
