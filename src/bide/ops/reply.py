"""Reading replies: tagged words, then numbers and bytes.

Ids are text in UTF-8. Where another program enqueued one that is not, its odd bytes travel as what
Python calls surrogate escapes: such a job can be seen, failed and deleted, and holds up no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final


def words(reply: Iterable[Any], start: int) -> list[str]:
    """The words from `start` on."""
    return [text(word) for word in islice(reply, start, None)]


def text(word: bytes) -> str:
    """A word, or an id, of whichever bytes."""
    return word.decode("utf-8", "surrogateescape")


def raw(id: str) -> str | bytes:
    """An id as it is sent; the one it was, if `text` read it."""
    return id if id.isascii() else id.encode("utf-8", "surrogateescape")


def pieces(reply: list[Any], start: int, size: int) -> Iterator[tuple[Any, ...]]:
    """What repeats from `start` on, in pieces of `size`."""
    rest = islice(reply, start, None)
    return zip(*[rest] * size, strict=True)


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """A hash, as it comes over RESP2: field, value, field, value."""
    return {text(name): value for name, value in pieces(flat, 0, 2)}


def number(stored: bytes | None) -> int:
    """A whole number of a hash; 0 for none, and for what another program has made of it."""
    return int(stored) if stored and _NUMBER.fullmatch(stored) else 0


_NUMBER: Final = re.compile(rb"-?[0-9]{1,16}")
