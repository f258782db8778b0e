"""The round trips that add jobs, begun before anybody waits for them; for code that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Self

from bide.queue.core import Trip
from bide.sync import Begun


class Trips:
    """Round trips, of which the first is on its way."""

    def __init__(self, trips: Iterator[Trip], behind: Trips | None) -> None:
        """Send what the first of them brings, maybe behind what others have sent."""
        first = next(trips)
        before = None if behind is None else behind._begun
        self._begun: Begun = first.place.client.begin(first.commands, before)
        self._trips = chain((first._replace(begun=self._begun),), trips)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Trip:
        return next(self._trips)

    def drop(self) -> None:
        """Do without the reply to the first, unless it was read."""
        self._begun.drop()
