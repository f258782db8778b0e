"""The round trips that add jobs, begun before anybody waits for them; for code that blocks.

Jobs of one caller are added in the order in which they are given. So only what cannot be overtaken
by what is sent behind it has something sent behind it: one call of the script `enqueue`, which is
followed by one with the same keys, and so meets with the same answer. Where one had to be sent
again nevertheless, what is behind it goes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Self

from bide.command import Command
from bide.queue.core import Trip
from bide.sync import Begun


class Trips:
    """Round trips, of which the first may be on its way."""

    def __init__(self, trips: Iterator[Trip], behind: Trips | None) -> None:
        """Send what the first of them brings.

        Args:
            trips: at least one.
            behind: what is on its way. Nothing is sent behind what could be overtaken by it.
        """
        self._begun: Begun | None = None
        first, second = next(trips), next(trips, None)
        self._only: Command[Any] | None = None
        """The one call that all of it is, if nothing comes of that but that jobs are added."""
        (command, *others) = first.commands
        if second is None and not others and not command.confirm and command.script == "enqueue":
            self._only = command
        if behind is None or self._may_follow(behind):
            self._begun = first.place.client.begin(first.commands, behind and behind._begun)
        rest = () if second is None else (second,)
        self._trips = chain((first._replace(begun=self._begun),), rest, trips)

    def _may_follow(self, other: Trips) -> bool:
        if self._only is None or other._only is None or other._begun is None:
            return False
        return self._only.keys == other._only.keys

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Trip:
        return next(self._trips)

    @property
    def is_smooth(self) -> bool:
        """Whether the first came to its end with what was sent at first."""
        return self._begun is not None and self._begun.is_smooth

    def drop(self) -> None:
        """Do without the reply to the first, unless it was read."""
        if self._begun is not None:
            self._begun.drop()
