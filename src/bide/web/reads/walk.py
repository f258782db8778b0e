"""Reading a list page by page, from which jobs go meanwhile: none that stays is passed over.

A page is asked for by its place in the list, and each job that leaves the list before that place
moves all others up. So pages overlap; and where a page holds nothing that was read before, what it
should hold has moved up by more than that, and is looked for further up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OVERLAP: Final = 50
"""Jobs that are read once more with each page."""

BACK: Final = 200
"""Places by which it goes back where it has met nothing that it knows."""


class Walk:
    """How far a list was read."""

    def __init__(self, start: int = 0, known: Sequence[str] = ()) -> None:
        """Set up.

        Args:
            start: the place of the first that was not read.
            known: what was read right before that, or the last of it.
        """
        self.start = start
        self._known = set(known)
        self._first = self._size = 0
        self.is_over = False
        """Whether there is nothing left to read."""

    def page(self, most: int) -> tuple[int, int]:
        """Place and size of the page to read next, for `most` that were not read before."""
        self._first = max(0, self.start - OVERLAP) if self._known else self.start
        self._size = most + self.start - self._first
        return self._first, self._size

    def read(self, ids: Sequence[str]) -> dict[str, int]:
        """Of the ids of that page those that were not read before, with their places."""
        met = next((i for i, id in enumerate(ids) if id in self._known), None)
        if met is None and self._known and self._first:
            self.start = max(0, self._first - BACK)
            return {}
        behind = enumerate(ids[met or 0 :], self._first + (met or 0))
        fresh = {id: at for at, id in behind if id not in self._known}
        self._known.update(fresh)
        self.start = self._first + len(ids)
        self.is_over = len(ids) < self._size
        return fresh
