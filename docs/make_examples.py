"""Writes the generated regions that show files: the examples, and those of `deploy/`.

A region names a file: `<!-- generated: examples/order_desk.py -->`.

`make docs` runs it; `make check` runs it with `--check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import regions

PAGES: Final = (
    regions.DOCS / "examples.md",
    *(
        page
        for page in sorted((regions.DOCS / "howto").glob("*.md"))
        if regions.BEGIN.format("deploy/").removesuffix(" -->") in page.read_text("utf-8")
    ),
)
LANGUAGES: Final = {
    ".conf": "ini",
    ".go": "go",
    ".mjs": "javascript",
    ".py": "py",
    ".service": "ini",
    ".yaml": "yaml",
    ".yml": "yaml",
    "Dockerfile": "docker",
    "Procfile": "text",
}
"""By the ending of a file, or by its name."""


def make(page: Path, words: str) -> str:
    """Return the file that a region names, as a block that is not run."""
    source = regions.DOCS.parent / words
    code = source.read_text("utf-8").rstrip()
    return f"`{words}`:\n\n```{LANGUAGES[source.suffix or source.name]}\n{code}\n```"


if __name__ == "__main__":
    regions.main(PAGES, make)
