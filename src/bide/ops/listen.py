"""Listening to events: holding their stream open, and knowing where to read on."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bide.command import Command, command
from bide.keys import Keys

HOLD_US: Final = 610_000_000
"""Microseconds for which a listener holds the stream open: ten minutes from its last read, and a
little, because it does not say at each that it reads."""


class Position(NamedTuple):
    """Where a listener reads on."""

    after: str
    """The id behind which the next event stands."""
    gap: bool
    """Events before that were lost."""


def listen(keys: Keys, name: str, after: str, hold_us: int = HOLD_US) -> Command[Position]:
    """Hold the stream of events open.

    Args:
        keys: of the queue.
        name: of the listener.
        after: the id of the event that it read last; `-` to begin with what happens next.
        hold_us: for how long from now; 0 to let go of it.
    """

    def parse(reply: list[Any]) -> Position:
        return Position(reply[2].decode(), bool(reply[3]))

    return command("listen", keys, (name, after, hold_us), parse)
