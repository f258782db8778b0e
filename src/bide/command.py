"""A command: an operation as a value. `bide.sync` and `bide.aio` run it; nothing else does I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from bide.durability import Kinds
from bide.keys import Keys
from bide.script import load

T = TypeVar("T")
Arg = str | bytes | int


class Command(NamedTuple, Generic[T]):
    """One call of one script, and how to read its reply."""

    script: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    confirm: Kinds = ()
    """What is to be waited for behind it, in the same round trip."""
    rest: Callable[[Any], Command[T] | None] | None = None
    """Of a reply that has only a part of what was asked for: the command that asks for what is
    left, and has the result of both; else None."""
    aside: bool = False
    """Of use, and not worth a repeat: it is sent again along with others, or not at all."""


def command(
    script: str,
    keys: Keys,
    args: Sequence[Arg],
    parse: Callable[[Any], T],
    confirm: Kinds = (),
    rest: Callable[[Any], Command[T] | None] | None = None,
) -> Command[T]:
    """Make a command, with the keys that the script's header asks for."""
    return Command(script, _keys_for(script, keys), args, parse, confirm, rest)


@lru_cache(maxsize=8192)
def _keys_for(script: str, keys: Keys) -> tuple[str, ...]:
    return keys.of(load(script).keys)
