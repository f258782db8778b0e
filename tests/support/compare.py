"""Compares what was printed with what a page shows, except for what differs from run to run.

Spaces are not compared. `...` stands for anything: in a line for the rest of the words between its
neighbours, alone for any number of lines. `host` stands for the machine's name. A text of one of
these kinds stands for any other text of its kind: servers, addresses with a port, workers, ids,
processes, dates, times of day, durations, versions, percentages, bytes, milliseconds. **All other
numbers stand for themselves**, whatever their size.
"""

from __future__ import annotations

import re
from typing import Final

_GAP: Final = r"\.\.\."
_KINDS: Final = {
    _GAP: r".*",
    r"(?:rediss?|unix)://[^\s,;()]+": None,  # a server
    r"host(?:\.\d+(?:\.[0-9a-f]{6})?)?(?!\.?\w)": r"\S+",  # a machine or a worker
    r"[0-9a-hjkmnp-tv-z]{20}": None,  # an id
    r"(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,}": None,  # an id of another library
    r"(?<=pid )\d+|(?<=host )\d+": r"\d+",  # a process
    r"(?:\d{4}-)?\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d)?)?": None,  # a date
    r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:?\d\d)?": None,  # a time of day
    r"(?:\d+(?:\.\d+)?(?:us|ms|[wdhms]))+": None,  # a duration
    r"\d[\d,]*(?:\.\d+)? ?(?:ms|us|(?:[kMG]i?)?B|bytes)": None,
    r"\d+\.\d+ s": None,
    r"\d+\.\d+\.\d+\.\d+:\d+": None,  # an address and a port
    r"\d+\.\d+\.\d+(?!\.\d)": None,  # a version
    r"\d+(?:\.\d+)?%": None,
    r"\d{10,}": None,  # seconds or microseconds since 1970
}
"""What differs from run to run, and the text that may stand there: by default the same pattern."""
_KIND: Final = re.compile(
    "|".join(rf"({kind})" if kind == _GAP else rf"(?<![\w.])({kind})(?!\w)" for kind in _KINDS)
)
_STANDS_FOR: Final = [stands_for or kind for kind, stands_for in _KINDS.items()]


def differs(shown: str, printed: str) -> str | None:
    """What is not as shown; None if all is."""
    wanted = [line for line in shown.splitlines() if line.strip()]
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
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
    line = " ".join(line.split())
    pattern, at = "", 0
    for found in _KIND.finditer(line):
        pattern += re.escape(line[at : found.start()]) + _STANDS_FOR[(found.lastindex or 1) - 1]
        at = found.end()
    return re.compile(pattern + re.escape(line[at:]))
