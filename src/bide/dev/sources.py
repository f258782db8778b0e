"""Seeing that a source has changed, by looking at sizes and times of files.

To look costs some microseconds a file, and needs nothing that is not in Python; so it is paced by
what it costs: whatever the size of the tree, it takes a twentieth of one processor at most.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

LOOK_EVERY: Final = 0.25
"""Seconds between two looks at least."""

_SHARE: Final = 20
"""A look is followed by a pause of so many times its own length."""

_SETTLED: Final = 0.05
"""Seconds without a further change after which a change is whole: a checkout writes many files."""

_NEVER: Final = frozenset({"node_modules", "__pycache__", "site-packages"})

_Stamp = tuple[int, int]


class Sources:
    """The Python files below some directories, and each directory's pyproject.toml.

    Left out are hidden directories, environments (`pyvenv.cfg`), and what is not one's own source.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        """Look for the first time."""
        wanted = list(dict.fromkeys(roots))
        self._roots = [root for root in wanted if not {*wanted} & {*root.parents}]
        self._pause = LOOK_EVERY
        self._seen = self._look()

    async def changed(self) -> list[str]:
        """Wait until files have changed, come or gone; their paths, sorted."""
        names: set[str] = set()
        while True:
            await asyncio.sleep(_SETTLED if names else self._pause)
            more = self.changes()
            if names and not more:
                return sorted(names)
            names |= more

    def changes(self) -> set[str]:
        """What has changed since the last look."""
        before, self._seen = self._seen, self._look()
        return {path for path, _ in before.items() ^ self._seen.items()}

    def _look(self) -> dict[str, _Stamp]:
        begun = time.monotonic()
        seen = {path: stamp for root in self._roots for path, stamp in _files(str(root))}
        self._pause = max(LOOK_EVERY, _SHARE * (time.monotonic() - begun))
        return seen


def _files(root: str) -> Iterator[tuple[str, _Stamp]]:
    left = [root]
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except OSError:  # it has just gone, or is not ours to read
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _NEVER:
                        left.append(entry.path)
                elif entry.name.endswith(".py") or entry.name == "pyproject.toml":
                    stat = entry.stat()
                    yield entry.path, (stat.st_mtime_ns, stat.st_size)
            except OSError:
                continue
