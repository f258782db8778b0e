"""Writes the generated regions of `docs/examples.md`: the code of the examples.

A region names a file: `<!-- generated: examples/order_desk.py -->`.

`make docs` runs it; `make check` runs it with `--check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import regions

PAGE: Final = regions.DOCS / "examples.md"
LANGUAGES: Final = {".go": "go", ".mjs": "javascript", ".py": "py"}


def make(page: Path, words: str) -> str:
    """Return the file that a region names, as a block that is not run."""
    source = regions.DOCS.parent / words
    code = source.read_text("utf-8").rstrip()
    return f"`{words}`:\n\n```{LANGUAGES[source.suffix]}\n{code}\n```"


if __name__ == "__main__":
    regions.main([PAGE], make)
