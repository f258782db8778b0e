"""Fills the generated regions of pages; what stands around them is written by hand.

    <!-- generated: bide.Queue bide.AsyncQueue -->
    ...
    <!-- end: generated -->

The words behind the colon say what belongs into a region. Each `make_*.py` that uses this module
gives the function that makes the lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
BEGIN: Final = "<!-- generated: {} -->"
END: Final = "<!-- end: generated -->"

_REGION: Final = re.compile(
    rf"^{re.escape(BEGIN).replace(re.escape('{}'), '(.*)')}\n(?:.*\n)*?{END}$", re.MULTILINE
)

Make = Callable[[Path, str], str]
"""Returns the content of a region of a page, from the words behind the colon."""


def regions(text: str) -> list[str]:
    """Return the words of each region of a page."""
    return _REGION.findall(text)


def fill(page: Path, make: Make) -> str:
    """Return a page with its regions made anew.

    Raises:
        SystemExit: the page has a region that does not end.
    """
    text = page.read_text("utf-8")
    if text.count(BEGIN.partition("{}")[0]) != len(regions(text)):
        raise SystemExit(f"{page}: a generated region does not end with {END}")

    def made(found: re.Match[str]) -> str:
        return f"{BEGIN.format(found[1])}\n\n{make(page, found[1]).strip()}\n\n{END}"

    return _REGION.sub(made, text)


def main(pages: Iterable[Path], make: Make) -> None:
    """Write the pages; with `--check`, compare them instead.

    Raises:
        SystemExit: a page is stale.
    """
    stale = []
    for page in pages:
        text = fill(page, make)
        if text == page.read_text("utf-8"):
            continue
        stale.append(page.relative_to(DOCS.parent))
        if "--check" not in sys.argv[1:]:
            page.write_text(text, "utf-8")
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(map(str, stale))
        raise SystemExit(f"stale: {names}; run `python docs/{Path(sys.argv[0]).name}`.")
