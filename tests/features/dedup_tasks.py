"""Tasks that the tests of dedup run."""

from __future__ import annotations

from dataclasses import dataclass

import bide
from tests.support import jobs


@dataclass
class Line:
    level: str
    text: str


def write(lines: list[Line]) -> int:
    """A task that gets what was batched, as its annotation says."""
    jobs.note(*[(type(line).__name__, line.text) for line in lines])
    return len(lines)


def flaky(items: list[int]) -> None:
    jobs.note(tuple(items))
    if bide.current_job().attempt == 1:
        raise ValueError("the first time")


def index(doc: str, version: int = 0) -> str:
    jobs.note(doc, version)
    return f"{doc} {version}"


def reindex(doc: str, version: int = 0) -> None:
    """One that a test makes a task, with options that its calls keep from then on."""
    jobs.note(doc, version)


def nightly(doc: str) -> None:
    """Another such."""


def rows(items: list[int]) -> None:
    """Another such."""
