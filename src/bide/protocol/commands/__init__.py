"""Operations as values: each function of these modules returns a `Command` and does no I/O.

`enqueue` adds jobs and what they wait for. `worker` is the worker's side. `jobs` reads and changes
jobs and their queue; `queues` lists queues, groups and workers; `schedules` sets schedules. `fsck`
checks and repairs what is stored.

`bide.client.blocking` and `bide.client.aio` run commands; nothing else does I/O.

Ids are text in UTF-8. If another program enqueues a job with other bytes in its id, these bytes
become surrogate escapes. Such a job can be seen, failed and deleted, and holds up no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bide.model.options import Kinds
from bide.protocol.keys import Keys
from bide.protocol.scripts import load

T = TypeVar("T")
Arg = str | bytes | int


class Command(NamedTuple, Generic[T]):
    """One call of one script, and how to read its reply."""

    script: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    confirm: Kinds = ()
    """The durabilities that the caller waits for, in the same round trip."""
    followup: Callable[[Any], Command[T] | None] | None = None
    """Of a reply that has only a part of what was asked for: the command that asks for what is
    left, and has the result of both; else None."""
    best_effort: bool = False
    """Of use, and not worth a repeat: it is sent again along with others, or not at all."""


def command(
    script: str,
    keys: Keys,
    args: Sequence[Arg],
    parse: Callable[[Any], T],
    confirm: Kinds = (),
    followup: Callable[[Any], Command[T] | None] | None = None,
) -> Command[T]:
    """Make a command, with the keys that the script's header asks for."""
    return Command(script, _keys_for(script, keys), args, parse, confirm, followup)


@lru_cache(maxsize=8192)
def _keys_for(script: str, keys: Keys) -> tuple[str, ...]:
    return keys.of(load(script).keys)


def words(reply: Iterable[Any], start: int) -> list[str]:
    """The words from `start` on."""
    return [*map(text, islice(reply, start, None))]


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
