"""A call, where it goes, and what is answered: what `bide.dialogue` and `bide.routes` share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis
from redis import exceptions as lib

Call = tuple[Any, ...]
Answer = list[Any] | Exception
"""Replies, in which an error reply is an exception; or what broke the round trip."""


class At(NamedTuple):
    """To a node that has answered before."""

    node: str
    """Its URL; empty for the one server there is."""


class Behind(NamedTuple):
    """Right behind the call before it, and again with that if it has to be sent elsewhere."""

    counts: tuple[int, ...]
    """Places of calls whose writes it is to count. It counts those of its own connection: where one
    of these went over another, routes have that call repeated."""


Route = str | At | Behind
"""The key whose node a call is for; or that node; or behind another."""


class NoScript(lib.NoScriptError):
    """A node does not know a script."""

    def __init__(self, text: str, node: str) -> None:
        super().__init__(text)
        self.node = node


def pack(calls: Sequence[Call]) -> bytes:
    """The bytes of calls.

    Numbers go as text: hiredis (3.5) asks them for theirs, at which a signal's handler may run, and
    where that raises, as at Ctrl-C, it goes on with nothing, and the process dies.
    """
    return b"".join(
        [
            hiredis.pack_command(tuple([str(w) if type(w) is int else w for w in call]))  # type: ignore[arg-type]
            for call in calls
        ]
    )


class Late(lib.TimeoutError):
    """A call was not sent: it repeats another, and was so long under way that it must not."""


def is_late(until: float | None) -> bool:
    """Whether a time (`time.monotonic()`) has passed; None never does."""
    return until is not None and time.monotonic() > until
