"""A mutant: the package with one of its guards taken away.

`guards/` mirrors `src/bide`: of each file, a table of what in it is worth a test that fails without
it. A mutant is made at the time of the run, from the text as it stands then; where the text to be
replaced is not found, or found twice, that is an error and not a mutant less.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src"
GUARDS: Final = Path(__file__).parent / "guards"


class Unapplied(Exception):
    """A mutant that cannot be made of the text as it is."""


class Mutant(NamedTuple):
    """One guard, what is there without it, and the test that must notice."""

    guard: str
    """What holds while the guard is there."""
    file: str
    """Below `src/bide`."""
    old: str
    new: str
    test: str
    """A file below the project, and a function in it."""

    def apply(self, text: str) -> str:
        """The text without the guard.

        Raises:
            Unapplied: what is to be replaced does not stand in it exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise Unapplied(
                f"{self.file}: {self.old!r} ({self.guard}) is found {found} times; write it as it "
                "stands there now, once."
            )
        return text.replace(self.old, self.new)


def read_mutants(folder: Path = GUARDS) -> list[Mutant]:
    """All mutants, by file, in the order in which they are written down."""
    return [
        Mutant(file=path.relative_to(folder).as_posix().removesuffix(".toml"), **each)
        for path in sorted(folder.rglob("*.toml"))
        for each in tomllib.loads(path.read_text("utf-8"))["mutant"]
    ]
