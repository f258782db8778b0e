"""What a child took that died, or was stopped, before it could say so."""

from __future__ import annotations

from typing import Final

ASTRAY: Final = 1.0
"""Seconds for which a job may have been taken and stand in no row, once a child died or stopped."""


class Astray:
    """Jobs that are neither waiting, nor in a row, nor answered, and since when."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def find(self, missing: set[int], now: float) -> list[int]:
        """Those that have been missing for longer than a child takes from taking to its row.

        Args:
            missing: all that are missing now.
            now: `time.monotonic()`.
        """
        self._since = {number: self._since.get(number, now) for number in missing}
        return [number for number, since in self._since.items() if now - since > ASTRAY]
