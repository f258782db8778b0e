"""A later release of bide, for this one to share a queue with: a copy, changed where it must be.

It knows a schema of stored data, a field of bodies and a form of them that this release does not. A
change that finds nothing to change fails the test.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import bide

_CHANGES = [
    ("version.py", 'VERSION: Final = "', 'VERSION: Final = "9'),
    ("protocol/keys.py", "SCHEMA: Final = 1", "SCHEMA: Final = 2"),
    ("model/payload/body.py", "NEWEST: Final = 1", "NEWEST: Final = 2"),
    (
        "model/payload/body.py",
        "    needs: Annotated",
        "    mode: str | None = None\n    needs: Annotated",
    ),
]


def build(directory: Path) -> Path:
    """Write the later release; where it lies, for `PYTHONPATH`."""
    package = directory / "bide"
    shutil.copytree(
        Path(bide.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, old, new in _CHANGES:
        file = package / name
        text = file.read_text("utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        file.write_text(text.replace(old, new), "utf-8")
    return directory
