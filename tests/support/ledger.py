"""The ledger that jobs write, as the tests read it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support.eventually import PATIENCE, eventually


class Line(NamedTuple):
    what: str
    id: str
    attempt: int
    token: int
    """The server's time of the claim, in microseconds."""
    due_us: int
    worker: str
    pid: int
    clock_us: int
    real_us: int


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, what: str | None = None, id: str | None = None) -> list[Line]:
        """What was written, in the order in which it was written."""
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        lines = [Line(**json.loads(text)) for text in whole.splitlines()]
        return [x for x in lines if what in (None, x.what) and id in (None, x.id)]

    def count(self, what: str) -> Counter[str]:
        """How often each job wrote this."""
        return Counter(line.id for line in self.lines(what))

    def wait(self, what: str, count: int, within: float = PATIENCE) -> list[Line]:
        """Wait until there are so many lines of a kind."""

        def enough() -> list[Line]:
            lines = self.lines(what)
            return lines if len(lines) >= count else []

        return eventually(enough, within)
