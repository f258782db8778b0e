"""Whether what was printed is what a page shows, but for what differs from run to run.

Words are compared, not spaces. A word that holds a digit (an id, a time, a duration, a process)
stands for any that does; a whole number under a hundred stands for itself; `host` stands for the
machine's name. `...` stands for
anything: in a line for the rest of words between its neighbours, alone for any number of lines.
"""

from __future__ import annotations

import re
from typing import Final

_ID: Final = re.compile(r"[0-9a-hjkmnp-tv-z]{20}")


def differs(shown: str, printed: str) -> str | None:
    """What is not as shown; None if all is."""
    wanted = [line for line in shown.splitlines() if line.strip()]
    lines = [line for line in printed.splitlines() if line.strip()]
    at, gap = 0, False
    for want in wanted:
        if want.strip() == "...":
            gap = True
            continue
        pattern = _pattern(want)
        found = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i])), None)
        if found is None or (found > at and not gap):
            return f"not printed: {want!r}; printed was:\n{printed}"
        at, gap = found + 1, False
    if at < len(lines) and not gap:
        return f"not shown: {lines[at]!r}; printed was:\n{printed}"
    return None


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(r"\s*" + r"\s+".join(map(_word, line.split())) + r"\s*")


def _word(word: str) -> str:
    if word == "...":
        return r".*"
    before, mark, after = word.partition("...")
    if mark:
        return f"{_word(before) if before else ''}.*{_word(after) if after else ''}"
    if word == "host":
        return r"\S+"
    if _ID.fullmatch(word):
        return _ID.pattern
    if re.search(r"\d", word) and not re.fullmatch(r"\D*\b\d{1,2}\b[^\d%\w]*", word):
        return r"\S*\d\S*"
    return re.escape(word)
