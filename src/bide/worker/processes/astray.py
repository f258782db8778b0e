"""What a child took that died, or was stopped, before it could say so."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

ASTRAY: Final = 1.0
"""Seconds for which a job may have been taken and stand in no row, once a child died or stopped."""


class Astray:
    """Jobs that are neither waiting, nor in a row, nor answered, and since when."""

    def __init__(self) -> None:
        self._up_to = 0
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether one of those that are suspected is still to be accounted for."""
        return bool(self._up_to)

    def suspect(self, handed_out: Set[int]) -> None:
        """Someone who could take one of these will not say so any more."""
        self._up_to = max(handed_out, default=0)

    def find(self, unseen: Set[int], waiting: Set[int], now: float) -> list[int]:
        """Those that have been missing for longer than a child takes from taking to its row.

        Args:
            unseen: all that were handed out, and stand in no row.
            waiting: those of them that may still wait for a child.
            now: `time.monotonic()`.
        """
        if not any(number <= self._up_to for number in unseen):
            self._up_to = 0
        self._since = {number: self._since.get(number, now) for number in unseen - waiting}
        return [number for number, since in self._since.items() if now - since > ASTRAY]
