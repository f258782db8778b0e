"""Reading replies: tagged words, then numbers and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any


def words(reply: Iterable[Any], start: int) -> list[str]:
    """The words from `start` on."""
    return [word.decode() for word in islice(reply, start, None)]


def groups(reply: list[Any], start: int, size: int) -> Iterator[tuple[Any, ...]]:
    """What repeats from `start` on, in groups of `size`."""
    rest = islice(reply, start, None)
    return zip(*[rest] * size, strict=True)


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """A hash, as it comes over RESP2: field, value, field, value."""
    return {name.decode(): value for name, value in groups(flat, 0, 2)}
