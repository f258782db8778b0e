"""Checks the sentences of the documentation: words, starts, lengths, semicolons, full stops.

`make check` runs it. It prints `file:line: rule` for each finding, and exits 1 if there are any.
It skips code, quotes, link targets and HTML comments. Arguments are files to check instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
LONGEST: Final = 30
NOT_YET: Final = (
    "docs/keys.md",  # generated from comments of the Lua scripts
    "docs/mutants.md",  # generated from the tables of guards
)
"""Pages and folders that are not clean yet. Rewrite one, and remove it here; add none."""

INSTEAD: Final = {
    r"tells?|told|telling": "return, report, raise or emit",
    r"lapse[sd]?|lapsing": "expire",
    r"folds?|folded|folding|gather(?:s|ed|ing)?": "deduplicate, batch or collect",
    r"t(?:ake|akes|aken|aking|ook)(?: \S+){0,2} back": "cancel",
    r"g(?:ive|ives|iven|iving|ave)(?: \S+){0,2} back": "return to the queue, or release",
    r"put(?:s|ting)? off": "delay or postpone",
    r"go(?:es|ing)? on|went on": "continue or run",
    r"c[ao]mes? to (?:its|their|an) end": "end or finish",
    r"can(?:not|'t) be meant": "is invalid",
    r"hints?|hinted": "wake-up message",
    r"herds?": "burst of due jobs",
    r"keeps? the time|keeping the time": "timekeeper",
    r"ma(?:ke|kes|de|king) good|mend(?:s|ed|ing)?": "repair",
    r"in earnest": "in production",
    r"the page's": "the dashboard's",
    r"nobody|whoever|whom|whose job it is": "the actor's name, or 'there is no'",
    r"for ever|anew|alas": "plain words: for good, again",
}
"""Words that the documentation does not use, and words to write instead."""

_BANNED: Final = [
    (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), instead)
    for words, instead in INSTEAD.items()
]
_START: Final = re.compile(r"(What|Who|Whoever|Whose|Whatever|Where|That|Of|One (?:that|who))\b")
_BLOCK: Final = re.compile(r"^ *(`{3,}).*?^ *\1 *$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_QUOTED: Final = re.compile(r"[\"“][^\"“”|]{1,200}?[\"”]")
_TARGET: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
_ENDS: Final = re.compile(r"(?<=[.!?])[)]?\s+(?=[A-Z`\"(\d]|bide\b|delay-rq\b)")
_NAMES: Final = re.compile(r"`x`(?:,\s+`x`)+")
_ITEM: Final = re.compile(r"\s*(?:[-+]|\d+\.|>|#+)\s+")


class Finding(NamedTuple):
    """A rule that a line breaks."""

    line: int
    rule: str


class Passage(NamedTuple):
    """A paragraph, an item of a list, a heading, or a cell of a table."""

    line: int
    text: str
    heading: bool = False


def findings(page: str) -> Iterator[Finding]:
    """Yield the rules that the sentences of a page break."""
    for passage in _passages(_without_code(page)):
        if passage.text.count(";") > 1:
            yield Finding(passage.line, "a paragraph has at most one semicolon.")
        at = 0
        for sentence in _ENDS.split(passage.text):
            at = passage.text.index(sentence, at)
            line = passage.line + passage.text.count("\n", 0, at)
            yield from (Finding(line, rule) for rule in _broken(sentence, passage.heading))


def _broken(sentence: str, heading: bool) -> Iterator[str]:
    words = [word for word in _NAMES.sub("x", sentence).split() if re.search(r"\w", word)]
    if len(words) > LONGEST:
        yield f"a sentence has {LONGEST} words at most, and this one has {len(words)}."
    start = None if heading or sentence.rstrip().endswith("?") else _START.match(sentence)
    if start:
        yield f"a sentence starts with the actor, not with {start[1]!r}."
    if re.search(r"(?<!\.)\.\.(?![./\w])", sentence):
        yield "a sentence ends with one full stop, or with three."
    for pattern, instead in _BANNED:
        for found in pattern.finditer(" ".join(sentence.split())):
            yield f"write {instead}, not {found[0]!r}."


def _without_code(page: str) -> str:
    """Mask code, quotes and link targets; the lines keep their numbers."""
    for pattern, word in ((_BLOCK, ""), (_CODE, "`x`"), (_QUOTED, '"x"')):
        masked, at = "", 0
        for found in pattern.finditer(page):
            masked += page[at : found.start()] + word + "\n" * found[0].count("\n")
            at = found.end()
        page = masked + page[at:]
    return _TARGET.sub(r"\1", page).replace("*", "")


def _passages(page: str) -> Iterator[Passage]:
    start, lines = 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        plain = _ITEM.sub("", line, count=1)
        row, heading = line.lstrip().startswith("|"), line.startswith("#")
        code = line.startswith("    ") and not lines and plain == line
        if lines and (not line.strip() or row or plain != line):
            yield Passage(start, "\n".join(lines))
            lines = []
        if row:
            cells = line.replace("<br>•", "|").split("|")
            yield from (Passage(number, cell.strip()) for cell in cells)
        elif heading:
            yield Passage(number, plain, heading)
        elif line.strip() and not code:
            start = start if lines else number
            lines.append(plain.strip())


def pages() -> Iterator[Path]:
    """Yield the pages that must be clean."""
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for page in [*top, *sorted(ROOT.glob("docs/**/*.md"))]:
        if not page.relative_to(ROOT).as_posix().startswith(NOT_YET):
            yield page


def main(names: list[str]) -> int:
    """Print the findings of these pages, or of all that must be clean."""
    chosen = [Path(name).resolve() for name in names] or pages()
    found = 0
    for page in chosen:
        for finding in findings(page.read_text("utf-8")):
            print(f"{os.path.relpath(page, ROOT)}:{finding.line}: {finding.rule}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
