"""Commands as values: each function of these modules returns a `Command`, without I/O.

`enqueue` adds jobs and their dependencies. `worker` is the worker's side. `jobs` reads and changes
jobs and their queue; `queues` lists queues, groups and workers; `schedules` sets schedules. `fsck`
checks and repairs stored data.

Only `bide.client.blocking` and `bide.client.aio` run commands.

Ids are text in UTF-8. If another program enqueues a job with other bytes in its id, these bytes
become surrogate escapes. Such a job can be listed, failed and deleted, and blocks no other job.
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
    """A call of a script, and the function that reads its reply."""

    script: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    confirm: Kinds = ()
    """The durabilities that the caller waits for, in the same round trip."""
    followup: Callable[[Any], Command[T] | None] | None = None
    """For a reply with only a part of the result: returns the command that requests the rest, and
    whose result contains both. Otherwise it returns None."""
    best_effort: bool = False
    """Whether it is not retried by itself: it is sent again only together with other commands."""
    repeated: Callable[[list[Any]], list[Any]] | None = None
    """Corrects the reply to a repeat whose first call may have taken effect: a state in which that
    call leaves a job becomes `ok`."""


def command(
    script: str,
    keys: Keys,
    args: Sequence[Arg],
    parse: Callable[[Any], T],
    confirm: Kinds = (),
    followup: Callable[[Any], Command[T] | None] | None = None,
    repeated: Callable[[list[Any]], list[Any]] | None = None,
) -> Command[T]:
    """Create a command, with the keys of the script's header."""
    return Command(
        script, _keys_for(script, keys), args, parse, confirm, followup, repeated=repeated
    )


@lru_cache(maxsize=8192)
def _keys_for(script: str, keys: Keys) -> tuple[str, ...]:
    return keys.of(load(script).keys)


def gone_is_ok(reply: list[Any]) -> list[Any]:
    """Read the reply to the repeat of a call that deletes."""
    return [b"ok" if word == b"gone" else word for word in reply]


def words(reply: Iterable[Any], start: int) -> list[str]:
    """Return the words from `start` on."""
    return [*map(text, islice(reply, start, None))]


def text(word: bytes) -> str:
    """Decode a word or an id, which may contain any bytes."""
    return word.decode("utf-8", "surrogateescape")


def raw(id: str) -> str | bytes:
    """Encode an id; the inverse of `text`."""
    return id if id.isascii() else id.encode("utf-8", "surrogateescape")


def pieces(reply: list[Any], start: int, size: int) -> Iterator[tuple[Any, ...]]:
    """Yield the repeating part from `start` on, in pieces of `size`."""
    rest = islice(reply, start, None)
    return zip(*[rest] * size, strict=True)


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """Return a hash from its RESP2 form: field, value, field, value."""
    return {text(name): value for name, value in pieces(flat, 0, 2)}


def number(stored: bytes | None) -> int:
    """Return an integer of a hash; 0 if it is missing or another program has damaged it."""
    return int(stored) if stored and _NUMBER.fullmatch(stored) else 0


_NUMBER: Final = re.compile(rb"-?[0-9]{1,16}")
